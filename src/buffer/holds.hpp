#pragma once

#include <atomic>
#include <thread>

namespace unimem::detail {

class FastLease;

/// What keeps the memory of a replica where it is: leases, addresses that were given away, and running work that may
/// keep its address. Leases and work come and go without the buffer's lock; addresses are given away with it.
class Holds {
 public:
  /// Relaxed: under the buffer's lock, as is who asks whether there are any.
  void add_lease() noexcept { leases_.fetch_add(1, std::memory_order_relaxed); }
  /// Release: what the lease's holder did is visible to a thread that sees the count fall.
  void end_lease() noexcept { leases_.fetch_sub(1, std::memory_order_release); }
  [[nodiscard]] bool leased() const noexcept;
  /// Where leases come in without the lock, if there is such a place.
  void set_fast_lease(FastLease const* fast_lease) noexcept {
    fast_lease_.store(fast_lease, std::memory_order_release);
  }

  /// Work that may keep the address runs on this thread.
  void begin_work() noexcept {
    works_on_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    // Release: a thread that sees the work (`has_running_work`) sees whose it is, and not its own of before.
    works_.fetch_add(1, std::memory_order_release);
  }
  /// Release: what the work did is visible to a thread that sees the count fall.
  void end_work() noexcept { works_.fetch_sub(1, std::memory_order_release); }
  [[nodiscard]] bool has_running_work() const noexcept { return works_.load(std::memory_order_acquire) != 0; }
  /// The thread of the latest such work. Relaxed: asked behind `has_running_work`, which acquires it.
  [[nodiscard]] std::thread::id works_on() const noexcept { return works_on_.load(std::memory_order_relaxed); }

  /// The host has been given an address that it may keep, and write through if it is `for_writing`.
  void mark_exported(bool for_writing) noexcept {
    exported_ = true;
    exported_for_writing_ = exported_for_writing_ || for_writing;
  }
  void forget_exports() noexcept { exported_ = exported_for_writing_ = false; }
  [[nodiscard]] bool exported() const noexcept { return exported_; }
  [[nodiscard]] bool exported_for_writing() const noexcept { return exported_for_writing_; }
  /// Whether code may be writing here, by an address, to bytes that are current elsewhere, too.
  [[nodiscard]] bool may_be_written_by_address() const noexcept { return exported_for_writing_ || leased(); }

 private:
  bool exported_ = false;
  bool exported_for_writing_ = false;
  std::atomic<unsigned> leases_{0};  ///< but for those of the fast lease
  std::atomic<unsigned> works_{0};   ///< that run, and may keep the address
  std::atomic<std::thread::id> works_on_{};
  std::atomic<FastLease const*> fast_lease_{nullptr};  ///< a lease that ends may take it away
};

}  // namespace unimem::detail
