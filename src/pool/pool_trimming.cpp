#include "pool/pool_core.hpp"

#include <unimem/core/log.hpp>
#include <unimem/device/wait_watch.hpp>

#include "device/call_after.hpp"
#include "device/current_task.hpp"
#include "device/worker_threads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>
#include <vector>

// What a pool gives back to its device: asked to, by age, and beyond a limit.

namespace unimem::detail {

bool PoolCore::trims_by_itself() const noexcept {
  return options_.trim_interval.count() != 0 || options_.release_threshold != everything;
}

ThreadCache::Use PoolCore::use_of_thread_cache() const noexcept {
  bool const counted = options_.release_threshold != everything;
  if (recorder_ != nullptr || zeroer_ != nullptr || counted) return ThreadCache::Use::none;
  return options_.trim_interval.count() != 0 ? ThreadCache::Use::timed : ThreadCache::Use::quick;
}

bool PoolCore::ages_are_due(Time time) const noexcept {
  if (options_.trim_interval.count() == 0 || !thread_cache_.is_used()) return false;
  auto const since = young_since_.load(std::memory_order_relaxed);
  return since == Time::min() || time - since > options_.trim_interval;
}

void PoolCore::look_at_ages(Time time) noexcept {
  young_since_.store(time, std::memory_order_relaxed);  // one thread is enough
  ThreadCache::CacheFlush const seizure{thread_cache_};
  Lock lock{mutex_};
  give_back(lock, free_.take_cached_before(expiry(time)));
  trim_pages(lock, time);
  auto since = time;
  if (!free_.by_age().empty()) since = std::min(since, free_.by_age().front().cached_since);
  if (extents_ != nullptr) since = std::min(since, idle_since_);
  // Blocks of many ages are not looked at one by one: that interrupts all threads.
  auto const often = options_.trim_interval - options_.trim_interval / 8;
  young_since_.store(std::max(since, time - often), std::memory_order_relaxed);
}

template <class Keep>
std::size_t PoolCore::trim_extents(Lock& lock, Keep const& keep) noexcept {
  lock.unlock();
  auto const given = extents_->trim(keep());
  lock.lock();
  changed();
  return given;
}

void PoolCore::trim_pages(Lock& lock, Time time) noexcept {
  if (extents_ == nullptr || !trims_by_itself()) return;
  auto const counts = extents_->counts();
  auto const reserved = counts.reserved, returnable = counts.returnable;
  auto const cached = free_.bytes() + returnable;
  bool const due = options_.trim_interval.count() != 0 && time - idle_since_ >= options_.trim_interval;
  if (!due && cached <= options_.release_threshold) return;
  if (due) idle_since_ = time;
  auto const beyond =
      cached > options_.release_threshold ? std::min(returnable, cached - options_.release_threshold) : 0;
  trim_extents(lock, [&] {
    auto const surplus = due ? std::max(beyond, extents_->idle()) : beyond;
    return reserved - std::min(reserved, surplus);
  });
}

std::size_t PoolCore::trim(std::size_t keep_bytes) noexcept {
  return trim(keep_bytes, may_wait());
}

void PoolCore::give_way(bool may_wait) noexcept {
  auto const before = returns_to_share();
  trim(0, may_wait);
  if (!may_wait) return;
  Lock lock{mutex_};
  // What another thread gives back just now is not to be missing.
  try {
    while (returning_ != 0 && returns_to_share() == before && await_transit(lock)) {
    }
  } catch (WaitInterrupted const&) {  // NOLINT(bugprone-empty-catch): the pool that asked learns of it at its next wait
  }
}

std::size_t PoolCore::trim(std::size_t keep_bytes, bool also_pending) noexcept {
  ThreadCache::CacheFlush const seizure{thread_cache_};
  Lock lock{mutex_};
  if (extents_ == nullptr) {
    if (free_.bytes() <= keep_bytes) return 0;
    return give_back(lock, free_.take_oldest(free_.bytes() - keep_bytes, also_pending));
  }
  give_back(lock, free_.take_oldest(everything, also_pending));
  return trim_extents(lock, [&] {
    auto const held = extents_->held();
    return keep_bytes > everything - held ? everything : held + keep_bytes;
  });
}

std::size_t PoolCore::trim_idle() noexcept {
  ThreadCache::CacheFlush const seizure{thread_cache_};
  Lock lock{mutex_};
  auto const until = std::exchange(idle_until_, free_.releases());
  auto const blocks = give_back(lock, free_.take_released_until(until));
  if (extents_ == nullptr) return blocks;
  return trim_extents(lock, [this] {
    auto const reserved = extents_->counts().reserved;
    return reserved - std::min(reserved, extents_->idle());
  });
}

PoolDefragmentation PoolCore::defragment(DefragmentationLimits const& limits) {
  auto const begin = std::chrono::steady_clock::now();
  PoolDefragmentation report;
  report.largest_free_before = fragmentation().largest_free_block;
  if (extents_ != nullptr) {
    ThreadCache::CacheFlush const seizure{thread_cache_};
    Lock lock{mutex_};
    give_back(lock, free_.take_settled());
    lock.unlock();
    report.bytes_moved = extents_->compact(limits);
  }
  report.largest_free_after = fragmentation().largest_free_block;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

std::size_t PoolCore::shrink(Lock& lock, std::size_t keep) noexcept {
  if (extents_ == nullptr) {
    auto const kept = counts_.active_bytes + growing_ + free_.bytes();
    return give_back(lock, free_.take_oldest(kept > keep ? kept - keep : 0, may_wait()));
  }
  give_back(lock, free_.take_oldest(everything, may_wait()));
  return trim_extents(lock, [keep] { return keep; });
}

bool PoolCore::may_wait() noexcept {
  return CurrentTask::may_wait_for_any() || is_forked_child();  // there, waiting ends at once
}

void PoolCore::give_back_later(Lock& lock) noexcept {
  later_ = true;
  try {
    std::vector<Event> pending;
    for (auto const& block : free_.by_age()) {
      pending.push_back(block.inherited);
      pending.push_back(block.last_use);
    }
    lock.unlock();
    call_after(std::move(pending), [this] {
      Lock again{mutex_};
      ++inside_;
      shrink(again, 0);
      later_ = false;
      leave(again);  // what has been released meanwhile may be pending in its turn
    });
  } catch (std::exception const& error) {
    if (lock.owns_lock()) lock.unlock();
    log(LogLevel::error, "memory of a pool that has ended stays with the process, as its work could not be awaited:");
    log(LogLevel::error, error.what());
  }
}

void PoolCore::set_max_bytes(std::size_t bytes) {
  ThreadCache::CacheFlush const seizure{thread_cache_};
  Lock lock{mutex_};
  if (extents_ != nullptr) return set_limit_of_pages(lock, bytes);
  auto const live = counts_.active_bytes + growing_;
  if (bytes < live) refuse_limit(bytes, live);
  max_bytes_ = bytes;
  // Against the limit as it now is: another thread may have changed it again.
  bool changes = true;
  while (changes && reserved() > max_bytes_) changes = shrink(lock, max_bytes_) != 0 || await_transit(lock);
}

void PoolCore::set_limit_of_pages(Lock& lock, std::size_t bytes) {
  for (;;) {
    std::size_t least = 0;
    {
      lock.unlock();
      auto const still = extents_->hold();
      least = extents_->limit_to(bytes);
      lock.lock();
      if (least <= bytes) {
        max_bytes_ = bytes;
        return;
      }
    }
    // What is cached, or on its way back, is not in use: it goes first, and is waited for.
    bool const cached = give_back(lock, free_.take_oldest(everything, may_wait())) != 0;
    if (!cached && (returning_ == 0 || !await_transit(lock))) refuse_limit(bytes, least);
  }
}

void PoolCore::refuse_limit(std::size_t bytes, std::size_t least) const {
  throw InvalidArgument(
      "bytes", fmt::format("{}", bytes),
      fmt::format("at least the {} bytes in use at {} {}", least, device_.id(), to_string(location_)));
}

}  // namespace unimem::detail
