#pragma once

#include <unimem/device/detail/blocking_wait.hpp>
#include <unimem/device/event.hpp>
#include <unimem/device/wait_watch.hpp>

#include <chrono>
#include <string_view>

namespace unimem::detail {

/// Whether the process's WaitWatch may end waits of this thread.
[[nodiscard]] bool is_watched() noexcept;

/// On the stack of a thread that waits where the process's WaitWatch may end it. Such a wait goes on in steps, with a
/// `look` after each.
class WatchedWait {
 public:
  using Clock = BlockingWait::Clock;
  static constexpr auto step = BlockingWait::look_step;

  /// `what` the thread is doing, for the error.
  explicit WatchedWait(std::string_view what, Watched watched = Watched::yes) noexcept;

  /// As `is_watched`; where it is not, `look` does nothing.
  [[nodiscard]] bool watched() const noexcept { return watch_ != nullptr; }
  /// When to look next.
  [[nodiscard]] Clock::time_point next() const noexcept { return next_; }
  /// Throws WaitInterrupted if it is time to look, and an end is wanted.
  void look();

 private:
  std::string_view what_;
  WaitWatch const* watch_;
  Clock::time_point next_;
};

/// As `await_end` in a watched thread; elsewhere, and in the middle of work, returns at once. Before what waits for the
/// event with more at stake.
void wait_watched(Event event);

}  // namespace unimem::detail
