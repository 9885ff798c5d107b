#pragma once

#include <unimem/device/detail/blocking_wait.hpp>

#include "core/fork_locks.hpp"

#include <atomic>
#include <thread>

namespace unimem::detail {

struct BufferTerms;

/// The lock of a buffer, and the count of the operations that hold it or wait for it.
///
/// Thread-safe.
class BufferLock {
 public:
  /// Throws UnsupportedOperation in a forked child where a thread of the parent's holds it, and in the middle of work
  /// that the lock's holder waits for; WaitInterrupted where the process's WaitWatch ends it, if it may. `terms`: of
  /// the buffer, for messages.
  void lock(BufferTerms const& terms, Watched watched = Watched::yes) {
    if (!mutex_.try_lock()) [[unlikely]]
      lock_contended(terms, watched);
  }
  [[nodiscard]] bool try_lock() noexcept { return mutex_.try_lock(); }
  void unlock() noexcept { mutex_.unlock(); }
  /// Whether it is held for good, by a thread that is not in this forked child.
  [[nodiscard]] bool is_lost() noexcept { return mutex_.is_lost(); }

  // Relaxed: a count that tells whether to try the lock, which orders what is done then. A thread sees its own for
  // sure.

  /// The manager may know the buffer from now on: operations are counted. What is in progress counts at once.
  void count_operations() noexcept {
    if (!counts_.exchange(true, std::memory_order_relaxed)) operations_.fetch_add(1, std::memory_order_relaxed);
  }
  /// The same before there is any operation.
  void count_operations_to_come() noexcept { counts_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool counts() const noexcept { return counts_.load(std::memory_order_relaxed); }
  void operation_begins() noexcept { operations_.fetch_add(1, std::memory_order_relaxed); }
  void operation_ends() noexcept { operations_.fetch_sub(1, std::memory_order_relaxed); }
  /// Whether an operation is in progress, which may be this very thread's: trying a lock that one holds is undefined.
  [[nodiscard]] bool has_operations() const noexcept { return operations_.load(std::memory_order_acquire) != 0; }

  /// Held for an operation, by this thread.
  void hold_here() noexcept { holder_.store(std::this_thread::get_id(), std::memory_order_relaxed); }
  void hold_no_more() noexcept { holder_.store({}, std::memory_order_relaxed); }
  /// A thread knows its own for sure.
  [[nodiscard]] std::thread::id holder() const noexcept { return holder_.load(std::memory_order_relaxed); }

 private:
  void lock_contended(BufferTerms const& terms, Watched watched);

  ForkableMutex mutex_;
  std::atomic<unsigned> operations_{0};    ///< in progress: their buffer must not be reclaimed, nor its lock tried
  std::atomic<bool> counts_{false};        ///< from when the manager may know it on: before, it is not asked
  std::atomic<std::thread::id> holder_{};  ///< of the lock, if it is held for an operation
};

/// Holds the lock of a buffer for a look at what it guards.
class BufferLook {
 public:
  BufferLook(BufferLock& lock, BufferTerms const& terms) : lock_(lock) { lock_.lock(terms); }
  BufferLook(BufferLook const&) = delete;
  BufferLook& operator=(BufferLook const&) = delete;
  ~BufferLook() { lock_.unlock(); }

 private:
  BufferLock& lock_;
};

}  // namespace unimem::detail
