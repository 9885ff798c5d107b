#include "device/event_watcher.hpp"
#include "core/start_thread.hpp"
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
  if (is_forked_child()) return;  // the watcher's lock may be held by the thread that is not here
  EventWatcher::instance().shut_down();
  EventWatcher::instance().await_quiet(std::chrono::steady_clock::now() + exit_patience);
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
  if (!thread_.joinable()) thread_ = start_thread("coroutines that wait for events", [this] { work(); });
  return true;
}

bool EventWatcher::is_this_thread() noexcept {
  Lock const lock{mutex_};
  return thread_.get_id() == std::this_thread::get_id();
}

void EventWatcher::resume(Continuations& awaiting, std::uint64_t last) noexcept {
  {
    Lock const lock{mutex_};
    if (!ready_.append_from(awaiting, last)) return;
  }
  wake_.notify_one();
}

void EventWatcher::unlink(Continuation& continuation) noexcept {
  Lock const lock{mutex_};
  Continuations::unlink(continuation);
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
  if (is_this_thread()) return;  // a coroutine ends the process
  Lock lock{mutex_};
  quiet_.wait_until(lock, until, [&] { return !busy_; });
}

void EventWatcher::work() noexcept {
  Lock lock{mutex_};
  while (true) {
    if (!shutting_down_ && !polled_.empty() && Clock::now() >= next_poll_) {
      poll_all(lock);
    } else if (!shutting_down_ && !ready_.empty()) {
      resume_first(lock);
    } else if (!shutting_down_ && !polled_.empty()) {
      wake_.wait_until(lock, next_poll_);
    } else {
      wake_.wait(lock);
    }
  }
}

void EventWatcher::resume_first(Lock& lock) noexcept {
  auto const coroutine = ready_.take_first().coroutine;
  busy_ = true;
  lock.unlock();
  coroutine.resume();
  lock.lock();
  end_turn();
}

void EventWatcher::poll_all(Lock& lock) noexcept {
  // Before asking: a coroutine that begins to await meanwhile, and has it asked for soon, is not to be overruled.
  pause_ = std::min<Clock::duration>(2 * pause_, longest_pause);
  next_poll_ = Clock::now() + pause_;
  std::list<QueueControl*> asked;
  asked.swap(polled_);
  busy_ = true;
  lock.unlock();
  for (auto at = asked.begin(); at != asked.end();) {
    at = (*at)->poll_if_awaited() ? std::next(at) : asked.erase(at);
  }
  lock.lock();
  polled_.splice(polled_.end(), asked);
  if (!ready_.empty()) {  // something moves, and more may follow soon
    pause_ = shortest_pause;
    next_poll_ = std::min(next_poll_, Clock::now() + pause_);
  }
  end_turn();
}

void EventWatcher::end_turn() noexcept {
  busy_ = false;
  if (shutting_down_) quiet_.notify_all();
}

}  // namespace unimem::detail
