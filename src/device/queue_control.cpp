#include "device/queue_control.hpp"

#include <unimem/core/error.hpp>

#include "device/coroutine_thread.hpp"
#include "device/event_watcher.hpp"
#include "device/worker_threads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <tuple>
#include <utility>

namespace unimem::detail {

namespace {

std::exception_ptr inherited_error(char const* what) noexcept {
  try {
    throw_inherited(what);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

QueueControl& QueueControl::create(Work work) {
  static std::atomic<std::uint64_t> next_id{1};
  // Kept reachable, so that leak checkers see an owner; never freed, so that events of dead queues can still be asked.
  static constinit std::atomic<QueueControl*> latest{nullptr};
  auto* const control = new QueueControl{next_id.fetch_add(1, std::memory_order_relaxed), work};
  control->made_before_ = latest.exchange(control, std::memory_order_relaxed);  // nobody follows it
  return *control;
}

std::exception_ptr QueueControl::keep(Ticket ticket, std::exception_ptr failure) noexcept {
  some_failed_ = true;
  try {
    enter_set_aside();
    return enter(ticket, failure);
  } catch (std::bad_alloc const&) {
    set_aside(ticket, std::move(failure));
    return nullptr;
  }
}

void QueueControl::set_aside(Ticket ticket, std::exception_ptr failure) noexcept {
  if (set_aside_count_ < set_aside_.size()) {
    set_aside_[set_aside_count_++] = {ticket, ticket, std::move(failure)};
    return;
  }
  auto& shared = set_aside_.back();
  shared.first = std::min(shared.first, ticket);
  shared.last = std::max(shared.last, ticket);
}

void QueueControl::enter_set_aside() {
  while (set_aside_count_ > 0 && latest_.size() < kept_failures) {
    auto& one = set_aside_[set_aside_count_ - 1];
    if (one.first != one.last) return;  // which of them have failed is not known
    static_cast<void>(enter(one.first, one.failure));
    one = {};
    --set_aside_count_;
  }
}

std::exception_ptr QueueControl::enter(Ticket ticket, std::exception_ptr const& failure) {
  if (failures_.contains(ticket)) return nullptr;
  latest_.push_back(ticket);
  try {
    failures_.emplace(ticket, failure);
  } catch (std::bad_alloc const&) {
    latest_.pop_back();
    throw;
  }
  if (latest_.size() <= kept_failures) return nullptr;
  auto const oldest = failures_.find(latest_.front());
  try {
    if (!forgotten_) {
      forgotten_ = std::make_exception_ptr(
          DeviceError(fmt::format("queue {}", id_), "earlier work", 0,
                      fmt::format("an error that is no longer kept, as {} later ones have come", kept_failures)));
    }
    failed_.insert(oldest->first);
  } catch (std::bad_alloc const&) {
    return nullptr;  // then it stays as it is
  }
  auto dropped = std::move(oldest->second);
  last_forgotten_ = std::max(last_forgotten_, oldest->first);
  failures_.erase(oldest);
  latest_.erase(latest_.begin());
  return dropped;
}

bool QueueControl::keep_durations() {
  auto const tells = waiter();
  if (!tells || !tells->tells_durations()) return false;
  std::lock_guard const lock{mutex_};
  took_.resize(kept_durations);
  keeps_durations_.store(true, std::memory_order_relaxed);
  return true;
}

QueueControl::Duration QueueControl::duration(Ticket ticket) const noexcept {
  if (made_.inherited() || !keeps_durations()) return std::nullopt;
  std::lock_guard const lock{mutex_};
  auto const& kept = took_[ticket % kept_durations];
  bool const is_kept = kept.ticket == ticket && completed() - ticket < kept_durations;
  return is_kept ? Duration{kept.time} : std::nullopt;
}

void QueueControl::finish(Ticket ticket, std::exception_ptr failure, Duration took) noexcept {
  std::exception_ptr dropped;
  {
    std::lock_guard const lock{mutex_};
    if (failure) {
      dropped = keep(ticket, std::move(failure));
      may_fail_.store(true, std::memory_order_release);  // before the ticket, which publishes it too
    } else if (took) {
      took_[ticket % kept_durations] = {ticket, *took};
    }
    // Release: a thread that reads the ticket also sees the work's bytes, and its failure.
    if (ticket > completed_.load(std::memory_order_relaxed)) completed_.store(ticket, std::memory_order_release);
    // In a forked child the coroutines of the parent may be gone, and they are not resumed.
    if (!awaiting_.empty() && !is_forked_child()) {
      auto const last = completed_.load(std::memory_order_relaxed);
      awaiting_.tell_here(last);
      CoroutineThread::instance().resume(awaiting_, last);
    }
  }
  ended_.notify_all();
}

void QueueControl::fail(Ticket ticket, std::exception_ptr failure) {
  std::exception_ptr dropped;
  std::lock_guard const lock{mutex_};
  dropped = keep(ticket, std::move(failure));
  may_fail_.store(true, std::memory_order_release);
}

void QueueControl::skip(Ticket ticket) {
  std::lock_guard const lock{mutex_};
  skipped_.insert(ticket);
}

bool QueueControl::never_began(Ticket ticket) noexcept {
  if (made_.inherited()) return false;
  if (!may_fail_.load(std::memory_order_acquire)) return false;
  settle_inheritance(ticket);
  std::lock_guard const lock{mutex_};
  return skipped_.contains(ticket);
}

QueueControl::InheritedErrors QueueControl::inherited_errors_of(std::span<const Event> needs, bool joins_them) {
  InheritedErrors inherited;
  std::shared_ptr<Inheritance> open;
  for (auto const need : needs) {
    if (need.queue_id() == 0) continue;
    // Work that is known to have ended well has nothing to leave.
    bool const may_fail = !knows_good_end_of(need);
    if (may_fail && !open) open = std::make_shared<Inheritance>();
    if (may_fail) open->from.push_back(need);
    joins_them = joins_them && may_fail;
  }
  if (!open) return inherited;
  open->joins_all = joins_them;
  Inheritances one;
  one.emplace(0, std::move(open));
  inherited.node_ = one.extract(one.begin());
  return inherited;
}

QueueControl::InheritedErrors QueueControl::inherited_errors_of(std::span<const Event> needs) {
  return inherited_errors_of(needs, false);
}

void QueueControl::inherit(Ticket ticket, std::span<const Event> needs) {
  inherit(ticket, inherited_errors_of(needs));
}

void QueueControl::join(Ticket ticket, std::span<const Event> events) {
  inherit(ticket, inherited_errors_of(events, true));
}

void QueueControl::inherit(Ticket ticket, InheritedErrors inherited) noexcept {
  if (inherited.node_.empty()) return;
  inherited.node_.key() = ticket;
  constexpr std::size_t many = 64;
  Ticket ended = 0;
  {
    std::lock_guard const lock{mutex_};
    inherits_.insert(std::move(inherited.node_));
    may_fail_.store(true, std::memory_order_release);
    if (inherits_.size() >= many) ended = completed();
  }
  // These errors may never be asked for: what has ended is not kept for it.
  if (ended != 0) settle_inheritance(ended);
}

void QueueControl::settle_inheritance(Ticket ticket) noexcept {
  // From the oldest on, so that asking for a need of this same queue finds an answer and no longer chain; and without
  // the lock, since asking may lead to other queues and back here.
  for (;;) {
    Ticket first = 0;
    std::shared_ptr<Inheritance const> needs;
    {
      std::lock_guard const lock{mutex_};
      if (inherits_.empty() || inherits_.begin()->first > ticket) return;
      std::tie(first, needs) = *inherits_.begin();
    }
    std::exception_ptr failure;
    bool never_began = needs->joins_all;
    for (auto const need : needs->from) {
      auto its = need.wait_for_error();
      if (its && !failure) failure = std::move(its);
      never_began = never_began && need.never_began();
      if (failure && !never_began) break;
    }
    std::exception_ptr dropped;
    std::lock_guard const lock{mutex_};
    if (inherits_.erase(first) == 0 || !failure) continue;
    dropped = keep(first, std::move(failure));
    if (!never_began) continue;
    try {
      skipped_.insert(first);
    } catch (std::bad_alloc const&) {  // NOLINT(bugprone-empty-catch)
      // Then it counts as begun, and what it was to write as lost.
    }
  }
}

std::exception_ptr QueueControl::error(Ticket ticket) noexcept {
  if (!may_fail_.load(std::memory_order_acquire)) return nullptr;
  if (made_.inherited()) return inherited_error("asking whether work of the parent process failed");
  settle_inheritance(ticket);
  std::lock_guard const lock{mutex_};
  auto const found = failures_.find(ticket);
  if (found != failures_.end()) return found->second;
  for (auto const& one : set_aside_) {
    if (one.first <= ticket && ticket <= one.last) return one.failure;
  }
  if (!some_failed_ && inherits_.empty())
    may_fail_.store(false, std::memory_order_release);  // what was inherited has ended well
  return failed_.contains(ticket) ? forgotten_ : nullptr;
}

std::exception_ptr QueueControl::take_error() noexcept {
  if (made_.inherited()) return nullptr;
  settle_inheritance(completed());
  std::lock_guard const lock{mutex_};
  auto const next = failures_.upper_bound(reported_);
  bool const some_forgotten = last_forgotten_ > reported_;
  auto const aside = std::ranges::find_if(set_aside_, [&](SetAside const& one) { return one.last > reported_; });
  reported_ = completed_.load(std::memory_order_relaxed);
  if (aside != set_aside_.end() && (next == failures_.end() || aside->first < next->first)) return aside->failure;
  if (next != failures_.end()) return next->second;
  return some_forgotten ? forgotten_ : nullptr;
}

std::shared_ptr<Waiter> QueueControl::waiter() noexcept {
  std::lock_guard const lock{mutex_};
  return waiter_;
}

std::thread::id QueueControl::works_on() noexcept {
  if (made_.inherited()) return {};
  auto const waiter = this->waiter();
  return waiter ? waiter->works_on() : std::thread::id{};
}

void QueueControl::wait_until(Ticket ticket, std::chrono::steady_clock::time_point until) noexcept {
  if (completed() >= ticket) return;
  if (auto const waiter = this->waiter()) return waiter->wait_until(ticket, until);
  std::unique_lock lock{mutex_};
  ended_.wait_until(lock, until, [&] { return completed_.load(std::memory_order_relaxed) >= ticket; });
}

void QueueControl::poll() noexcept {
  if (auto const waiter = this->waiter()) waiter->poll();
}

bool QueueControl::resume_after(Continuation& continuation) {
  // Under the lock that `finish` takes: either the ticket has ended here, or `finish` finds the coroutine in line.
  std::lock_guard const lock{mutex_};
  if (completed_.load(std::memory_order_relaxed) >= continuation.ticket) return false;
  if (waiter_ && waiter_->needs_polling()) {
    auto& watcher = EventWatcher::instance();
    if (!watcher.start()) return false;
    if (!watcher_polls_) watcher.add(*this);
    watcher_polls_ = true;
    watcher.poll_soon();
  }
  awaiting_.insert(continuation);
  return true;
}

void QueueControl::withdraw(Continuation& continuation) noexcept {
  std::lock_guard const lock{mutex_};
  CoroutineThread::instance().unlink(continuation);
}

bool QueueControl::poll_if_awaited() noexcept {
  std::shared_ptr<Waiter> waiter;
  {
    std::lock_guard const lock{mutex_};
    if (awaiting_.empty()) {
      watcher_polls_ = false;
      return false;
    }
    waiter = waiter_;
  }
  if (waiter) waiter->poll();
  return true;
}

void QueueControl::set_waiter(std::shared_ptr<Waiter> waiter) noexcept {
  if (made_.inherited()) return;
  std::lock_guard const lock{mutex_};
  waiter_ = std::move(waiter);
}

}  // namespace unimem::detail
