#pragma once

#include "pool/block_returns.hpp"
#include "pool/pool_state.hpp"

#include <cstddef>
#include <cstdint>

namespace unimem::detail {

/// What a pool gives back to its device: asked to, by age, and beyond a limit.
///
/// Thread-safe; what is given the pool's lock may drop it meanwhile.
class PoolTrimmer {
 public:
  PoolTrimmer(PoolState& pool, BlockReturns& returns) noexcept : pool_(pool), returns_(returns) {}

  // As MemoryPool, and `detail::give_way`, say.
  std::size_t trim(std::size_t keep_bytes) noexcept;
  std::size_t trim_idle() noexcept;
  void give_way(bool may_wait) noexcept;
  void set_max_bytes(std::size_t bytes);
  /// What `MemoryPool::defragment` does, and returns the bytes that moved.
  [[nodiscard]] std::size_t compact(DefragmentationLimits const& limits);

  /// Whether something that is parked may be too old. One load.
  [[nodiscard]] bool ages_are_due(PoolAges::Time now) const noexcept {
    return pool_.thread_cache.is_used() && pool_.ages.parked_may_be_due(now);
  }
  /// Brings back what is parked and gives back what is too old.
  void look_at_ages(PoolAges::Time now) noexcept;

  /// Gives back cached blocks that are too old, and then pages (`trim_pages`).
  void trim_by_age(PoolLock& lock, PoolAges::Time now) noexcept;
  /// The same for blocks beyond the `release_threshold` too.
  void trim_after_release(PoolLock& lock, PoolAges::Time now) noexcept;

  /// Gives back what is cached until at most `keep` bytes are reserved; returns the bytes. Waits for pending work, but
  /// not in the middle of work.
  std::size_t shrink(PoolLock& lock, std::size_t keep) noexcept;

 private:
  std::size_t trim(std::size_t keep_bytes, bool also_pending) noexcept;
  /// Gives pages back that no block was in for a whole `trim_interval`, and what is beyond the `release_threshold`.
  void trim_pages(PoolLock& lock, PoolAges::Time now) noexcept;
  /// Has the extents give pages back until `keep` bytes are reserved; returns the bytes. Without the lock.
  std::size_t trim_extents(std::size_t keep) noexcept;
  /// `set_max_bytes` where blocks are parts of pages.
  void set_limit_of_pages(PoolLock& lock, std::size_t bytes);
  [[noreturn]] void refuse_limit(std::size_t bytes, std::size_t least) const;

  PoolState& pool_;
  BlockReturns& returns_;
  std::uint64_t idle_until_ = 0;  ///< the last release before idle blocks were last looked for; under the lock
};

}  // namespace unimem::detail
