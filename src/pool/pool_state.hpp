#pragma once

#include <unimem/pool/memory_pool.hpp>

#include "pool/block.hpp"
#include "pool/free_blocks.hpp"
#include "pool/pool_ages.hpp"
#include "pool/pool_counts.hpp"
#include "pool/pool_limits.hpp"
#include "pool/pool_memory.hpp"
#include "pool/thread_cache.hpp"
#include "pool/transit.hpp"
#include "pool/zeroer.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>

namespace unimem::detail {

class BlockIntake;

/// A pool's lock.
using PoolLock = std::unique_lock<std::mutex>;

/// More than any pool has.
inline constexpr std::size_t everything = std::numeric_limits<std::size_t>::max();

/// Whether an acquire may wait for work. One that may not comes back without a block where it would have to.
enum class WaitsForWork : bool { no, yes };

/// What one acquire asks for.
struct BlockRequest {
  std::size_t bytes = 0;
  std::uint64_t queue = 0;  ///< the id of `options.queue`; 0: the host
  AcquireOptions const& options;
  PoolAges::Time time{};
  WaitsForWork waits = WaitsForWork::yes;
};

/// What the parts of a pool work on: one lock guards the lists and the counts. It is dropped for everything slow: a
/// driver call, a wait for an event, the user's clock; memory between the driver and the lists is in transit meanwhile.
/// Readiness of events is asked under the lock: it never blocks.
struct PoolState {
  PoolState(PoolCore& owner, BlockIntake& intake, Device& device, Location location, PoolOptions with,
            std::shared_ptr<LimitShare> shared);

  PoolCore& core;
  PoolOptions const options;
  std::shared_ptr<LimitShare> const share;  ///< null: it shares no limit
  PoolMemory const memory;
  std::unique_ptr<Zeroer> const zeroer;  ///< null: what owners wrote stays in their blocks
  mutable ThreadCache thread_cache;
  PoolAges ages;

  // Guarded by the lock, as far as they do not say otherwise.
  mutable std::mutex mutex;
  PoolLimits limits;
  PoolCounts counts{thread_cache};
  Transit transit;
  std::deque<Block> descriptors;  ///< all there are: each is in one of what follows, or in use for a new block
  FreeBlocks free;
  BlockList live;
  BlockList withheld;  ///< in use without an owner: their last owner's data could not be overwritten
  BlockList spare;     ///< descriptors without memory

  /// Bytes in use and in transit.
  [[nodiscard]] std::size_t taken() const noexcept;
  [[nodiscard]] std::size_t reserved() const noexcept;
  /// What `limit` leaves beside them and, with them, cached blocks.
  [[nodiscard]] std::size_t room_beside_live(std::size_t limit) const noexcept;
  [[nodiscard]] std::size_t room(std::size_t limit) const noexcept;

  /// The capacity for a new block for `bytes`: rounded, if wished and if there can be room for that, else the bytes
  /// themselves; 0 if live memory leaves no room even for those within `limit`.
  [[nodiscard]] std::size_t affordable(std::size_t bytes, bool rounded, std::size_t limit) const noexcept;

  /// A descriptor without memory, recycled or new, in no list.
  [[nodiscard]] Block& descriptor();
  /// Makes it a live block of that memory, from whichever list it is in.
  void bring_to_life(Block& block, Extents::Piece const& piece, BlockRequest const& request) noexcept;
};

}  // namespace unimem::detail
