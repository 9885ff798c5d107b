#include "device/queue_control.hpp"

#include <utility>

namespace unimem::detail {

QueueControl& QueueControl::create() {
  static std::atomic<std::uint64_t> next_id{1};
  // Kept reachable, so that leak checkers see an owner; never freed, so that events of dead queues can still be asked.
  static std::mutex mutex;
  static auto& all = *new std::map<std::uint64_t, std::unique_ptr<QueueControl>>;
  auto const id = next_id.fetch_add(1, std::memory_order_relaxed);
  std::unique_ptr<QueueControl> control{new QueueControl{id}};
  auto& result = *control;
  std::lock_guard const lock{mutex};
  all.emplace(id, std::move(control));
  return result;
}

void QueueControl::finish(Ticket ticket, std::exception_ptr failure) noexcept {
  {
    std::lock_guard const lock{mutex_};
    if (failure) {
      failures_.emplace(ticket, std::move(failure));
      any_failed_.store(true, std::memory_order_release);
    }
    // Release: who reads the ticket also sees the work's bytes, and its failure.
    if (ticket > completed_.load(std::memory_order_relaxed)) completed_.store(ticket, std::memory_order_release);
  }
  ended_.notify_all();
}

std::exception_ptr QueueControl::error(Ticket ticket) const noexcept {
  if (!any_failed_.load(std::memory_order_acquire)) return nullptr;
  std::lock_guard const lock{mutex_};
  auto const found = failures_.find(ticket);
  return found == failures_.end() ? nullptr : found->second;
}

std::exception_ptr QueueControl::take_error() noexcept {
  std::lock_guard const lock{mutex_};
  auto const next = failures_.upper_bound(reported_);
  reported_ = completed_.load(std::memory_order_relaxed);
  return next == failures_.end() ? nullptr : next->second;
}

void QueueControl::wait(Ticket ticket) noexcept {
  if (completed() >= ticket) return;
  std::shared_ptr<Waiter> waiter;
  {
    std::lock_guard const lock{mutex_};
    waiter = waiter_;
  }
  if (waiter) {
    waiter->wait_for(ticket);
  } else {
    sleep_until(ticket);
  }
}

void QueueControl::sleep_until(Ticket ticket) noexcept {
  std::unique_lock lock{mutex_};
  ended_.wait(lock, [&] { return completed_.load(std::memory_order_relaxed) >= ticket; });
}

void QueueControl::poll() noexcept {
  std::shared_ptr<Waiter> waiter;
  {
    std::lock_guard const lock{mutex_};
    waiter = waiter_;
  }
  if (waiter) waiter->poll();
}

void QueueControl::set_waiter(std::shared_ptr<Waiter> waiter) noexcept {
  std::lock_guard const lock{mutex_};
  waiter_ = std::move(waiter);
}

}  // namespace unimem::detail
