#include "manager/turns.hpp"

#include <unimem/device/wait_watch.hpp>

#include "device/watched_wait.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace unimem::detail {

Crowded::~Crowded() = default;

Operation*& Operation::current() noexcept {
  thread_local Operation* innermost = nullptr;
  return innermost;
}

Operation::~Operation() {
  current() = outer_;
  let_go();
}

void Operation::let_go() noexcept {
  if (taken_.on != nullptr) taken_.on->subtract(taken_.bytes);
  for (auto const& [on, bytes] : beside_) on->subtract(bytes);
  taken_ = {};
  beside_.clear();
}

void Operation::count_taken(TakenMemory& on, std::size_t bytes) {
  auto* entry = &taken_;
  if (taken_.on != nullptr && taken_.on != &on) {
    auto const found = std::ranges::find(beside_, &on, &Taken::on);
    entry = found != beside_.end() ? &*found : &beside_.emplace_back();
  }
  entry->on = &on;
  entry->bytes += bytes;
  on.add(bytes);
}

std::size_t Operation::taken(TakenMemory const& on) const noexcept {
  if (taken_.on == &on) return taken_.bytes;
  auto const found = std::ranges::find(beside_, &on, &Taken::on);
  return found != beside_.end() ? found->bytes : 0;
}

void Operation::begin_again() noexcept {
  let_go();
  auto const now = std::chrono::steady_clock::now();
  if (!std::exchange(again_, true)) insists_at_ = now + longest_wait;
  insists_ = insists_ || now >= insists_at_;
}

Operation::Need Operation::need(MemoryManager const& of) const noexcept {
  auto const found = std::ranges::find(needs_, &of, &Need::of);
  return found != needs_.end() ? *found : Need{&of, 0, 0};
}

void Operation::needs(MemoryManager const& of, std::size_t outstanding, std::size_t together) {
  auto const known = std::ranges::find(needs_, &of, &Need::of);
  auto& sum = known != needs_.end() ? *known : needs_.emplace_back(Need{&of, 0, 0});
  sum.outstanding += outstanding;
  sum.together += together;
}

void Operation::took(MemoryManager const& of, std::size_t bytes) noexcept {
  auto const known = std::ranges::find(needs_, &of, &Need::of);
  if (known != needs_.end()) known->outstanding -= std::min(bytes, known->outstanding);
}

void Operation::end_turn() noexcept {
  if (auto* const turn = std::exchange(turn_, nullptr)) turn->end();
}

bool Turns::try_take() {
  std::lock_guard const lock{mutex_};
  if (!waiting_.empty() || owner_.load(std::memory_order_relaxed) != std::thread::id{}) return false;
  owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  return true;
}

bool Turns::take(std::chrono::steady_clock::duration patience) {
  WatchedWait watch{"waiting for a turn to make room"};
  std::unique_lock lock{mutex_};
  waiting_.push_back(++comers_);
  auto const place = std::prev(waiting_.end());
  bool came = false;
  try {
    came = await_turn(lock, place, patience, watch);
  } catch (WaitInterrupted const&) {
    lock.lock();
    leave(place);
    throw;
  }
  if (!came) {
    leave(place);
    return false;
  }
  waiting_.erase(place);
  owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  return true;
}

bool Turns::await_turn(std::unique_lock<std::mutex>& lock, Place place, std::chrono::steady_clock::duration patience,
                       WatchedWait& watch) {
  auto const is_free = [&] {
    return place == waiting_.begin() && owner_.load(std::memory_order_relaxed) == std::thread::id{};
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

void Turns::leave(Place place) {
  waiting_.erase(place);
  ended_.notify_all();  // whoever comes next may be the first now
}

void Turns::forget_others() noexcept {
  HeldOverFork::renew(ended_);
  waiting_.clear();
  if (!mine()) {
    want(0);
    owner_.store(std::thread::id{}, std::memory_order_relaxed);
  }
}

void Turns::end() noexcept {
  {
    std::lock_guard const lock{mutex_};
    want(0);
    ++ends_;
    owner_.store(std::thread::id{}, std::memory_order_relaxed);
  }
  ended_.notify_all();
}

}  // namespace unimem::detail
