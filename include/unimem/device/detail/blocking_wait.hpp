#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/event.hpp>

#include <atomic>
#include <chrono>
#include <thread>

namespace unimem::detail {

/// Whether this thread is in the middle of work: of a kernel in host form, or of another task of a queue.
[[nodiscard]] UNIMEM_API bool is_in_work() noexcept;

/// Whether a WaitWatch may end a wait: not where what was begun has to be finished.
enum class Watched : bool { no, yes };

struct WaitTerms {
  /// When the wait is over in any case. Such a wait is part of no deadlock but an evident one.
  std::chrono::steady_clock::time_point limit = std::chrono::steady_clock::time_point::max();
  /// The thread looks at something else meanwhile, such as a signal.
  bool looks_out = false;
};

/// A wait for the end of work, or for a lock that another thread holds, on the stack of the waiting thread. Together
/// they are the process's wait-for graph: a thread waits for the thread that carries out the awaited work, or holds the
/// lock. A deadlock is a circle in it that leads back to work which this thread is in the middle of; a thread outside
/// of work is never refused its wait, since every circle has a thread in work. What work needs before it begins is in
/// the graph once a thread has taken the work up.
class UNIMEM_API BlockingWait {
 public:
  using Clock = std::chrono::steady_clock;

  /// How long a circle that closes during the wait may stay undetected, and how long what the thread looks at may have
  /// to wait: too short to notice, and looking costs nothing at this rate.
  static constexpr std::chrono::milliseconds detection_step{10}, look_step{50};

  explicit BlockingWait(Event event, WaitTerms terms = {}) noexcept;
  /// For a lock: `holder` is the thread that holds it, as that thread tells; none while it does not. Lives as long as
  /// this.
  explicit BlockingWait(std::atomic<std::thread::id> const& holder, WaitTerms terms = {}) noexcept;
  BlockingWait(BlockingWait const&) = delete;
  BlockingWait& operator=(BlockingWait const&) = delete;
  ~BlockingWait();

  /// Waits in steps. `block_until(moment)` blocks the thread until the wait is over or that moment has come, and
  /// returns whether it is over; what it throws ends the wait. False if the wait is a deadlock, in which case
  /// `block_until` may never have been called, or if its limit has come.
  template <class BlockUntil>
  bool run(BlockUntil const& block_until) {
    while (!is_deadlocked()) {
      auto const until = end_of_step();
      if (block_until(until)) return true;
      if (until == terms_.limit) return false;
    }
    return false;
  }

  /// Whether the wait would never end: this thread is in the middle of the awaited work or of what that comes behind,
  /// or the thread that is waited for waits for another, and so on until one waits for this thread's work. Of the
  /// threads in a circle one is told so, and is then no longer in the graph. Takes as many steps as there are waits.
  [[nodiscard]] bool is_deadlocked() noexcept;

  /// Throws UnsupportedOperation if the wait, for work, was found to be a deadlock.
  void refuse_deadlock() const;

 private:
  enum class Deadlock : unsigned char { none, with_own_work, with_others };

  void enter() noexcept;
  void leave() noexcept;
  /// The thread that this waits for; none where the wait is over, or no thread is known to be in its way.
  [[nodiscard]] std::thread::id awaited() const noexcept;
  /// When to look for a deadlock, or at something else, the next time.
  [[nodiscard]] Clock::time_point end_of_step() const noexcept;

  Event event_;
  std::atomic<std::thread::id> const* holder_ = nullptr;  ///< of a lock; null: the event is waited for
  WaitTerms terms_;
  std::thread::id thread_;
  BlockingWait* previous_ = nullptr;
  BlockingWait* next_ = nullptr;
  Deadlock deadlock_ = Deadlock::none;
  bool recorded_ = false;  ///< in the graph
};

/// Waits for the end of the event's work, well or badly, as `block_until` does it; whether that has come before the
/// limit. Throws UnsupportedOperation where the wait is a deadlock.
template <class BlockUntil>
bool await_end(Event event, WaitTerms terms, BlockUntil const& block_until) {
  BlockingWait wait{event, terms};
  bool const ended = wait.run(block_until);
  wait.refuse_deadlock();
  return ended;
}

/// The same by blocking the thread, for however long it takes. In a watched thread, but in the middle of work, it
/// throws WaitInterrupted where an end is wanted. The work's error stays with it. Thread-safe.
UNIMEM_API void await_end(Event event, Watched watched = Watched::yes);

}  // namespace unimem::detail
