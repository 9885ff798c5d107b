#include "pool/pool_core.hpp"

// What a pool does when the process forks.

namespace unimem::detail {

bool PoolCore::hold_over_fork(HeldOverFork::Deadline deadline) noexcept {
  // In the order in which a thread that needs them all takes them.
  if (extents_ != nullptr && !extents_->hold_over_fork(deadline)) return false;
  if (thread_cache_.hold_over_fork(deadline)) {
    if (HeldOverFork::lock_by(deadline, mutex_)) return true;
    thread_cache_.let_go_after_fork(false);
  }
  if (extents_ != nullptr) extents_->let_go_after_fork();
  return false;
}

void PoolCore::let_go_after_fork(bool in_child) noexcept {
  if (in_child) {
    ++forks_;
    growing_ = returning_ = 0;
    waiting_ = 0;
    settlers_.forget();
    inside_ = Visit::of_this_thread(*this);
    HeldOverFork::renew(changed_);
    // The extents had handed it out, or not got it back, and the thread that was to do that is not here.
    if (extents_ != nullptr) stranded_ = extents_->used() - counts_.active_bytes - free_.bytes();
  }
  mutex_.unlock();
  thread_cache_.let_go_after_fork(in_child);
  if (extents_ != nullptr) extents_->let_go_after_fork();
}

}  // namespace unimem::detail
