#include <unimem/device/event.hpp>

#include "device/coroutine_thread.hpp"
#include "device/queue_control.hpp"
#include "device/worker_threads.hpp"

namespace unimem {

EventAwaiter::~EventAwaiter() {
  if (suspended_ && !detail::is_forked_child()) control_->withdraw(continuation_);
}

bool EventAwaiter::await_ready() const noexcept {
  return Event{control_, continuation_.ticket}.ready();
}

bool EventAwaiter::await_suspend(std::coroutine_handle<> coroutine) {
  if (detail::is_forked_child()) return false;  // `await_resume` throws what there is to say
  // No coroutine is resumed any more. On the thread that did it, it stays behind and lets the thread become still; on
  // any other it goes on, and waits for itself.
  auto& thread = detail::CoroutineThread::instance();
  if (!thread.start()) return thread.is_this_thread();
  continuation_.coroutine = coroutine;
  suspended_ = true;
  bool in_line = false;
  try {
    in_line = control_->resume_after(continuation_);
  } catch (...) {
    suspended_ = false;
    throw;
  }
  // If it is in line, it may have been resumed by now, and destroyed with all that is in it.
  if (!in_line) suspended_ = false;
  return in_line;
}

void EventAwaiter::await_resume() {
  suspended_ = false;
  Event{control_, continuation_.ticket}.wait();
}

}  // namespace unimem
