#pragma once

#include <unimem/core/export.hpp>

#include <cstdint>
#include <string_view>

namespace unimem {

/// By which way bytes of a file come. The bytes are the same on every way.
enum class FileAccess : std::uint8_t {
  /// Whichever costs least. Bytes that are not in the page cache come past it, as with `direct`; bytes that are there,
  /// short reads, and bytes that come again although the host had no room to keep them come by way of it. As `cached`
  /// where the file system knows no other way.
  automatic,
  /// Past the page cache, with several requests under way: a cold file at its disk's speed, and nothing else leaves the
  /// cache for it. Nowhere else: refused where the file system has no such reads (tmpfs).
  direct,
  cached,  ///< by the page cache alone, as `read` does: what is read once is there for the next
  mapped,  ///< in place: pages of the page cache, without a copy; of buffers, those that are only read
};

/// "auto", "direct", "cached", "mapped".
[[nodiscard]] UNIMEM_API std::string_view to_string(FileAccess access) noexcept;

}  // namespace unimem
