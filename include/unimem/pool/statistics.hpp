#pragma once

#include <unimem/core/export.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stop_token>

namespace unimem {

/// The documented size classes, how statistics are reported (not how memory is carved): class 0 is up to 4 KiB, class k
/// up to 4 KiB · 2^k, class 20 everything above.
inline constexpr std::size_t size_class_count = 21;

/// The reported class of a size in bytes; monotone.
[[nodiscard]] UNIMEM_API std::size_t size_class(std::size_t bytes) noexcept;

/// The largest size of a class in bytes; the last class has no bound and gives the largest std::size_t.
[[nodiscard]] UNIMEM_API std::size_t size_class_limit(std::size_t index) noexcept;

/// What one reported class has seen. Acquires count where the bytes asked for fall, blocks where their own size does: a
/// request just below a class's limit may be served by a block just above it.
struct SizeClassStatistics {
  std::uint64_t allocations = 0;  ///< acquires of this class so far
  std::uint64_t hits = 0;         ///< of those, served by memory that had been in use before
  std::size_t active_bytes = 0;   ///< block bytes in use now
  std::size_t pooled_bytes = 0;   ///< block bytes cached now
};

/// A consistent picture of one pool. Invariants: `pool_hits + pool_misses == total_allocations`;
/// `active_bytes + total_pooled_bytes + slack_bytes == reserved_bytes`; every peak is at least its current value; the
/// classes sum to the totals. Acquires of zero bytes and acquires that failed are in none of the counts but
/// `failed_allocations`.
struct PoolStatistics {
  std::uint64_t total_allocations = 0;
  std::uint64_t pool_hits = 0;    ///< served by memory that had been in use before
  std::uint64_t pool_misses = 0;  ///< served by memory that was taken from the device, or of which more is in use now
                                  ///< than ever was
  std::size_t total_pooled_bytes = 0;  ///< cached: not in use, and what trimming is for
  std::uint64_t active_allocations = 0;
  std::size_t active_bytes = 0;  ///< bytes of blocks in use, rounding included
  std::size_t peak_active_bytes = 0;
  /// Free parts of pages beside blocks that are in use or kept by a thread: they serve acquires, but do not go back to
  /// the device before those have left. 0 where every block is an allocation.
  std::size_t slack_bytes = 0;
  std::size_t reserved_bytes = 0;  ///< taken from the device and not given back
  std::size_t peak_reserved_bytes = 0;
  /// Acquires that threw for want of memory or because the driver failed, a manager's tries before it has made room
  /// among them. Refused arguments are not counted.
  std::uint64_t failed_allocations = 0;
  // What acquires came to that found nothing at hand, and what each time went on with another look.
  std::uint64_t seizures = 0;  ///< blocks that threads keep were brought back, all of them
  std::uint64_t trims = 0;     ///< cached memory went back to the device
  std::uint64_t waits = 0;     ///< work on cached blocks, or blocks on their way to or from the device, were waited for
  std::array<SizeClassStatistics, size_class_count> size_classes{};

  /// Hits per acquire, 0 when there was none.
  [[nodiscard]] double hit_rate() const noexcept {
    auto const acquires = pool_hits + pool_misses;
    return acquires == 0 ? 0.0 : static_cast<double>(pool_hits) / static_cast<double>(acquires);
  }
};

/// Free memory inside a pool, from a walk over its blocks.
struct PoolFragmentation {
  std::size_t largest_free_block = 0;  ///< bytes
  std::size_t total_free = 0;          ///< bytes

  /// 1 − largest / total, 0 when nothing is free.
  [[nodiscard]] double fragmentation_ratio() const noexcept {
    return total_free == 0 ? 0.0 : 1.0 - static_cast<double>(largest_free_block) / static_cast<double>(total_free);
  }
};

/// How far `MemoryPool::defragment` and `MemoryManager::defragment` may go.
struct DefragmentationLimits {
  std::size_t max_moved_bytes = std::numeric_limits<std::size_t>::max();   ///< of free pages, by their mappings
  std::size_t max_copied_bytes = std::numeric_limits<std::size_t>::max();  ///< of blocks in use, by a manager
  std::stop_token stop{};  ///< asked before each run of pages and each block: what has moved by then stays moved
};

/// What `MemoryPool::defragment` and `MemoryManager::defragment` have done.
struct PoolDefragmentation {
  std::size_t bytes_moved = 0;          ///< of free memory, by its mappings: none of it was copied
  std::size_t blocks_moved = 0;         ///< blocks in use, by their holders: 0 for a pool alone
  std::size_t bytes_copied = 0;         ///< of these blocks, and of those that were used meanwhile and stayed
  std::size_t largest_free_before = 0;  ///< bytes
  std::size_t largest_free_after = 0;   ///< bytes
  double seconds = 0;
};

}  // namespace unimem
