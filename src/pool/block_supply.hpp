#pragma once

#include "pool/block_returns.hpp"
#include "pool/pool_state.hpp"

#include <cstddef>
#include <string>

namespace unimem::detail {

/// How a pool comes by a block for a request: a cached one, or a new one of free or of fresh memory.
///
/// Called with the pool's lock, which may be dropped meanwhile. What returns a block has dropped it.
class BlockSupply {
 public:
  BlockSupply(PoolState& pool, BlockReturns& returns) noexcept : pool_(pool), returns_(returns) {}

  /// Whether `reuse` of this block would wait for the work pending on it.
  [[nodiscard]] bool would_wait(Block& block, BlockRequest const& request) const noexcept;

  /// A cached block, ready for the request's queue. Null, with the lock, if it turns out to be unfit for any owner.
  /// Throws what the queue throws; the block is cached then.
  [[nodiscard]] Block* reuse(PoolLock& lock, Block& block, BlockRequest const& request);

  /// From free memory of the extents, if there are any and they have it: asks no driver. Drops the lock only to give
  /// cached blocks back, or to wait while pages are moved.
  [[nodiscard]] Block* carve(PoolLock& lock, BlockRequest const& request);

  /// A new block of memory that was wished for. Null, with the lock, if there is none or the driver has no memory;
  /// `refusal` is then what it said. Other failures are thrown.
  [[nodiscard]] Block* make(PoolLock& lock, PoolMemory::Wish const& wish, BlockRequest const& request,
                            std::string& refusal);

 private:
  /// Has the queue of the request wait for what is pending on the block, and overwrite it if need be; without the lock.
  void order_behind(Block& block, Queue& queue, bool unerased) const;

  PoolState& pool_;
  BlockReturns& returns_;
};

}  // namespace unimem::detail
