#pragma once

#include "device/worker_threads.hpp"

#include <atomic>
#include <mutex>
#include <thread>

namespace unimem::detail {

/// A lock for a few instructions at a time, which an uncontended owner takes with one atomic exchange. Who finds it
/// taken lets others run before long. In a forked child whose parent's other thread held it, it is never free again: it
/// is then given up by the first who has waited for long, and taking it fails instead of hanging, for everybody.
class SpinLock {
 public:
  [[nodiscard]] bool lock() noexcept {
    unsigned tries = 0;
    while (held_.exchange(true, std::memory_order_acquire)) {
      while (held_.load(std::memory_order_relaxed)) {
        if (++tries < 64) continue;
        if (tries > patience && is_forked_child()) given_up_.store(true, std::memory_order_relaxed);
        if (given_up_.load(std::memory_order_relaxed)) return false;
        std::this_thread::yield();
      }
    }
    if (!given_up_.load(std::memory_order_relaxed)) [[likely]]
      return true;
    unlock();
    return false;
  }
  void unlock() noexcept { held_.store(false, std::memory_order_release); }

 private:
  static constexpr unsigned patience = 500;

  std::atomic<bool> held_{false};
  std::atomic<bool> given_up_{false};
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

/// Holds a mutex, unless this is a forked child that has waited for long: a thread of its parent may have held it, and
/// will not be back.
class MutexGuard {
 public:
  explicit MutexGuard(std::mutex& mutex) : lock_(mutex, std::defer_lock) {
    if (!is_forked_child()) {
      lock_.lock();
      return;
    }
    for (unsigned tries = 0; !lock_.try_lock() && tries < patience; ++tries) std::this_thread::yield();
  }
  [[nodiscard]] explicit operator bool() const noexcept { return lock_.owns_lock(); }

 private:
  static constexpr unsigned patience = 500;

  std::unique_lock<std::mutex> lock_;
};

}  // namespace unimem::detail
