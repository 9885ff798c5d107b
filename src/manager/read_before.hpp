#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace unimem::detail {

/// Which ranges of a file have been read: what is read once more comes again and again. A bit for each 64 KiB.
/// Thread-safe.
class ReadBefore {
 public:
  explicit ReadBefore(std::size_t bytes) : words_((bytes / granule + 64) / 64) {}

  /// Notes the range. Returns whether its middle had been read before.
  [[nodiscard]] bool note(std::size_t offset, std::size_t bytes) noexcept {
    if (bytes == 0) return false;
    bool const before = (word((offset + bytes / 2) / granule) & mask((offset + bytes / 2) / granule)) != 0;
    for (auto i = offset / granule; i <= (offset + bytes - 1) / granule; ++i) {
      words_[i / 64].fetch_or(mask(i), std::memory_order_relaxed);
    }
    return before;
  }

 private:
  static constexpr std::size_t granule = std::size_t{64} << 10;

  static std::uint64_t mask(std::size_t i) noexcept { return std::uint64_t{1} << (i % 64); }
  [[nodiscard]] std::uint64_t word(std::size_t i) const noexcept {
    return words_[i / 64].load(std::memory_order_relaxed);
  }

  std::vector<std::atomic<std::uint64_t>> words_;  ///< relaxed: hints alone
};

}  // namespace unimem::detail
