#include "pool/transit.hpp"

#include <unimem/device/detail/blocking_wait.hpp>

#include "device/watched_wait.hpp"

#include <utility>

namespace unimem::detail {

void Transit::begin_growing(Passage& passage, std::size_t bytes) noexcept {
  passage.bytes_ = bytes;
  growing_ += bytes;
}

void Transit::end_growing(Passage& passage) noexcept {
  growing_ -= passage.bytes_;
}

void Transit::begin_returning(Passage& passage, std::size_t bytes, Comes comes) noexcept {
  passage.bytes_ = bytes;
  passage.behind_work_ = comes == Comes::behind_work ? bytes : 0;
  returning_ += bytes;
  behind_work_ += passage.behind_work_;
  passage.next_ = std::exchange(returns_, &passage);
  tell_newest();
}

void Transit::end_returning(Passage& passage) noexcept {
  auto** at = &returns_;
  while (*at != &passage) at = &(*at)->next_;
  *at = passage.next_;
  tell_newest();
  returning_ -= passage.bytes_;
  behind_work_ -= passage.behind_work_;
}

void Transit::tell_newest() noexcept {
  // Relaxed: a thread knows for sure whether it is itself.
  newest_.store(returns_ != nullptr ? returns_->thread_ : std::thread::id{}, std::memory_order_relaxed);
}

void Transit::changed() noexcept {
  ++changes_;
  if (waiting_ != 0) changed_.notify_all();
}

bool Transit::await(std::unique_lock<std::mutex>& lock) {
  if (is_empty()) return false;
  WatchedWait watch{"waiting for memory that other threads give back", is_in_work() ? Watched::no : Watched::yes};
  // A deadlock is looked for first: threads that try in vain wake each other, and none would ever wait for a step.
  BlockingWait wait{newest_, {.looks_out = watch.watched()}};
  auto const changed = [this, seen = changes_] { return changes_ != seen; };
  bool const over = wait.run([&](BlockingWait::Clock::time_point until) {
    if (!lock.owns_lock()) lock.lock();
    ++waiting_;
    bool const ended = changed_.wait_until(lock, until, changed);
    --waiting_;
    if (ended) return true;
    lock.unlock();  // others go on while this thread looks
    watch.look();
    return false;
  });
  if (!lock.owns_lock()) lock.lock();
  return over;
}

}  // namespace unimem::detail
