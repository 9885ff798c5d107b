#include <unimem/device/wait_watch.hpp>

#include "device/watched_wait.hpp"

#include <fmt/format.h>

#include <atomic>

namespace unimem {
namespace {

constinit std::atomic<WaitWatch const*> the_watch{nullptr};

WaitWatch const* watch_of_this_thread() noexcept {
  auto const* const watch = the_watch.load(std::memory_order_acquire);  // with what it points to
  return watch != nullptr && watch->watches() ? watch : nullptr;
}

}  // namespace

WaitInterrupted::WaitInterrupted(std::string_view what) : RuntimeError(fmt::format("{}: interrupted", what)) {}
WaitInterrupted::~WaitInterrupted() = default;

void set_wait_watch(WaitWatch const* watch) noexcept {
  the_watch.store(watch, std::memory_order_release);  // with what it points to
}

detail::WatchedWait::WatchedWait(std::string_view what, Watched watched) noexcept
    : what_(what),
      watch_(watched == Watched::yes ? watch_of_this_thread() : nullptr),
      next_(watch_ != nullptr ? Clock::now() + step : Clock::time_point::max()) {}

bool detail::is_watched() noexcept {
  return watch_of_this_thread() != nullptr;
}

void detail::WatchedWait::look() {
  if (!watched() || Clock::now() < next_) return;
  if (watch_->wants_end()) throw WaitInterrupted(what_);
  next_ = Clock::now() + step;
}

void detail::wait_watched(Event event) {
  if (!is_in_work() && is_watched()) await_end(event);
}

}  // namespace unimem
