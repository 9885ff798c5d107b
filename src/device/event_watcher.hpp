#pragma once

#include "device/continuations.hpp"
#include "device/worker_threads.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <thread>

namespace unimem::detail {

class QueueControl;

/// The one thread on which coroutines that await events go on.
///
/// One thread for all queues, so that what runs there needs no lock against its like, and so that a process pays for
/// one. It never waits for an event, or the slowest would decide for all: a queue whose work ends under the library's
/// eyes says so itself (`QueueControl::finish`), and a queue that only tells when asked is asked in turn, at once when
/// a coroutine begins to await it, then with pauses that double up to a millisecond while nothing ends. While none
/// awaits anything, the thread sleeps without a limit.
///
/// Resuming and asking take turns by the clock, so that neither coroutines without end nor queues without end starve
/// the other.
///
/// Locks: a queue's submission → its pending work → its control block → this one's, which is held for moments only and
/// never while anything else is called. Thread-safe.
class EventWatcher final : public BackgroundWorker {
 public:
  /// Never destroyed: coroutines are destroyed by destructors of static objects, in any order.
  [[nodiscard]] static EventWatcher& instance();

  /// Starts the thread if it does not run yet. Returns false when the process is ending: no coroutine is resumed any
  /// more.
  [[nodiscard]] bool start();

  /// Whether the caller is a coroutine that was resumed here.
  [[nodiscard]] bool is_this_thread() noexcept;

  /// Has those of `awaiting` with tickets up to `last` resumed. The caller holds the lock that guards `awaiting`.
  void resume(Continuations& awaiting, std::uint64_t last) noexcept;

  /// Takes a coroutine out of the line it is in, if any. The caller holds the lock of the control block it awaits.
  void unlink(Continuation& continuation) noexcept;

  /// Polls `control` from now on, until it says that no coroutine awaits it. It has not been added, or has said so
  /// since.
  void add(QueueControl& control);

  /// Polls next, whatever the pause has grown to.
  void poll_soon() noexcept;

  void shut_down() noexcept override;
  void await_quiet(std::chrono::steady_clock::time_point until) noexcept override;

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  EventWatcher();

  void work() noexcept;
  // Both release the lock meanwhile.
  void resume_first(Lock& lock) noexcept;
  void poll_all(Lock& lock) noexcept;
  void end_turn() noexcept;

  std::mutex mutex_;
  std::condition_variable wake_;   ///< for the thread
  std::condition_variable quiet_;  ///< for the thread that ends the process
  Continuations ready_;
  std::list<QueueControl*> polled_;  ///< a list, because its nodes move without being allocated
  Clock::time_point next_poll_{};
  Clock::duration pause_{};
  std::thread thread_;
  bool busy_ = false;  ///< the thread is in a coroutine or in a driver
  bool shutting_down_;
};

}  // namespace unimem::detail
