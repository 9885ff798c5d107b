#include <unimem/core/error.hpp>
#include <unimem/device/detail/blocking_wait.hpp>
#include <unimem/device/timed_wait.hpp>

#include "core/fork.hpp"
#include "device/current_task.hpp"
#include "device/queue_control.hpp"
#include "device/watched_wait.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>

namespace unimem::detail {
namespace {

/// The waits of all threads, those of one thread from the inside out. Each stands on its thread's own stack, since a
/// waiting thread must not run out of memory. Never destroyed: threads may wait until the process ends.
struct WaitForGraph {
  std::mutex mutex;
  BlockingWait* first = nullptr;
  std::size_t count = 0;
};

constinit WaitForGraph graph;

Fork::Hook const begins_anew{[]() noexcept { std::construct_at(&graph); }};  // in place, since a wait needs no memory

}  // namespace

bool is_in_work() noexcept {
  return CurrentTask::of_this_thread() != nullptr;
}

BlockingWait::BlockingWait(Event event, WaitTerms terms) noexcept
    : event_(event), terms_(terms), thread_(std::this_thread::get_id()) {
  enter();
}

BlockingWait::BlockingWait(std::atomic<std::thread::id> const& holder, WaitTerms terms) noexcept
    : holder_(&holder), terms_(terms), thread_(std::this_thread::get_id()) {
  enter();
}

BlockingWait::~BlockingWait() {
  if (!recorded_) return;
  std::lock_guard const lock{graph.mutex};
  leave();
}

void BlockingWait::enter() noexcept {
  if (terms_.limit != Clock::time_point::max()) return;
  std::lock_guard const lock{graph.mutex};
  next_ = graph.first;
  if (next_ != nullptr) next_->previous_ = this;
  graph.first = this;
  ++graph.count;
  recorded_ = true;
}

void BlockingWait::leave() noexcept {
  if (!recorded_) return;
  if (next_ != nullptr) next_->previous_ = previous_;
  (previous_ == nullptr ? graph.first : previous_->next_) = next_;
  --graph.count;
  recorded_ = false;
}

std::thread::id BlockingWait::awaited() const noexcept {
  if (holder_ != nullptr) return holder_->load(std::memory_order_relaxed);  // asked again and again, so any moment's
  auto* const control = QueueControl::of(event_);
  if (control == nullptr || control->completed() >= event_.ticket()) return {};
  return control->works_on();
}

bool BlockingWait::is_deadlocked() noexcept {
  // A thread that has called `exit` is told by the wait itself that nothing ends any more.
  if (CurrentTask::may_wait_for_any()) return false;
  std::lock_guard const lock{graph.mutex};
  auto const* at = this;
  // Others may go round in a circle without this one.
  for (auto left = recorded_ ? graph.count : 1; at != nullptr && left != 0; --left) {
    auto const thread = at->awaited();
    if (CurrentTask::is_in_work_of(thread)) {
      deadlock_ = at == this ? Deadlock::with_own_work : Deadlock::with_others;
      leave();
      return true;
    }
    if (thread == at->thread_) return false;  // it carries out itself what it waits for
    for (at = graph.first; at != nullptr && at->thread_ != thread;) at = at->next_;
  }
  return false;
}

void BlockingWait::refuse_deadlock() const {
  if (deadlock_ == Deadlock::none) return;
  bool const own = deadlock_ == Deadlock::with_own_work;
  throw UnsupportedOperation("waiting for work", own ? "the queue that this kernel runs on" : "another queue",
                             own ? "it comes after the kernel, or is the kernel itself, and would never end"
                                 : "it waits for this kernel in its turn, and would never end");
}

BlockingWait::Clock::time_point BlockingWait::end_of_step() const noexcept {
  bool const detects = !CurrentTask::may_wait_for_any();
  if (!detects && !terms_.looks_out) return terms_.limit;
  return std::min(terms_.limit, Clock::now() + (detects ? detection_step : look_step));
}

void await_end(Event event, Watched watched) {
  if (event.ready()) return;
  WatchedWait watch{"waiting for work", is_in_work() ? Watched::no : watched};
  await_end(event, {.looks_out = watch.watched()}, [&](BlockingWait::Clock::time_point until) {
    bool const ended = wait_until(event, until);
    if (!ended) watch.look();
    return ended;
  });
}

}  // namespace unimem::detail
