#pragma once

#include "file/direct_reader.hpp"
#include "file/file.hpp"
#include "file/read_terms.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>

namespace unimem::detail {

/// How bytes come from a file.
enum class ReadWay : std::uint8_t {
  by_residency,  ///< what is not in the page cache goes past it
  direct,        ///< all goes past it
  cached,        ///< all goes by it
};

/// How many bytes came by which way.
struct ReadCount {
  std::size_t bytes = 0;
  std::size_t direct = 0;   ///< of them, past the page cache
  std::size_t by_ring = 0;  ///< of those, by io_uring
};

/// Chooses for each read of one file the way that costs least, and reads. Thread-safe.
class FileReader {
 public:
  /// Shorter reads go by the page cache, which reads ahead (docs/decisions/file-access.md).
  static constexpr std::size_t least_direct = std::size_t{512} << 10;

  /// ReadWay::direct: throws what `DirectReader::open` does.
  FileReader(File const& file, ReadWay way);

  [[nodiscard]] ReadWay way() const noexcept { return way_; }

  /// Whether a read of this range would go past the page cache.
  [[nodiscard]] bool goes_direct(File const& file, std::uint64_t offset, std::uint64_t bytes) const;

  /// As `File::read`; throws what that does, and `DirectReader::read`.
  [[nodiscard]] ReadCount read(File const& file, std::uint64_t offset, std::span<std::byte> to,
                               ReadTerms const& terms) const;

 private:
  [[nodiscard]] DirectReader const* direct(File const& file) const;

  ReadWay way_;
  mutable std::once_flag once_;
  mutable std::optional<DirectReader> direct_;
  mutable std::atomic<bool> refused_{false};  ///< a read, where opening was not
};

}  // namespace unimem::detail
