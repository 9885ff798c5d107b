#pragma once

#include <unimem/device/detail/event_awaiter.hpp>

#include <cstdint>
#include <utility>

namespace unimem::detail {

/// Suspended coroutines in line, linked through themselves: nothing is allocated, and any of them leaves in constant
/// time without knowing which line it is in.
///
/// Not thread-safe: guarded by the owner of the line.
class Continuations {
 public:
  Continuations() noexcept { end_.previous = end_.next = &end_; }
  Continuations(Continuations const&) = delete;
  Continuations& operator=(Continuations const&) = delete;
  ~Continuations() = default;

  [[nodiscard]] bool empty() const noexcept { return end_.next == &end_; }

  /// Behind all with the same or a lower ticket. Searched from the back: later coroutines mostly await later work.
  void insert(Continuation& continuation) noexcept {
    auto* before = end_.previous;
    while (before != &end_ && before->ticket > continuation.ticket) before = before->previous;
    link_behind(*before, continuation);
  }

  /// Moves those of `other` with tickets up to `last` to the end of this line; returns whether there were any.
  [[nodiscard]] bool append_from(Continuations& other, std::uint64_t last) noexcept {
    bool any = false;
    while (!other.empty() && other.end_.next->ticket <= last) {
      auto& first = *other.end_.next;
      unlink(first);
      link_behind(*end_.previous, first);
      any = true;
    }
    return any;
  }

  /// Takes those with tickets up to `last` out of the line that are told where the end of work is noticed, and tells
  /// them.
  void tell_here(std::uint64_t last) noexcept {
    for (auto* one = end_.next; one != &end_ && one->ticket <= last;) {
      auto& told = *std::exchange(one, one->next);
      if (told.here == nullptr) continue;
      unlink(told);
      told.here(told);
    }
  }

  /// The first, no longer in line. There is one.
  [[nodiscard]] Continuation& take_first() noexcept {
    auto& first = *end_.next;
    unlink(first);
    return first;
  }

  /// Takes it out of the line it is in, if it is in any.
  static void unlink(Continuation& continuation) noexcept {
    if (continuation.next == nullptr) return;
    continuation.previous->next = continuation.next;
    continuation.next->previous = continuation.previous;
    continuation.previous = continuation.next = nullptr;
  }

 private:
  static void link_behind(Continuation& before, Continuation& continuation) noexcept {
    continuation.previous = &before;
    continuation.next = before.next;
    before.next->previous = &continuation;
    before.next = &continuation;
  }

  Continuation end_;  ///< closes the circle, so that no link is ever null in line
};

}  // namespace unimem::detail
