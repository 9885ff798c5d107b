#include "device/current_task.hpp"

#include "device/process_end.hpp"

namespace unimem::detail {
namespace {

thread_local CurrentTask const* innermost = nullptr;
// Without destructors: they can be asked until the very end.
thread_local bool exit_called = false;
thread_local auto end_of_patience = std::chrono::steady_clock::time_point::max();

/// `exit` destroys what is local to the thread that calls it before anything static. To be destroyed in the middle of
/// work means just that.
struct ExitGuard {
  ExitGuard() noexcept = default;
  ExitGuard(ExitGuard const&) = delete;
  ExitGuard& operator=(ExitGuard const&) = delete;
  ~ExitGuard() {
    if (innermost == nullptr) return;
    exit_called = true;
    end_of_patience = std::chrono::steady_clock::now() + exit_patience;
  }
  bool there = false;
};
thread_local ExitGuard exit_guard;

}  // namespace

CurrentTask::CurrentTask(CurrentTask const* helped) noexcept
    : thread_(std::this_thread::get_id()), helped_(helped), outer_(innermost) {
  exit_guard.there = true;  // which makes it, once a thread
  innermost = this;
}

CurrentTask::~CurrentTask() {
  innermost = outer_;
}

CurrentTask const* CurrentTask::of_this_thread() noexcept {
  return innermost;
}

bool CurrentTask::is_of(std::thread::id thread) const noexcept {
  return thread_ == thread || (helped_ != nullptr && helped_->is_of(thread)) ||
         (outer_ != nullptr && outer_->is_of(thread));
}

bool CurrentTask::is_in_work_of(std::thread::id thread) noexcept {
  return innermost != nullptr && innermost->is_of(thread);
}

bool CurrentTask::is_ending_in_work_of(std::thread::id thread) noexcept {
  return exit_called && is_in_work_of(thread);
}

bool CurrentTask::is_ending() noexcept {
  return exit_called;
}

std::chrono::steady_clock::time_point CurrentTask::patience_ends() noexcept {
  return end_of_patience;
}

}  // namespace unimem::detail
