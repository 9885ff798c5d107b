#include "pool/transit.hpp"

#include <unimem/device/timed_wait.hpp>

#include "device/current_task.hpp"
#include "device/watched_wait.hpp"

#include <chrono>
#include <utility>

namespace unimem::detail {

void Transit::begin_growing(Passage& passage, std::size_t bytes) noexcept {
  passage.bytes_ = bytes;
  growing_ += bytes;
}

void Transit::end_growing(Passage& passage) noexcept {
  growing_ -= passage.bytes_;
}

void Transit::begin_returning(Passage& passage, std::size_t bytes) noexcept {
  passage.bytes_ = bytes;
  returning_ += bytes;
  passage.next_ = std::exchange(returns_, &passage);
  tell_newest();
}

void Transit::end_returning(Passage& passage) noexcept {
  auto** at = &returns_;
  while (*at != &passage) at = &(*at)->next_;
  *at = passage.next_;
  tell_newest();
  returning_ -= passage.bytes_;
}

void Transit::tell_newest() noexcept {
  newest_.store(returns_ != nullptr ? returns_->thread_ : std::thread::id{}, std::memory_order_relaxed);
}

void Transit::changed() noexcept {
  ++changes_;
  if (waiting_ != 0) changed_.notify_all();
}

bool Transit::await(std::unique_lock<std::mutex>& lock) {
  if (is_empty()) return false;
  auto const changed = [this, seen = changes_] { return changes_ != seen; };
  LongWait known{newest_};  // for threads that wait for this one
  bool ends = true;
  ++waiting_;
  if (CurrentTask::may_wait_for_any()) {
    WatchedWait watch{"waiting for memory that other threads give back"};
    while (!changed_.wait_until(lock, watch.next(), changed)) {
      --waiting_;
      lock.unlock();
      watch.look();
      lock.lock();
      ++waiting_;
    }
  } else {
    constexpr std::chrono::milliseconds step{10};  // a circle may close later, and is then found so soon
    // Asked first: threads that try in vain wake each other, and one of them would never have waited for so long.
    do {
      ends = !known.never_ends();
    } while (ends && !changed_.wait_for(lock, step, changed));
  }
  --waiting_;
  return ends;
}

}  // namespace unimem::detail
