#pragma once

#include <cerrno>
#include <system_error>

namespace unimem::detail {

/// What the system's last call of this thread that failed has left in `errno`.
[[nodiscard]] inline std::error_code last_error() noexcept {
  return {errno, std::generic_category()};
}

}  // namespace unimem::detail
