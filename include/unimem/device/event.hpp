#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/detail/event_awaiter.hpp>

#include <cstdint>
#include <exception>

namespace unimem {

/// The number of a piece of work within its queue, counting from 1. Work of one queue finishes in the order of its
/// tickets.
using Ticket = std::uint64_t;

/// A moment in a queue: the end of the work with a given ticket. Two words, copied freely; it stays valid when its
/// queue is gone, because the control block it points to lives as long as the process. A default-constructed event is
/// done.
///
/// Thread-safe: any thread may ask or wait, at any time.
class UNIMEM_API Event {
 public:
  constexpr Event() = default;
  constexpr Event(detail::QueueControl* control, Ticket ticket) noexcept : control_(control), ticket_(ticket) {}

  /// Whether the work has ended, well or badly. Never blocks.
  [[nodiscard]] bool ready() const noexcept;

  /// Blocks until the work has ended, then throws its error if it failed. Every waiter gets the error, every time: the
  /// work's own as long as fewer than 256 later failures of its queue have come to be known of, then a DeviceError that
  /// says that it failed. UnsupportedOperation in the middle of work that would wait for itself, for what comes
  /// behind it or for work that waits for it, and in a static object's destructor of work that has itself called
  /// `exit`.
  void wait() const;

  /// Blocks until the work has ended and returns its error, or null.
  [[nodiscard]] std::exception_ptr wait_for_error() const noexcept;

  /// `co_await event;` goes on once the work has ended, and throws its error if it failed. See EventAwaiter for the
  /// thread it goes on in.
  [[nodiscard]] EventAwaiter operator co_await() const noexcept { return {control_, ticket_}; }

  /// The error of work that has ended badly, null if it is still running or ended well. Never blocks.
  [[nodiscard]] std::exception_ptr error() const noexcept;

  /// Whether the work has failed without having begun, since work that it needed had failed: it has touched nothing.
  /// False as well where the backend cannot tell. Never blocks.
  [[nodiscard]] bool never_began() const noexcept;

  /// The id of the queue, never reused; 0 for a default-constructed event.
  [[nodiscard]] std::uint64_t queue_id() const noexcept;
  [[nodiscard]] Ticket ticket() const noexcept { return ticket_; }

  friend constexpr bool operator==(Event, Event) = default;

 private:
  friend class Queue;
  friend class detail::QueueControl;
  detail::QueueControl* control_ = nullptr;
  Ticket ticket_ = 0;
};

}  // namespace unimem
