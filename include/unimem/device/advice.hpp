#pragma once

#include <unimem/core/export.hpp>

#include <cstdint>
#include <string_view>

namespace unimem {

/// What a driver that moves memory by itself may be told of its use. Hints: none changes a result, or moves a byte when
/// it is given. (The terms are those of cuMemAdvise and of SYCL's mem_advise.)
enum class Advice : std::uint8_t {
  read_mostly,         ///< read far more often than written, so that every place may keep a copy
  preferred_location,  ///< to stay at one place, and be reached from others over the link, rather than to move
  accessed_by,         ///< one place will use it, and shall be able to reach it wherever it is
};

/// "read_mostly", "preferred_location", "accessed_by".
[[nodiscard]] UNIMEM_API std::string_view to_string(Advice advice) noexcept;

}  // namespace unimem
