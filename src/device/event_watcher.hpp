#pragma once

#include "device/worker_threads.hpp"

#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

namespace unimem::detail {

class QueueControl;

/// The one thread that asks drivers whether work has ended that somebody awaits, and does not stand waiting for.
///
/// It never waits for an event, or the slowest would decide for all, and runs no code of users, which may wait for
/// anything. A queue whose work ends under the library's eyes says so itself (`QueueControl::finish`); a queue that
/// only tells when asked is asked in turn, at once when somebody begins to await it, then with pauses that double up to
/// a millisecond while nothing ends. While nobody awaits anything, the thread sleeps without a limit.
///
/// Locks: a queue's submission → its pending work → its control block → this one's, which is held for moments only and
/// never while anything else is called. Thread-safe.
class EventWatcher final : public BackgroundWorker {
 public:
  /// Never destroyed, as the queues' control blocks.
  [[nodiscard]] static EventWatcher& instance();

  /// Starts the thread if it does not run yet. Returns false when the process is ending: nothing is asked any more.
  [[nodiscard]] bool start();

  /// Polls `control` from now on, until it says that nobody awaits it. It has not been added, or has said so since.
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
  /// Releases the lock meanwhile.
  void poll_all(Lock& lock) noexcept;

  std::mutex mutex_;
  std::condition_variable wake_;     ///< for the thread
  std::condition_variable quiet_;    ///< for the thread that ends the process
  std::list<QueueControl*> polled_;  ///< a list, because its nodes move without being allocated
  Clock::time_point next_poll_{};
  Clock::duration pause_{};
  std::thread thread_;
  bool busy_ = false;  ///< the thread is in a driver
  bool shutting_down_;
};

}  // namespace unimem::detail
