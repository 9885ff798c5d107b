#pragma once

#include <unimem/buffer/statistics.hpp>
#include <unimem/device/detail/transfer_meter.hpp>

#include "core/fork_locks.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace unimem::detail {

/// Which path the bytes of a copy between host and device took.
enum class CopyPath : unsigned char {
  direct,
  staged,    ///< by way of pinned blocks
  unstaged,  ///< directly, for want of pinned memory
};

enum class Direction : unsigned char { upload, download, between };

/// What a buffer has moved, and how long that took.
///
/// Counting is for the holder of the buffer's lock; `statistics` is thread-safe.
class BufferCounters {
 public:
  /// Counts one copy, or several that went as one piece of work. `meter` has been asked for their time.
  void count(Direction direction, std::size_t bytes, CopyPath path, std::size_t copies) noexcept;
  /// The same by places, by their names.
  void count_on_link(std::string from, std::string to, std::size_t bytes, std::size_t copies);
  void count_conflicting_mark() noexcept { conflicting_marks_.fetch_add(1, std::memory_order_relaxed); }
  void count_unmarked_writes(std::uint64_t writes) noexcept {
    unmarked_writes_.fetch_add(writes, std::memory_order_relaxed);
  }
  /// What the time of a copy counts into. Throws std::bad_alloc.
  [[nodiscard]] SharedMeter meter(Direction direction);

  [[nodiscard]] BufferStatistics statistics() const noexcept;
  /// What moved between which places, in the order in which they first did.
  [[nodiscard]] std::vector<LinkStatistics> links() const {
    return copies_ ? copies_->links : std::vector<LinkStatistics>{};
  }
  /// Copies that end later count nowhere.
  void reset() noexcept;

 private:
  struct Sum {
    std::atomic<std::uint64_t> bytes{0}, copies{0};
    TransferMeter meter;
  };
  /// What its copies moved, and how long they took. Apart, and shared: copies may end after the buffer.
  struct Copies {
    Sum uploads, downloads, between;
    std::atomic<std::uint64_t> staged{0}, unstaged{0};
    std::vector<LinkStatistics> links;  ///< for the holder of the buffer's lock
    [[nodiscard]] Sum& of(Direction direction) noexcept {
      return direction == Direction::upload ? uploads : direction == Direction::download ? downloads : between;
    }
  };

  void make_ready();

  std::atomic<std::uint64_t> conflicting_marks_{0}, unmarked_writes_{0};
  std::shared_ptr<Copies> copies_;  ///< made for the first copy; another after a reset
  mutable SpinLock copies_lock_;    ///< of `copies_`, which statistics read without the buffer's lock
};

}  // namespace unimem::detail
