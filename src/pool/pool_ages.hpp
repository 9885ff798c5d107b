#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

namespace unimem::detail {

/// When what a pool has cached is too old for it, and when it is next to be looked at for that.
///
/// Any thread may ask `now`, `expiry` and `parked_may_be_due`, and notes a look; the rest is under the pool's lock.
class PoolAges {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// `interval` 0: age does not matter. `clock` empty: the steady one.
  PoolAges(std::chrono::nanoseconds interval, std::function<Time()> clock)
      : interval_(interval), clock_(std::move(clock)) {}

  [[nodiscard]] bool matter() const noexcept { return interval_.count() != 0; }

  /// The clock's beginning when age does not matter. Calls the user's clock.
  [[nodiscard]] Time now() const {
    if (!matter()) return {};
    return clock_ ? clock_() : std::chrono::steady_clock::now();
  }
  /// The moment before which a cached block is too old.
  [[nodiscard]] Time expiry(Time now) const noexcept { return matter() ? now - interval_ : Time::min(); }

  /// Where ages matter releases are numbered by their time: what threads that know nothing of each other have numbered
  /// is in order then.
  [[nodiscard]] static std::uint64_t number_at(Time time) noexcept {
    return static_cast<std::uint64_t>(std::max<std::chrono::nanoseconds>(time.time_since_epoch(), {}).count());
  }

  /// Whether something that is parked may be too old. One load. Relaxed: a time alone; two that look at once do it
  /// twice.
  [[nodiscard]] bool parked_may_be_due(Time now) const noexcept {
    if (!matter()) return false;
    auto const since = young_since_.load(std::memory_order_relaxed);
    return since == Time::min() || now - since > interval_;
  }
  /// A thread looks at all ages: one is enough. And what it left has been there since `oldest` at the longest.
  void begin_look(Time now) noexcept { young_since_.store(now, std::memory_order_relaxed); }
  void end_look(Time now, Time oldest) noexcept {
    // Blocks of many ages are not looked at one by one: that interrupts all threads.
    auto const often = interval_ - interval_ / 8;
    young_since_.store(std::max(oldest, now - often), std::memory_order_relaxed);
  }

  /// Whether idle pages are to be looked at, and since when they have not been.
  [[nodiscard]] bool pages_are_due(Time now) const noexcept { return matter() && now - idle_since_ >= interval_; }
  void pages_looked_at(Time now) noexcept { idle_since_ = now; }
  [[nodiscard]] Time idle_since() const noexcept { return idle_since_; }

 private:
  std::chrono::nanoseconds const interval_;
  std::function<Time()> const clock_;
  std::atomic<Time> young_since_{Time::min()};  ///< nothing parked is due until an interval after this; least: unknown
  Time idle_since_{};
};

}  // namespace unimem::detail
