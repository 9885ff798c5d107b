#pragma once

#include "device/continuations.hpp"
#include "device/worker_threads.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace unimem::detail {

/// The one thread on which coroutines that await events go on.
///
/// One thread for all queues, so that what runs there needs no lock against its like, and so that a process pays for
/// one. What runs there is a user's, and may wait for anything: the library has nothing to do here that other work
/// waits for.
///
/// Locks: a queue's submission → its pending work → its control block → this one's, which is held for moments only and
/// never while anything else is called. Thread-safe.
class CoroutineThread final : public BackgroundWorker {
 public:
  /// Never destroyed: coroutines are destroyed by destructors of static objects, in any order.
  [[nodiscard]] static CoroutineThread& instance();

  /// Starts the thread if it does not run yet. Returns false when the process is ending: no coroutine is resumed any
  /// more.
  [[nodiscard]] bool start();

  /// Whether the caller is a coroutine that was resumed here.
  [[nodiscard]] bool is_this_thread() noexcept;

  /// Has those of `awaiting` with tickets up to `last` resumed. The caller holds the lock that guards `awaiting`.
  void resume(Continuations& awaiting, std::uint64_t last) noexcept;

  /// Takes a coroutine out of the line it is in, if any. The caller holds the lock of the control block it awaits.
  void unlink(Continuation& continuation) noexcept;

  void shut_down() noexcept override;
  void await_quiet(std::chrono::steady_clock::time_point until) noexcept override;

 private:
  CoroutineThread();

  void work() noexcept;

  std::mutex mutex_;
  std::condition_variable wake_;   ///< for the thread
  std::condition_variable quiet_;  ///< for the thread that ends the process
  Continuations ready_;
  std::thread thread_;
  bool busy_ = false;  ///< the thread is in a coroutine
  bool shutting_down_;
};

}  // namespace unimem::detail
