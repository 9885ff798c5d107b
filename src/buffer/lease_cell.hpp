#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/memory.hpp>

#include "buffer/storage.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace unimem::detail {

/// Where read leases of one buffer come and go without its lock: a door to one storage, which whoever holds the lock
/// closes first of all and opens at the end if what is behind it is complete, at rest, and in use by one queue alone.
///
/// Everything is in one word: who enters counts himself, and learns by the same step whether the door was open. Who
/// finds it closed leaves again, and has looked at nothing. Since those within are counted, the holder of the lock
/// knows of them (`Storage::leased`), and neither the storage nor what is said about it changes while there are any.
///
/// The cell belongs to the buffer; leases may outlive it, and then the last of them takes it away.
class LeaseCell {
 public:
  LeaseCell() = default;
  LeaseCell(LeaseCell const&) = delete;
  LeaseCell& operator=(LeaseCell const&) = delete;

  /// A lease on `range` for work on a queue of `device`: its memory, or nothing where the lock is needed. The buffer
  /// lives. Thread-safe.
  [[nodiscard]] std::optional<DeviceMemory> enter(Device const& device, std::uint64_t queue_id,
                                                  ByteRange range) noexcept {
    if ((word_.load(std::memory_order_relaxed) & open_door) == 0) return std::nullopt;
    // Acquire: what was said about the storage before the door was opened.
    bool const entered = (word_.fetch_add(1, std::memory_order_acquire) & open_door) != 0;
    if (entered && queue_id_ == queue_id && &storage_->device() == &device && range.begin <= range.end &&
        range.end <= bytes_) {
      if (!visited_.load(std::memory_order_relaxed)) visited_.store(true, std::memory_order_relaxed);
      return storage_->window(range);
    }
    leave();
    return std::nullopt;
  }

  /// Ends a lease. Thread-safe; the cell may be gone afterwards.
  void leave() noexcept;

  /// For those with a lease.
  [[nodiscard]] Storage& storage() const noexcept { return *storage_; }

  /// Whether there are leases, or somebody just looks whether the door is open.
  [[nodiscard]] bool entered() const noexcept { return (word_.load(std::memory_order_acquire) & count) != 0; }

  // The rest is for the holder of the buffer's lock.

  void close() noexcept { word_.fetch_and(~open_door, std::memory_order_acq_rel); }
  void open() noexcept { word_.fetch_or(open_door, std::memory_order_release); }

  /// Puts another storage, or another queue, behind the closed door, unless leases still hold what is there.
  void stand_before(std::shared_ptr<Storage> const& storage, std::size_t bytes, std::uint64_t queue_id) noexcept;

  /// Whether anybody has come in since it was last asked.
  [[nodiscard]] bool take_visited() noexcept {
    return visited_.load(std::memory_order_relaxed) && visited_.exchange(false, std::memory_order_relaxed);
  }

  /// What stands behind the door; null: nothing.
  [[nodiscard]] Storage const* behind() const noexcept {
    return (word_.load(std::memory_order_acquire) & (letting_go | let_go)) != 0 ? nullptr : storage_.get();
  }
  [[nodiscard]] std::uint64_t queue_id() const noexcept { return queue_id_; }

  /// The buffer has done with the storage behind the closed door: it goes with its last lease.
  void detach() noexcept;

  /// The buffer is destroyed: the cell goes with its last lease.
  void abandon() noexcept;

 private:
  static constexpr std::uint64_t open_door = std::uint64_t{1} << 63U;
  static constexpr std::uint64_t abandoned = std::uint64_t{1} << 62U;
  static constexpr std::uint64_t let_go = std::uint64_t{1} << 61U;      ///< the last to leave lets the storage go
  static constexpr std::uint64_t letting_go = std::uint64_t{1} << 60U;  ///< somebody does, alone
  static constexpr std::uint64_t count = letting_go - 1;

  ~LeaseCell();
  void drop_storage() noexcept;

  std::atomic<std::uint64_t> word_{0};
  std::atomic<bool> visited_{false};
  std::shared_ptr<Storage> storage_;
  std::size_t bytes_ = 0;
  std::uint64_t queue_id_ = 0;
};

}  // namespace unimem::detail
