#pragma once

#include <unistd.h>

#include <cstddef>

namespace unimem::detail {

/// The bytes of a page of this system's memory, a power of two: 4 KiB on x86-64, 4, 16 or 64 KiB on arm64.
[[nodiscard]] inline std::size_t system_page_bytes() noexcept {
  static auto const bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace unimem::detail
