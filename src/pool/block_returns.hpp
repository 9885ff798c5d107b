#pragma once

#include "pool/pool_state.hpp"

#include <cstddef>

namespace unimem::detail {

/// How cached blocks go back to the extents, or to the driver: once their work has ended, and overwritten where the
/// pool is to do so.
///
/// A block that cannot be overwritten goes back to the driver. What is part of a page cannot go alone: it stays out of
/// use, counted as in use without an owner, until the pool ends.
///
/// Under the pool's lock, which everything here may drop meanwhile.
class BlockReturns {
 public:
  explicit BlockReturns(PoolState& pool) noexcept : pool_(pool) {}

  /// Waits for the work of blocks that were taken from among the cached ones and returns them; returns their bytes.
  std::size_t give_back(PoolLock& lock, BlockList victims) noexcept;

  /// Takes back the count of a block that is not handed out for `bytes` bytes after all, and gives it back.
  void withdraw(PoolLock& lock, Block& block, std::size_t bytes) noexcept;

  /// No block will ever be handed out again: those that were kept out of use go back.
  void end(PoolLock& lock) noexcept;

  /// Whether this thread may wait for work that blocks are pending behind: not in the middle of work, which that may
  /// come behind.
  [[nodiscard]] static bool may_wait() noexcept;

 private:
  /// Takes what could not be overwritten and must not be cut again out of a list. Without the lock.
  [[nodiscard]] BlockList take_unerased(BlockList& victims) const noexcept;
  /// Counts such blocks as in use, which end with the pool and not before. Returns their bytes.
  std::size_t keep_out_of_use(BlockList blocks) noexcept;
  void give_back_withheld(PoolLock& lock) noexcept;

  PoolState& pool_;
  bool ended_ = false;
};

}  // namespace unimem::detail
