#pragma once

#include "device/cuda/driver.hpp"

#include <exception>
#include <string>

namespace unimem::detail::cuda {

/// What the driver calls an error code, e.g. "CUDA_ERROR_ILLEGAL_ADDRESS".
[[nodiscard]] std::string code_name(Driver const& driver, Result code);

/// Whether a context that reports this can never be used again, and with it all that its memory held. The driver
/// repeats such a code at every later call.
[[nodiscard]] bool is_fatal(Result code) noexcept;

/// Throws DeviceError unless `code` is success. `call` is the driver function's name.
void check(Driver const& driver, Result code, char const* call);

/// The DeviceError that `check` would throw. For failures that belong to a ticket.
[[nodiscard]] std::exception_ptr failure_of(Driver const& driver, Result code, char const* call) noexcept;

}  // namespace unimem::detail::cuda
