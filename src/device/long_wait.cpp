#include <unimem/core/error.hpp>
#include <unimem/device/timed_wait.hpp>

#include "device/current_task.hpp"
#include "device/queue_control.hpp"
#include "device/worker_threads.hpp"

#include <chrono>
#include <cstddef>
#include <mutex>
#include <thread>

namespace unimem {
namespace {

/// All there are, those of one thread from the inside out. Each stands on its waiter's own stack, since a waiting
/// thread must not run out of memory. Nothing is destroyed at the end: threads may wait until then.
struct LongWaits {
  std::mutex mutex;
  LongWait* first = nullptr;
  std::size_t count = 0;
};

constinit LongWaits all;

}  // namespace

LongWait::LongWait(Event event) noexcept : event_(event), thread_(std::this_thread::get_id()) {
  enter();
}

LongWait::LongWait(std::atomic<std::thread::id> const& holder) noexcept
    : holder_(&holder), thread_(std::this_thread::get_id()) {
  enter();
}

void LongWait::enter() noexcept {
  if (detail::is_forked_child()) return;
  std::lock_guard const lock{all.mutex};
  next_ = all.first;
  if (next_ != nullptr) next_->previous_ = this;
  all.first = this;
  ++all.count;
  listed_ = true;
}

std::thread::id LongWait::awaited() const noexcept {
  if (holder_ != nullptr) return holder_->load(std::memory_order_relaxed);  // asked again and again, so any moment's
  auto* const control = detail::QueueControl::of(event_);
  if (control == nullptr || control->completed() >= event_.ticket()) return {};
  return control->works_on();
}

LongWait::~LongWait() {
  if (!listed_ || detail::is_forked_child()) return;
  std::lock_guard const lock{all.mutex};
  leave();
}

void LongWait::leave() noexcept {
  if (next_ != nullptr) next_->previous_ = previous_;
  (previous_ == nullptr ? all.first : previous_->next_) = next_;
  --all.count;
  listed_ = false;
}

bool LongWait::never_ends() noexcept {
  if (!listed_ || detail::is_forked_child()) return false;
  std::lock_guard const lock{all.mutex};
  auto const* at = this;
  // Others may go round in a circle without this one.
  for (auto left = all.count; at != nullptr && left != 0; --left) {
    auto const thread = at->awaited();
    if (thread == std::thread::id{}) return false;
    if (detail::CurrentTask::is_in_work_of(thread)) {
      leave();
      return true;
    }
    if (thread == at->thread_) return false;  // it carries out itself what it waits for
    at = all.first;
    while (at != nullptr && at->thread_ != thread) at = at->next_;
  }
  return false;
}

void wait_unless_endless(Event event) {
  if (event.ready()) return;
  // Only a thread in the middle of work can be waited for by what it waits for. One that has called `exit` is told by
  // the wait itself that nothing ends any more.
  if (detail::CurrentTask::may_wait_for_any()) {
    static_cast<void>(event.wait_for_error());
    return;
  }
  if (waits_for_itself(event)) {
    throw UnsupportedOperation("waiting for work", "the queue that this kernel runs on",
                               "it comes after the kernel, or is the kernel itself, and would never end");
  }
  constexpr std::chrono::milliseconds step{10};  // a circle may close later, and is then found so soon
  LongWait known{event};
  do {
    if (known.never_ends()) {
      throw UnsupportedOperation("waiting for work", "another queue",
                                 "it waits for this kernel in its turn, and would never end");
    }
  } while (!wait_until(event, std::chrono::steady_clock::now() + step));
}

}  // namespace unimem
