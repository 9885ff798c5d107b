#include <unimem/device/timed_wait.hpp>

#include "device/ending.hpp"
#include "device/queue_control.hpp"
#include "device/worker_threads.hpp"

#include <cstddef>
#include <mutex>
#include <thread>

namespace unimem {
namespace {

/// All there are, those of one thread from the inside out. Each stands on its waiter's own stack, as who waits must not
/// run out of memory. Nothing is destroyed at the end: who waits may do so until then.
struct LongWaits {
  std::mutex mutex;
  LongWait* first = nullptr;
  std::size_t count = 0;
};

constinit LongWaits all;

}  // namespace

LongWait::LongWait(Event event) noexcept : event_(event), thread_(std::this_thread::get_id()) {
  if (detail::is_forked_child()) return;
  std::lock_guard const lock{all.mutex};
  next_ = all.first;
  if (next_ != nullptr) next_->previous_ = this;
  all.first = this;
  ++all.count;
  listed_ = true;
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
    auto* const control = detail::QueueControl::of(at->event_);
    if (control == nullptr || control->completed() >= at->event_.ticket()) return false;
    auto const thread = control->works_on();
    if (detail::AtWork::is_in_work_of(thread)) {
      leave();
      return true;
    }
    if (thread == at->thread_) return false;  // it carries out itself what it waits for
    at = all.first;
    while (at != nullptr && at->thread_ != thread) at = at->next_;
  }
  return false;
}

}  // namespace unimem
