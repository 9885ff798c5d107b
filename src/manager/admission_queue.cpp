#include "manager/admission_queue.hpp"

#include <unimem/device/wait_watch.hpp>

#include "device/watched_wait.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace unimem::detail {

bool AdmissionQueue::try_take() {
  std::lock_guard const lock{mutex_};
  if (!waiting_.empty() || owner_.load(std::memory_order_relaxed) != std::thread::id{}) return false;
  owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  return true;
}

bool AdmissionQueue::take(std::chrono::steady_clock::duration patience) {
  WatchedWait watch{"waiting for a turn to make room"};
  std::unique_lock lock{mutex_};
  waiting_.push_back(++comers_);
  auto const position = std::prev(waiting_.end());
  bool came = false;
  try {
    came = await_turn(lock, position, patience, watch);
  } catch (WaitInterrupted const&) {
    lock.lock();
    leave(position);
    throw;
  }
  if (!came) {
    leave(position);
    return false;
  }
  waiting_.erase(position);
  owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  return true;
}

bool AdmissionQueue::await_turn(std::unique_lock<std::mutex>& lock, Position position,
                                std::chrono::steady_clock::duration patience, WatchedWait& watch) {
  auto const is_free = [&] {
    return position == waiting_.begin() && owner_.load(std::memory_order_relaxed) == std::thread::id{};
  };
  auto seen = ends_;
  auto until = WatchedWait::Clock::now() + patience;
  while (!is_free()) {
    auto const changed = [&] { return is_free() || ends_ != seen; };
    if (ended_.wait_until(lock, std::min(until, watch.next()), changed)) {
      seen = ends_;
      until = WatchedWait::Clock::now() + patience;
    } else if (WatchedWait::Clock::now() >= until) {
      return false;
    } else {
      lock.unlock();
      watch.look();
      lock.lock();
    }
  }
  return true;
}

void AdmissionQueue::leave(Position position) {
  waiting_.erase(position);
  ended_.notify_all();  // the next one may be the first now
}

void AdmissionQueue::end() noexcept {
  {
    std::lock_guard const lock{mutex_};
    want(0);
    ++ends_;
    owner_.store(std::thread::id{}, std::memory_order_relaxed);
  }
  ended_.notify_all();
}

}  // namespace unimem::detail
