#pragma once

#include <unimem/core/export.hpp>

#include <cstdint>
#include <string_view>

namespace unimem {

/// By which way bytes of a file come. The bytes are the same on every way.
enum class FileAccess : std::uint8_t {
  /// Whichever costs least: past the page cache what is not there, as `direct`; by way of it what is, what is small,
  /// and
  /// what comes again although the host had no room to keep it; as `cached` where the file system knows no other way.
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
