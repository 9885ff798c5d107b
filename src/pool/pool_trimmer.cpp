#include "pool/pool_trimmer.hpp"

#include <unimem/core/error.hpp>
#include <unimem/device/wait_watch.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace unimem::detail {

void PoolTrimmer::look_at_ages(PoolAges::Time now) noexcept {
  pool_.ages.begin_look(now);
  ThreadCache::CacheFlush const flush{pool_.thread_cache};
  PoolLock lock{pool_.mutex};
  trim_by_age(lock, now);
  auto oldest = now;
  if (!pool_.free.by_age().empty()) oldest = std::min(oldest, pool_.free.by_age().front().cached_since);
  if (pool_.memory.extents() != nullptr) oldest = std::min(oldest, pool_.ages.idle_since());
  pool_.ages.end_look(now, oldest);
}

void PoolTrimmer::trim_by_age(PoolLock& lock, PoolAges::Time now) noexcept {
  returns_.give_back(lock, pool_.free.take_cached_before(pool_.ages.expiry(now)));
  trim_pages(lock, now);
}

void PoolTrimmer::trim_after_release(PoolLock& lock, PoolAges::Time now) noexcept {
  auto victims = pool_.free.take_cached_before(pool_.ages.expiry(now));
  auto const threshold = pool_.options.release_threshold;
  if (pool_.free.bytes() > threshold) {
    auto surplus = pool_.free.take_oldest(pool_.free.bytes() - threshold, false);
    victims.splice(victims.end(), surplus);
  }
  returns_.give_back(lock, std::move(victims));
  trim_pages(lock, now);
}

void PoolTrimmer::trim_pages(PoolLock& lock, PoolAges::Time now) noexcept {
  auto* const extents = pool_.memory.extents();
  auto const threshold = pool_.options.release_threshold;
  if (extents == nullptr || (!pool_.ages.matter() && threshold == everything)) return;
  auto const counts = extents->counts();
  auto const cached = pool_.free.bytes() + counts.returnable;
  bool const due = pool_.ages.pages_are_due(now);
  if (!due && cached <= threshold) return;
  if (due) pool_.ages.pages_looked_at(now);
  auto surplus = cached > threshold ? std::min(counts.returnable, cached - threshold) : 0;
  lock.unlock();
  if (due) surplus = std::max(surplus, extents->idle());
  trim_extents(counts.reserved - std::min(counts.reserved, surplus));
  lock.lock();
}

std::size_t PoolTrimmer::trim_extents(std::size_t keep) noexcept {
  auto const given = pool_.memory.extents()->trim(keep);
  PoolLock const lock{pool_.mutex};
  pool_.transit.changed();
  return given;
}

std::size_t PoolTrimmer::trim(std::size_t keep_bytes) noexcept {
  return trim(keep_bytes, BlockReturns::may_wait());
}

std::size_t PoolTrimmer::trim(std::size_t keep_bytes, bool also_pending) noexcept {
  ThreadCache::CacheFlush const flush{pool_.thread_cache};
  PoolLock lock{pool_.mutex};
  auto* const extents = pool_.memory.extents();
  if (extents == nullptr) {
    if (pool_.free.bytes() <= keep_bytes) return 0;
    return returns_.give_back(lock, pool_.free.take_oldest(pool_.free.bytes() - keep_bytes, also_pending));
  }
  returns_.give_back(lock, pool_.free.take_oldest(everything, also_pending));
  lock.unlock();
  std::unique_lock still{extents->mutex()};
  auto const held = extents->held();
  still.unlock();
  return trim_extents(keep_bytes > everything - held ? everything : held + keep_bytes);
}

std::size_t PoolTrimmer::trim_idle() noexcept {
  ThreadCache::CacheFlush const flush{pool_.thread_cache};
  PoolLock lock{pool_.mutex};
  auto const until = std::exchange(idle_until_, pool_.free.releases());
  auto const blocks = returns_.give_back(lock, pool_.free.take_released_until(until));
  auto* const extents = pool_.memory.extents();
  if (extents == nullptr) return blocks;
  lock.unlock();
  auto const reserved = extents->counts().reserved;
  return trim_extents(reserved - std::min(reserved, extents->idle()));
}

void PoolTrimmer::give_way(bool may_wait) noexcept {
  auto const before = pool_.limits.returns();
  trim(0, may_wait);
  if (!may_wait) return;
  PoolLock lock{pool_.mutex};
  // What another thread gives back just now is not to be missing.
  try {
    while (pool_.transit.returning() != 0 && pool_.limits.returns() == before && pool_.transit.await(lock)) {
    }
  } catch (WaitInterrupted const&) {  // NOLINT(bugprone-empty-catch): the pool that asked learns of it at its next wait
  }
}

std::size_t PoolTrimmer::compact(DefragmentationLimits const& limits) {
  if (pool_.memory.extents() == nullptr) return 0;
  ThreadCache::CacheFlush const flush{pool_.thread_cache};
  PoolLock lock{pool_.mutex};
  returns_.give_back(lock, pool_.free.take_settled());
  lock.unlock();
  return pool_.memory.extents()->compact(limits);
}

std::size_t PoolTrimmer::shrink(PoolLock& lock, std::size_t keep) noexcept {
  bool const also_pending = BlockReturns::may_wait();
  if (pool_.memory.extents() == nullptr) {
    auto const kept = pool_.counts.active_bytes() + pool_.transit.growing() + pool_.free.bytes();
    return returns_.give_back(lock, pool_.free.take_oldest(kept > keep ? kept - keep : 0, also_pending));
  }
  returns_.give_back(lock, pool_.free.take_oldest(everything, also_pending));
  lock.unlock();
  auto const given = trim_extents(keep);
  lock.lock();
  return given;
}

void PoolTrimmer::set_max_bytes(std::size_t bytes) {
  ThreadCache::CacheFlush const flush{pool_.thread_cache};
  PoolLock lock{pool_.mutex};
  if (pool_.memory.extents() != nullptr) return set_limit_of_pages(lock, bytes);
  auto const live = pool_.counts.active_bytes() + pool_.transit.growing();
  if (bytes < live) refuse_limit(bytes, live);
  pool_.limits.set_max_bytes(bytes);
  // Against the limit as it now is: another thread may have changed it again.
  bool changes = true;
  while (changes && pool_.reserved() > pool_.limits.max_bytes()) {
    changes = shrink(lock, pool_.limits.max_bytes()) != 0 || pool_.transit.await(lock);
  }
}

void PoolTrimmer::set_limit_of_pages(PoolLock& lock, std::size_t bytes) {
  auto* const extents = pool_.memory.extents();
  for (;;) {
    std::size_t least = 0;
    {
      lock.unlock();
      std::lock_guard const still{extents->mutex()};
      least = extents->limit_to(bytes);
      lock.lock();
      if (least <= bytes) return pool_.limits.set_max_bytes(bytes);
    }
    // What is cached, or on its way back, is not in use: it goes first, and is waited for.
    bool const cached = returns_.give_back(lock, pool_.free.take_oldest(everything, BlockReturns::may_wait())) != 0;
    bool const more = cached || (pool_.transit.returning() != 0 && pool_.transit.await(lock));
    if (!more) refuse_limit(bytes, least);
  }
}

void PoolTrimmer::refuse_limit(std::size_t bytes, std::size_t least) const {
  throw InvalidArgument("bytes", fmt::format("{}", bytes),
                        fmt::format("at least the {} bytes in use at {}", least, pool_.memory.where()));
}

}  // namespace unimem::detail
