#pragma once

#include <unimem/pool/statistics.hpp>

#include "pool/thread_cache.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace unimem::detail {

/// What a pool counts of its blocks, and the marks between which a watcher expects the bytes in use. What threads keep
/// counts as in use here.
///
/// Under the pool's lock, but for `has_left_marks`.
class PoolCounts {
 public:
  explicit PoolCounts(ThreadCache const& thread_cache) noexcept : thread_cache_(thread_cache) {}

  /// What a block that is handed out was made of.
  enum class From : std::uint8_t { cache, extents, device };

  /// A block is handed out for `bytes` bytes.
  void count_in(Block const& block, std::size_t bytes, From from) noexcept;
  /// A block in use is cached.
  void count_out(Block const& block) noexcept;
  /// Takes back the count of a hit that came to nothing.
  void uncount_hit(std::size_t bytes) noexcept;
  /// Cached blocks leave for the extents or the driver.
  void count_returned(Block const& block) noexcept { class_of(block).pooled_bytes -= block.capacity(); }
  /// Blocks that had left stay in use without an owner.
  void count_withheld(BlockList const& blocks) noexcept;
  /// So many bytes are reserved, where blocks are objects.
  void note_reserved(std::size_t bytes) noexcept;
  void count_failure() noexcept { ++counts_.failed_allocations; }
  void count_flush() noexcept { ++counts_.seizures; }
  void count_trim() noexcept { ++counts_.trims; }
  void count_wait() noexcept { ++counts_.waits; }

  /// The most bytes that may have been in use since these magazines (null: none) began to watch: all that is out of
  /// the core, less the least that was parked.
  [[nodiscard]] std::size_t used_at_most(Magazines const* these) const noexcept {
    return used_at_most(these, thread_cache_.bytes_beside(these));
  }
  /// Notes that as a peak. Before and after the bytes that are out of the core change.
  void note_peak(Magazines* these) noexcept { note_peak(these, thread_cache_.bytes_beside(these)); }
  /// The same where the bytes that are parked elsewhere are known.
  void note_peak(Magazines* these, std::size_t parked_elsewhere) noexcept;

  /// Adds the acquires that these magazines served: each is a hit that never came to the core.
  void add_hits(Magazines const& magazines) noexcept { add_hits(counts_, magazines); }
  static void add_hits(PoolStatistics& counts, Magazines const& magazines) noexcept;

  /// As `MemoryPool` says.
  [[nodiscard]] bool set_marks(std::size_t below, std::size_t above) noexcept;
  /// Relaxed: a word alone; what it is about is asked for under the pool's lock.
  [[nodiscard]] bool has_left_marks() const noexcept { return left_marks_.load(std::memory_order_relaxed); }

  [[nodiscard]] std::size_t active_bytes() const noexcept { return counts_.active_bytes; }
  [[nodiscard]] PoolStatistics const& all() const noexcept { return counts_; }

 private:
  [[nodiscard]] std::size_t used_at_most(Magazines const* these, std::size_t parked_elsewhere) const noexcept;
  void note_marks() noexcept;
  [[nodiscard]] SizeClassStatistics& class_of(Block const& block) noexcept {
    return counts_.size_classes[size_class(block.capacity())];
  }

  ThreadCache const& thread_cache_;
  PoolStatistics counts_;
  std::size_t below_ = 0;
  std::size_t above_ = std::numeric_limits<std::size_t>::max();
  std::atomic<bool> left_marks_{false};  ///< a hint to look; publishes nothing
};

}  // namespace unimem::detail
