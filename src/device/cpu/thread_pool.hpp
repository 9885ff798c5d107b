#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace unimem::detail {

/// A few threads that share the pieces of a loop.
///
/// Our own, and not OpenMP or TBB, because it is small, brings no run-time dependency, and ThreadSanitizer sees every
/// hand-over in it. Pieces are claimed one at a time from a counter, which balances uneven work well enough at a few
/// pieces a thread; work stealing would win only with nested parallelism, which runs inline here.
///
/// Thread-safe: several threads may run loops at once, and the pool's threads help the oldest first. Threads start at
/// the first loop that has more than one piece.
class ThreadPool {
 public:
  /// A pool for loops over `threads` threads (at least 1), the caller's own being one of them.
  explicit ThreadPool(std::size_t threads);
  ThreadPool(ThreadPool const&) = delete;
  ThreadPool& operator=(ThreadPool const&) = delete;

  /// Waits for no thread: no loop may be running.
  ~ThreadPool();

  /// The pool that kernels of cpu and sim run on, one thread for each core this process may use. Never destroyed, so
  /// that work that runs while the process ends still has it.
  [[nodiscard]] static ThreadPool& shared();

  [[nodiscard]] std::size_t threads() const noexcept { return threads_; }

  /// Calls `piece(i)` once for each i in [0, count), from several threads at once, and returns when all have returned.
  /// If some throw, the first exception is thrown here and pieces not begun are skipped. Called from within a piece,
  /// runs inline.
  void parallel_for(std::size_t count, std::function<void(std::size_t)> const& piece);

 private:
  struct Loop;

  void start_threads();
  void work();
  /// Runs pieces of `loop` until none is left to begin.
  static void take_part(Loop& loop) noexcept;

  std::size_t const threads_;
  std::mutex mutex_;
  std::condition_variable work_;   ///< for the pool's threads: a loop has pieces left
  std::condition_variable ended_;  ///< for callers: a helper has left a loop
  std::vector<Loop*> loops_;       ///< with pieces left, oldest first
  std::vector<std::thread> workers_;
  bool closing_ = false;
  bool told_ = false;  ///< that there are fewer threads than there should be
};

}  // namespace unimem::detail
