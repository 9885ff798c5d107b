#include "manager/turns.hpp"

#include <utility>

namespace unimem::detail {

Crowded::~Crowded() = default;

Operation*& Operation::current() noexcept {
  thread_local Operation* innermost = nullptr;
  return innermost;
}

void Operation::end_turn() noexcept {
  if (auto* const turn = std::exchange(turn_, nullptr)) turn->end();
}

bool Turns::try_take() {
  std::lock_guard const lock{mutex_};
  if (waiting_ != 0 || owner_.load(std::memory_order_relaxed) != std::thread::id{}) return false;
  owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  return true;
}

bool Turns::take_before(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock{mutex_};
  ++waiting_;
  bool const free =
      ended_.wait_until(lock, deadline, [&] { return owner_.load(std::memory_order_relaxed) == std::thread::id{}; });
  --waiting_;
  if (free) owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  return free;
}

void Turns::end() noexcept {
  {
    std::lock_guard const lock{mutex_};
    want(0);
    owner_.store(std::thread::id{}, std::memory_order_relaxed);
  }
  ended_.notify_one();
}

}  // namespace unimem::detail
