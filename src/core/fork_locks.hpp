#pragma once

#include "core/fork.hpp"

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

namespace unimem::detail {

/// A lock for a few instructions at a time, which an uncontended owner takes with one atomic exchange. A thread that
/// finds it taken lets others run before long. In a forked child that inherits it while a thread of the parent's holds
/// it, it is never free again: the first thread that has waited for long gives it up, and taking it fails from then on
/// instead of hanging.
class SpinLock {
 public:
  [[nodiscard]] bool lock() noexcept {
    unsigned tries = 0;
    // Acquire, and release in `unlock`: as of any lock. Whether it was given up is a word for itself, which only a
    // forked child writes.
    while (held_.exchange(true, std::memory_order_acquire)) {
      while (held_.load(std::memory_order_relaxed)) {
        if (++tries < 64) continue;
        if (tries > patience && made_.inherited()) given_up_.store(true, std::memory_order_relaxed);
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

  MadeHere made_{};
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

/// A mutex that a forked child may take though its parent made it, if it was free at the fork. Where a thread of the
/// parent's held it, it is never free again: taking it fails in the child instead of hanging.
class ForkableMutex {
 public:
  [[nodiscard]] bool lock() noexcept {
    if (!mutex_.try_lock() && !wait()) return false;
    taken();
    return true;
  }
  [[nodiscard]] bool try_lock() noexcept {
    if (!mutex_.try_lock()) return false;
    taken();
    return true;
  }
  void unlock() noexcept {
    taken_in_.store(free, std::memory_order_relaxed);
    mutex_.unlock();
  }

  /// Whether it was held by a thread that is not in this child. Not to be asked by its holder.
  [[nodiscard]] bool is_lost() noexcept {
    if (Fork::depth() == 0) return false;
    for (unsigned silent = 0; !mutex_.try_lock();) {
      if (is_left_behind(silent)) return true;
      if (taken_in_.load(std::memory_order_relaxed) == this_process()) return false;
    }
    mutex_.unlock();
    return false;
  }

 private:
  static constexpr unsigned free = 0, lost = ~0U;
  static constexpr unsigned patience = 100;

  [[nodiscard]] static unsigned this_process() noexcept { return Fork::depth() + 1; }
  void taken() noexcept { taken_in_.store(this_process(), std::memory_order_relaxed); }

  /// Of a mutex that was just seen held, whether that is for ever; waits a moment if not. A thread that has just taken
  /// it, or is about to give it back, says nothing for some instructions: if the fork came then, for ever.
  [[nodiscard]] bool is_left_behind(unsigned& silent) noexcept {
    auto const taken_in = taken_in_.load(std::memory_order_relaxed);
    if (taken_in == this_process()) {
      silent = 0;
      std::this_thread::yield();
      return false;
    }
    if (taken_in == free && ++silent <= patience) {
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
      return false;
    }
    taken_in_.store(lost, std::memory_order_relaxed);  // the next one need not wait
    return true;
  }

  [[nodiscard]] bool wait() noexcept {
    if (Fork::depth() == 0) {
      mutex_.lock();
      return true;
    }
    for (unsigned silent = 0; !mutex_.try_lock();) {
      if (is_left_behind(silent)) return false;
    }
    return true;
  }

  std::mutex mutex_;
  std::atomic<unsigned> taken_in_{free};  ///< one more than the forks of the process whose thread has it
};

}  // namespace unimem::detail
