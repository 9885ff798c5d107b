#pragma once

#include <unimem/pool/memory_pool.hpp>

#include "core/fork.hpp"
#include "core/poison.hpp"
#include "pool/block_intake.hpp"
#include "pool/block_returns.hpp"
#include "pool/block_supply.hpp"
#include "pool/pool_level.hpp"
#include "pool/pool_reports.hpp"
#include "pool/pool_state.hpp"
#include "pool/pool_trimmer.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace unimem::detail {

class AllocationRecorder;

/// What `MemoryPool` is inside, and what its blocks point back to: how blocks are handed out and come back, and how
/// long that lives. What it works on, and under which lock, is in PoolState; each part that works on it is a class of
/// its own.
///
/// Memory that is between the driver and the lists is in transit (Transit): it counts against the limit.
///
/// Where the device maps pages, blocks are parts of them (Extents): what would go back to the driver one by one then
/// goes there first, is united with what lies beside it, and serves blocks of any size. Otherwise each block is an
/// allocation of the driver.
///
/// Most blocks never come here: a released one is parked (ThreadCache), and taken from there. What is parked counts as
/// in use here, until it is brought back: before new memory is taken (unless it is a small part of what there is, and
/// pages can be had), and before anything is refused, given back or waited for; as long as that lasts nothing is
/// parked. A pool that gives blocks back by their age parks them by calls that look at the clock, and once some may be
/// too old (PoolAges) brings all of them back. One that gives them back beyond a threshold parks none, since that is
/// decided at each release; nor does one whose blocks are recorded (AllocationRecorder) or overwritten (Zeroer), so
/// that the quick way need not ask.
///
/// Where it shares a limit with other pools, what it takes from its device it takes from its share of that first; what
/// the others have only cached they are asked for when all that is cached here does not do.
///
/// A forked child has the blocks and their contents, and not the pool: it takes none, and what it releases stays.
///
/// Thread-safe.
class PoolCore {
 public:
  /// `share` null: it shares no limit.
  PoolCore(Device& device, Location location, PoolOptions options, std::shared_ptr<LimitShare> share = nullptr);
  PoolCore(PoolCore const&) = delete;
  PoolCore& operator=(PoolCore const&) = delete;
  ~PoolCore() = default;

  /// Ends a pool: its cached blocks go back to the driver when their work has ended, which is waited for, but not in
  /// the middle of work, which it may come behind. Blocks in use keep the core alive and go back one by one as they are
  /// released.
  static void close(std::unique_ptr<PoolCore> core) noexcept;

  /// A live block of at least `bytes` (not 0) bytes. Strong guarantee, except that cached blocks may have been given
  /// back.
  [[nodiscard]] Block& acquire(std::size_t bytes, AcquireOptions const& options) {
    if (auto* const parked = take_ready(bytes, options)) [[likely]]
      return *parked;
    return *acquire_otherwise(bytes, options, WaitsForWork::yes);
  }

  /// The same; null, and nothing is counted, where that would wait for work.
  [[nodiscard]] Block* acquire_without_waiting(std::size_t bytes, AcquireOptions const& options) {
    if (auto* const parked = take_ready(bytes, options)) [[likely]]
      return parked;
    return acquire_otherwise(bytes, options, WaitsForWork::no);
  }

  /// A cached block that is ready for the host, or null.
  [[nodiscard]] Block* acquire_cached(std::size_t bytes, Name name);

  /// A block of free memory that is a better place for the contents of `block`, or null.
  [[nodiscard]] Block* acquire_better(Block const& block, std::size_t bytes);

  void release(Block& block, Event last_use) noexcept {
    if (!under_address_sanitizer && last_use == Event{} && block.inherited == Event{}) [[likely]] {
      block.parked_for = 0;
      if (state_.thread_cache.keep_quickly(block)) [[likely]]
        return;
    }
    release_otherwise(block, last_use);
  }

  /// This, in the process that made it; throws UnsupportedOperation in a forked child.
  [[nodiscard]] PoolCore& here() {
    made_.require("using a memory pool");
    return *this;
  }
  [[nodiscard]] bool inherited() const noexcept { return made_.inherited(); }

  [[nodiscard]] PoolTrimmer& trimmer() noexcept { return trimmer_; }
  [[nodiscard]] PoolReports const& reports() const noexcept { return reports_; }
  [[nodiscard]] PoolLevel& level() noexcept { return level_; }

  [[nodiscard]] std::unique_lock<std::mutex> lock() const { return std::unique_lock{state_.mutex}; }

  [[nodiscard]] Device& device() const noexcept { return state_.memory.device(); }
  [[nodiscard]] Location location() const noexcept { return state_.memory.location(); }
  [[nodiscard]] StackOptions const& stacks() const noexcept { return state_.options.stacks; }
  [[nodiscard]] bool zeroes_on_release() const noexcept { return state_.zeroer != nullptr; }

 private:
  /// One that this thread has parked and the host may use at once, or null.
  [[nodiscard]] Block* take_ready(std::size_t bytes, AcquireOptions const& options) {
    if (options.queue != nullptr || options.alignment != 0) return nullptr;
    auto* const parked = state_.thread_cache.take_ready(bytes, options.name);
    if (under_address_sanitizer && parked != nullptr) state_.memory.expose(*parked);
    return parked;
  }

  /// What a block needs beside what is asked for, so that some address in it has that alignment. Throws
  /// InvalidArgument.
  [[nodiscard]] std::size_t room_to_align(std::size_t alignment) const;

  // What is not as quick: tail calls, so that the quick part has nothing to save. Null where a request would wait for
  // work and may not.
  [[nodiscard]] Block* acquire_otherwise(std::size_t bytes, AcquireOptions const& options, WaitsForWork waits);
  void release_otherwise(Block& block, Event last_use) noexcept;

  /// What nothing parked serves, and what cannot be parked; the first with a line for it.
  [[nodiscard]] Block* acquire_recorded(BlockRequest const& request);
  [[nodiscard]] Block* acquire_here(BlockRequest const& request);
  void release_here(Block& block, PoolAges::Time now) noexcept;

  /// A call that the pool's end may overtake, and that keeps the core alive then: begun under the lock, and ended by
  /// `leave`. When the pool is gone, the last one of all destroys the core, and has dropped the lock then: nothing of
  /// it may be touched afterwards.
  void enter() noexcept { ++inside_; }
  void leave(PoolLock& lock) noexcept;
  /// Has what is still pending given back by a thread of its own when its work has ended. The pool is gone.
  void give_back_later(PoolLock& lock) noexcept;

  MadeHere const made_{};
  AllocationRecorder* const recorder_;  ///< null: nothing is recorded
  PoolState state_;
  BlockIntake intake_{state_};
  BlockReturns returns_{state_};
  BlockSupply supply_{state_, returns_};
  PoolTrimmer trimmer_{state_, returns_};
  PoolReports reports_{state_};
  PoolLevel level_{state_, made_};

  // Under the lock.
  unsigned inside_ = 0;             ///< calls that have entered and not left yet
  std::unique_ptr<PoolCore> self_;  ///< set when the pool is gone: nothing is handed out any more
  bool later_ = false;              ///< a thread of its own gives the rest back, which keeps the core
};

}  // namespace unimem::detail
