#pragma once

#include <unimem/core/export.hpp>

#include <coroutine>
#include <cstdint>

namespace unimem {

namespace detail {

class QueueControl;

/// A suspended coroutine's place in the line of those whose work has not ended. It lies in the coroutine's own frame,
/// which stays where it is, so awaiting allocates nothing and resuming cannot fail.
struct Continuation {
  std::coroutine_handle<> coroutine;
  /// In place of a coroutine that is resumed: called where the end of the work is noticed, with locks held.
  void (*here)(Continuation&) noexcept = nullptr;
  std::uint64_t ticket = 0;
  Continuation* previous = nullptr;
  Continuation* next = nullptr;
};

}  // namespace detail

/// What `co_await event` does: goes on at once, without suspending, if the work has ended; otherwise suspends the
/// coroutine and resumes it when the work has ended. Either way `co_await` throws the work's error if it failed, as
/// `Event::wait` does.
///
/// **Where.** All coroutines are resumed on one thread of the library, the same for every queue and device, started by
/// the first one that suspends (std::system_error if it cannot be). No lock is held there, so a coroutine may use
/// anything of the library, also `wait`; but while it runs, no other is resumed: it hands long work elsewhere. An
/// exception that leaves the coroutine there ends the program, as it would on any thread.
///
/// **Order.** Coroutines that await one queue are resumed in the order of their tickets, and of their coming where
/// these are equal. Between queues there is no order, and work that takes long does not delay those that await another
/// queue.
///
/// **Destroying** a coroutine that is suspended here withdraws it. As for every coroutine, it must not be resumed at
/// the same time: do it while the work cannot end, or on the library's thread, which resumes no other coroutine then.
///
/// **At exit.** From the moment `exit` runs its handlers, no coroutine is resumed any more: one that has not run by
/// then never does. One that is running on the library's thread stops for good at its next `co_await` of pending work,
/// and is waited for, a second at most, before static objects are destroyed. So no thread may wait for a suspended
/// coroutine in a destructor of a static object; destroying it there is fine. A `co_await` on any other thread waits
/// where it stands from then on, as `Event::wait` does.
///
/// **In a forked child** the thread and the work stayed in the parent: a suspended coroutine is never resumed there, it
/// may be destroyed, and `co_await` on work that had not ended throws UnsupportedOperation.
///
/// Cost: two locks of its own and, if the queue is awaited already, a step for each coroutine that awaits a later
/// ticket of it.
class UNIMEM_API EventAwaiter {
 public:
  EventAwaiter(detail::QueueControl* control, std::uint64_t ticket) noexcept : control_(control) {
    continuation_.ticket = ticket;
  }
  EventAwaiter(EventAwaiter const&) = delete;
  EventAwaiter& operator=(EventAwaiter const&) = delete;
  ~EventAwaiter();

  [[nodiscard]] bool await_ready() const noexcept;
  [[nodiscard]] bool await_suspend(std::coroutine_handle<> coroutine);
  void await_resume();

 private:
  detail::QueueControl* control_;
  detail::Continuation continuation_;
  bool suspended_ = false;  ///< written by the coroutine alone: before it suspends, and after it was resumed
};

}  // namespace unimem
