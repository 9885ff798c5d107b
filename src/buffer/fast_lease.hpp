#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/memory.hpp>

#include "buffer/replica.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace unimem::detail {

/// Read leases of one buffer on one storage that are taken and ended without the buffer's lock. The holder of the lock
/// closes it first of all, and opens it at the end if the storage is complete, at rest, and in use by one queue alone.
///
/// Everything is in one word: taking a lease counts it, and tells by the same step whether this was open. If it was
/// closed, the count is taken back and nothing has been read. Since leases are counted, the holder of the lock knows of
/// them (`Storage::leased`), and neither the storage nor what is said about it changes while there are any.
///
/// It belongs to the buffer; leases may outlive that, and then the last of them deletes it.
class FastLease {
 public:
  FastLease() = default;
  FastLease(FastLease const&) = delete;
  FastLease& operator=(FastLease const&) = delete;

  /// A lease on `range` for work on a queue of `device`: its memory, or nothing where the lock is needed. The buffer
  /// lives. Thread-safe.
  [[nodiscard]] std::optional<DeviceMemory> enter(Device const& device, std::uint64_t queue_id,
                                                  ByteRange range) noexcept {
    if ((word_.load(std::memory_order_relaxed) & is_open) == 0) return std::nullopt;
    // Acquire: what was said about the storage before this was opened.
    bool const entered = (word_.fetch_add(1, std::memory_order_acquire) & is_open) != 0;
    if (entered && queue_id_ == queue_id && &replica_->device() == &device && range.begin <= range.end &&
        range.end <= bytes_) {
      if (!visited_.load(std::memory_order_relaxed)) visited_.store(true, std::memory_order_relaxed);
      return replica_->window(range);
    }
    leave();
    return std::nullopt;
  }

  /// Ends a lease. Thread-safe; this may be gone afterwards.
  void leave() noexcept;

  /// For holders of a lease.
  [[nodiscard]] Replica& replica() const noexcept { return *replica_; }

  /// Whether there are leases, or a thread just finds out whether this is open.
  [[nodiscard]] bool entered() const noexcept { return (word_.load(std::memory_order_acquire) & count) != 0; }

  // The rest is for the holder of the buffer's lock.

  void close() noexcept { word_.fetch_and(~is_open, std::memory_order_acq_rel); }
  void open() noexcept { word_.fetch_or(is_open, std::memory_order_release); }

  /// While closed: the storage and the queue from now on, unless leases still hold the present one.
  void stand_before(std::shared_ptr<Replica> const& replica, std::size_t bytes, std::uint64_t queue_id) noexcept;

  /// Whether a lease was taken since it was last asked.
  [[nodiscard]] bool take_visited() noexcept {
    return visited_.load(std::memory_order_relaxed) && visited_.exchange(false, std::memory_order_relaxed);
  }

  /// The storage; null: none.
  [[nodiscard]] Replica const* behind() const noexcept {
    return (word_.load(std::memory_order_acquire) & (letting_go | let_go)) != 0 ? nullptr : replica_.get();
  }
  [[nodiscard]] std::uint64_t queue_id() const noexcept { return queue_id_; }

  /// While closed: the buffer has done with the storage, which goes with its last lease.
  void detach() noexcept;

  /// The buffer is destroyed: this goes with its last lease.
  void abandon() noexcept;

 private:
  static constexpr std::uint64_t is_open = std::uint64_t{1} << 63U;
  static constexpr std::uint64_t abandoned = std::uint64_t{1} << 62U;
  static constexpr std::uint64_t let_go = std::uint64_t{1} << 61U;      ///< the last to leave lets the storage go
  static constexpr std::uint64_t letting_go = std::uint64_t{1} << 60U;  ///< one thread does, alone
  static constexpr std::uint64_t count = letting_go - 1;

  ~FastLease();
  void drop_replica() noexcept;

  std::atomic<std::uint64_t> word_{0};
  std::atomic<bool> visited_{false};
  std::shared_ptr<Replica> replica_;
  std::size_t bytes_ = 0;
  std::uint64_t queue_id_ = 0;
};

}  // namespace unimem::detail
