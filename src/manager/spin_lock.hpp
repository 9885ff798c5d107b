#pragma once

#include "device/worker_threads.hpp"

#include <atomic>
#include <thread>

namespace unimem::detail {

/// A lock for a few instructions at a time, which an uncontended owner takes with one atomic exchange. Who finds it
/// taken lets others run before long. In a forked child whose parent's other thread held it, it is never free again:
/// taking it then fails instead of hanging.
class SpinLock {
 public:
  [[nodiscard]] bool lock() noexcept {
    unsigned tries = 0;
    while (held_.exchange(true, std::memory_order_acquire)) {
      while (held_.load(std::memory_order_relaxed)) {
        if (++tries < 64) continue;
        if (tries > 10'000 && is_forked_child()) return false;
        std::this_thread::yield();
      }
    }
    return true;
  }
  void unlock() noexcept { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

/// Holds one, unless it cannot be had.
class SpinGuard {
 public:
  explicit SpinGuard(SpinLock& lock) noexcept : lock_(lock), held_(lock.lock()) {}
  SpinGuard(SpinGuard const&) = delete;
  SpinGuard& operator=(SpinGuard const&) = delete;
  ~SpinGuard() {
    if (held_) lock_.unlock();
  }
  [[nodiscard]] explicit operator bool() const noexcept { return held_; }

 private:
  SpinLock& lock_;
  bool held_;
};

}  // namespace unimem::detail
