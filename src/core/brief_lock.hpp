#pragma once

#include <atomic>

namespace unimem::detail {

/// A lock held for a few instructions, never over a system call or user code. A forked child takes none of its
/// parent's.
class BriefLock {
 public:
  // Acquire and release: what one holder did is visible to the next.
  void lock() noexcept {
    if (held_.exchange(true, std::memory_order_acquire)) [[unlikely]]
      wait();
  }
  void unlock() noexcept { held_.store(false, std::memory_order_release); }

 private:
  void wait() noexcept;

  std::atomic<bool> held_{false};
};

}  // namespace unimem::detail
