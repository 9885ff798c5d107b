#include "device/event_watcher.hpp"
#include "core/start_thread.hpp"
#include "device/coroutine_thread.hpp"
#include "device/process_end.hpp"
#include "device/queue_control.hpp"

#include <algorithm>
#include <cstdlib>
#include <iterator>

namespace unimem::detail {
namespace {

using std::chrono::microseconds;

/// Shorter would not be noticed beside what the sleep itself takes; longer would be a good part of a small copy.
constexpr microseconds shortest_pause{20};
/// A thousand looks a second cost next to nothing, and what has run for milliseconds may end a millisecond late.
constexpr microseconds longest_pause{1000};

void become_still() {
  if (is_forked_child()) return;  // the locks may be held by threads that are not here
  auto const until = std::chrono::steady_clock::now() + exit_patience;
  CoroutineThread::instance().shut_down();  // nor do coroutines use a driver that has gone
  EventWatcher::instance().shut_down();
  CoroutineThread::instance().await_quiet(until);
  EventWatcher::instance().await_quiet(until);
}

}  // namespace

EventWatcher& EventWatcher::instance() {
  static auto& instance = *new EventWatcher;
  return instance;
}

EventWatcher::EventWatcher() : shutting_down_(!enlist(*this)) {}

bool EventWatcher::start() {
  Lock const lock{mutex_};
  if (shutting_down_) return false;
  if (!thread_.joinable()) thread_ = start_thread("asking drivers for the end of work", [this] { work(); });
  return true;
}

void EventWatcher::add(QueueControl& control) {
  // Drivers that are polled take themselves down in exit handlers, registered by now. This one comes before them, the
  // one all workers share may not.
  [[maybe_unused]] static bool const registered = std::atexit(become_still) == 0;
  std::list<QueueControl*> newcomer{&control};
  Lock const lock{mutex_};
  polled_.splice(polled_.end(), newcomer);
}

void EventWatcher::poll_soon() noexcept {
  {
    Lock const lock{mutex_};
    pause_ = shortest_pause;
    next_poll_ = Clock::now();
  }
  wake_.notify_one();
}

void EventWatcher::shut_down() noexcept {
  Lock const lock{mutex_};
  shutting_down_ = true;
}

void EventWatcher::await_quiet(Clock::time_point until) noexcept {
  Lock lock{mutex_};
  quiet_.wait_until(lock, until, [&] { return !busy_; });
}

void EventWatcher::work() noexcept {
  Lock lock{mutex_};
  while (true) {
    if (shutting_down_ || polled_.empty()) {
      wake_.wait(lock);
    } else if (Clock::now() < next_poll_) {
      wake_.wait_until(lock, next_poll_);
    } else {
      poll_all(lock);
    }
  }
}

void EventWatcher::poll_all(Lock& lock) noexcept {
  // Before asking: who begins to await meanwhile, and has it asked for soon, is not to be overruled.
  pause_ = std::min<Clock::duration>(2 * pause_, longest_pause);
  next_poll_ = Clock::now() + pause_;
  std::list<QueueControl*> asked;
  asked.swap(polled_);
  busy_ = true;
  lock.unlock();
  bool any_ended = false;
  for (auto at = asked.begin(); at != asked.end();) {
    auto& control = **at;
    auto const before = control.completed();
    at = control.poll_if_awaited() ? std::next(at) : asked.erase(at);
    any_ended = any_ended || control.completed() != before;
  }
  lock.lock();
  polled_.splice(polled_.end(), asked);
  if (any_ended) {  // something moves, and more may follow soon
    pause_ = shortest_pause;
    next_poll_ = std::min(next_poll_, Clock::now() + pause_);
  }
  busy_ = false;
  if (shutting_down_) quiet_.notify_all();
}

}  // namespace unimem::detail
