#include "device/ending.hpp"

namespace unimem::detail {
namespace {

thread_local AtWork const* innermost = nullptr;
// Without destructors: they can be asked until the very end.
thread_local bool ending = false;
thread_local auto end_of_patience = std::chrono::steady_clock::time_point::max();

/// As long as `exit` waits for any work in the background (worker_threads.cpp).
constexpr std::chrono::seconds patience{1};

/// `exit` destroys what is local to the thread that calls it before anything static. To be destroyed in the middle of
/// work means just that.
struct Witness {
  Witness() noexcept = default;
  Witness(Witness const&) = delete;
  Witness& operator=(Witness const&) = delete;
  ~Witness() {
    if (innermost == nullptr) return;
    ending = true;
    end_of_patience = std::chrono::steady_clock::now() + patience;
  }
  bool there = false;
};
thread_local Witness witness;

}  // namespace

AtWork::AtWork(AtWork const* helped) noexcept
    : thread_(std::this_thread::get_id()), helped_(helped), outer_(innermost) {
  witness.there = true;  // which makes it, once a thread
  innermost = this;
}

AtWork::~AtWork() {
  innermost = outer_;
}

AtWork const* AtWork::of_this_thread() noexcept {
  return innermost;
}

bool AtWork::is_of(std::thread::id thread) const noexcept {
  return thread_ == thread || (helped_ != nullptr && helped_->is_of(thread)) ||
         (outer_ != nullptr && outer_->is_of(thread));
}

bool AtWork::is_in_work_of(std::thread::id thread) noexcept {
  return innermost != nullptr && innermost->is_of(thread);
}

bool AtWork::is_ending_in_work_of(std::thread::id thread) noexcept {
  return ending && is_in_work_of(thread);
}

bool AtWork::is_ending() noexcept {
  return ending;
}

std::chrono::steady_clock::time_point AtWork::patience_ends() noexcept {
  return end_of_patience;
}

}  // namespace unimem::detail
