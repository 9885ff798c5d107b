#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/event.hpp>

#include <atomic>
#include <chrono>
#include <thread>

namespace unimem {

/// Blocks until the event's work has ended, well or badly, or until that moment has come; whether it has ended. For
/// callers that have to look at something else now and then, such as a signal or a request to stop: `while
/// (!wait_until(event, soon())) …`, and then `event.wait()`, which throws the work's error.
///
/// As with `Event::wait`, a thread that waits for work on the host carries it out itself if no other thread does: then
/// it comes back when that is done, however long it takes. In a forked child, where no thread carries out the parent's
/// work, it is true at once, and `Event::wait` says so. Thread-safe.
[[nodiscard]] UNIMEM_API bool wait_until(Event event, std::chrono::steady_clock::time_point until) noexcept;

/// Whether waiting for the event would never end, because this thread is in the middle of work that the event's work
/// comes behind, or of that work itself: a host kernel that is about to wait for its own queue. Known of `cpu` and
/// `sim`, where the host carries work out; where work of other queues waits for it in its turn, see `LongWait`.
/// Thread-safe.
[[nodiscard]] UNIMEM_API bool waits_for_itself(Event event) noexcept;

/// Blocks until the event's work has ended, well or badly, like `Event::wait`, without its error. Throws
/// UnsupportedOperation where this thread is in the middle of work and would wait for ever: for the work itself, for
/// what comes behind it, or for work that waits for it in its turn. Thread-safe.
UNIMEM_API void wait_unless_endless(Event event);

/// On the stack of a thread that waits however long it takes, for an event or for a lock that another thread holds. By
/// these, threads that are about to wait for each other find each other. What work needs before it begins is not known
/// of in this way.
class UNIMEM_API LongWait {
 public:
  explicit LongWait(Event event) noexcept;
  /// For a lock: `holder` is the thread that holds it, as it tells; none while it does not. Lives as long as this.
  explicit LongWait(std::atomic<std::thread::id> const& holder) noexcept;
  LongWait(LongWait const&) = delete;
  LongWait& operator=(LongWait const&) = delete;
  ~LongWait();

  /// Whether it would never end, because the work that is waited for, or what it comes behind, or the holder of the
  /// lock, waits for another, and so on until one waits for the work of this very thread. Of threads that wait for each
  /// other one is told so, which then counts as waiting no longer. It may come about later, too: a waiting thread asks
  /// now and then. Takes as many steps as there are waits.
  [[nodiscard]] bool never_ends() noexcept;

 private:
  void enter() noexcept;
  void leave() noexcept;
  /// The thread that this waits for; none where the wait is over, or no thread is known to be in its way.
  [[nodiscard]] std::thread::id awaited() const noexcept;

  Event event_;
  std::atomic<std::thread::id> const* holder_ = nullptr;  ///< of a lock; null: the event is waited for
  std::thread::id thread_;
  LongWait* previous_ = nullptr;
  LongWait* next_ = nullptr;
  bool listed_ = false;
};

}  // namespace unimem
