#pragma once

#include "device/cuda/driver.hpp"

#include <mutex>

// Every function of the table as the stand-in carries it out: under the one lock of the machine, for an initialized
// driver, with faults already played. entry_table.cpp makes the driver's C functions of them.

namespace unimem::standin {

using namespace detail::cuda;

using Lock = std::unique_lock<std::mutex>;

/// What ends a call that cannot be served; the entry turns it into the code the caller sees.
struct Refused {
  Result code;
};

[[noreturn]] inline void refuse(Result code) {
  throw Refused{code};
}

/// Bad input is refused before anything changed.
inline void require(bool holds, Result otherwise = Result::invalid_value) {
  if (!holds) refuse(otherwise);
}

namespace calls {

#define UNIMEM_IMPLEMENTED(function, version, ...) Result function(Lock& lock, __VA_ARGS__);
UNIMEM_CUDA_FUNCTIONS(UNIMEM_IMPLEMENTED)
UNIMEM_CUDA_LATER_FUNCTIONS(UNIMEM_IMPLEMENTED)
#undef UNIMEM_IMPLEMENTED

}  // namespace calls

}  // namespace unimem::standin
