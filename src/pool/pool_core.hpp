#pragma once

#include <unimem/pool/memory_pool.hpp>

#include "core/held_over_fork.hpp"
#include "core/poison.hpp"
#include "pool/block.hpp"
#include "pool/extents.hpp"
#include "pool/free_blocks.hpp"
#include "pool/object_source.hpp"
#include "pool/settlers.hpp"
#include "pool/shared_limit.hpp"
#include "pool/thread_cache.hpp"
#include "pool/zeroer.hpp"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace unimem::detail {

class AllocationRecorder;

/// What `MemoryPool` is inside, and what its blocks point back to.
///
/// One lock guards the lists and the counts. It is dropped for everything slow: a driver call, a wait for an event, the
/// user's clock. Memory that is between the driver and the lists meanwhile is in transit: it counts against the limit,
/// so that the limit is exact under threads, and a thread that finds no room first waits for it to settle, so that
/// memory another thread is giving back is not reported as missing. Readiness of events is asked under the lock: it
/// never blocks.
///
/// Where the device maps pages, blocks are parts of them (Extents): what would go back to the driver one by one then
/// goes there first, is united with what lies beside it, and serves blocks of any size. Otherwise each block is an
/// allocation of the driver.
///
/// Most blocks never come here: a released one is parked (ThreadCache), and taken from there. What is parked counts as
/// in use here, until it is brought back: before new memory is taken (unless it is a small part of what there is, and
/// pages can be had), and before anything is refused, given back or waited for; as long as that lasts nothing is
/// parked. A pool that gives blocks back by their age parks them by calls that look at the clock, and once some may be
/// too old (look_at_ages) brings all of them back. One that gives them back beyond a threshold parks none, since that
/// is decided at each release; nor does one whose blocks are recorded (AllocationRecorder) or overwritten (Zeroer), so
/// that the quick way need not ask.
///
/// A block that cannot be overwritten goes back to the driver. What is part of a page cannot go alone: it stays out of
/// use, counted as in use without an owner, until the pool ends.
///
/// Where it shares a limit with other pools, what it takes from its device it takes from its share of that first; what
/// the others have only cached they are asked for when all that is cached here does not do.
///
/// A forked child has the pool whole, less what other threads held of it: their blocks stay in use, and what they had
/// in transit has no owner.
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
    if (options.queue == nullptr && options.alignment == 0) {
      if (auto* const parked = thread_cache_.take_ready(bytes, options.name)) [[likely]] {
        if (poisons) expose(*parked);
        return *parked;
      }
    }
    return acquire_otherwise(bytes, options);
  }

  /// A cached block that is ready for the host, or null.
  [[nodiscard]] Block* acquire_cached(std::size_t bytes, Name name);

  /// A block of free memory that is a better place for the contents of `block`, or null.
  [[nodiscard]] Block* acquire_better(Block const& block, std::size_t bytes);

  void release(Block& block, Event last_use) noexcept {
    if (!poisons && last_use == Event{} && block.inherited == Event{}) [[likely]] {
      block.parked_for = 0;
      if (thread_cache_.keep_quickly(block)) [[likely]]
        return;
    }
    release_otherwise(block, last_use);
  }

  // For ThreadCache.
  void take_back(std::span<Block* const> blocks) noexcept;
  void take_back(Magazines& magazines) noexcept;
  void take_back(Depots& depots) noexcept;
  void take_back_large(Magazines& magazines) noexcept;
  void take_back_large(Depots& depots) noexcept;
  void count_hits_of(Magazines const& magazines) noexcept;
  [[nodiscard]] std::unique_lock<std::mutex> lock() const { return std::unique_lock{mutex_}; }
  [[nodiscard]] ThreadCache& thread_cache() noexcept { return thread_cache_; }

  std::size_t trim(std::size_t keep_bytes) noexcept;
  std::size_t trim_idle() noexcept;
  void give_way(bool may_wait) noexcept;
  [[nodiscard]] PoolDefragmentation defragment(DefragmentationLimits const& limits);
  [[nodiscard]] PoolStatistics statistics() const {
    auto const still = hold_extents();
    return statistics_while_held();
  }
  /// Keeps the extents as they are, if there are any: asked for before other locks.
  [[nodiscard]] std::unique_lock<std::mutex> hold_extents() const {
    return extents_ == nullptr ? std::unique_lock<std::mutex>{} : extents_->hold();
  }
  [[nodiscard]] PoolStatistics statistics_while_held() const;
  [[nodiscard]] PoolFragmentation fragmentation() const;
  [[nodiscard]] std::vector<OutOfMemory::Holder> holders(std::size_t most) const;
  [[nodiscard]] std::size_t max_bytes() const noexcept;
  void set_max_bytes(std::size_t bytes);
  [[nodiscard]] std::size_t bytes_in_use() noexcept;
  [[nodiscard]] bool set_marks(std::size_t below, std::size_t above) noexcept;
  [[nodiscard]] bool has_left_marks() const noexcept { return left_marks_.load(std::memory_order_relaxed); }
  void validate() const;

  /// Keeps everything where it is while the process forks; false, and nothing is kept, if that cannot be by then.
  [[nodiscard]] bool hold_over_fork(HeldOverFork::Deadline deadline) noexcept;
  void let_go_after_fork(bool in_child) noexcept;

  [[nodiscard]] Device& device() const noexcept { return device_; }
  [[nodiscard]] Location location() const noexcept { return location_; }
  [[nodiscard]] StackOptions const& stacks() const noexcept { return options_.stacks; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Time = std::chrono::steady_clock::time_point;

  class Visit;

  static constexpr std::size_t everything = std::numeric_limits<std::size_t>::max();

  /// Whether something is given back unasked, by age or beyond a threshold.
  [[nodiscard]] bool trims_by_itself() const noexcept;
  [[nodiscard]] ThreadCache::Use use_of_thread_cache() const noexcept;

  /// The moment before which a cached block is too old; the clock's beginning when age does not matter. Calls the
  /// user's clock.
  [[nodiscard]] Time now() const;
  [[nodiscard]] Time expiry(Time now) const noexcept;

  /// Whether something that is parked may be too old. One load.
  [[nodiscard]] bool ages_are_due(Time now) const noexcept;
  /// Brings back what is parked and gives back what is too old.
  void look_at_ages(Time now) noexcept;

  // All under the lock.
  /// What may be reserved, but for limits that are shared.
  [[nodiscard]] std::size_t limit() const noexcept;
  /// And for them, as far as others leave it just now.
  [[nodiscard]] std::size_t limit_beside_others() const noexcept;
  [[nodiscard]] std::size_t reserved() const noexcept;
  /// Bytes in use and in transit.
  [[nodiscard]] std::size_t taken() const noexcept { return counts_.active_bytes + growing_ + returning_; }
  /// What `limit` leaves beside them and, with them, cached blocks.
  [[nodiscard]] std::size_t room_beside_live(std::size_t limit) const noexcept;
  [[nodiscard]] std::size_t room(std::size_t limit) const noexcept;

  /// The capacity for a new block for `bytes`: rounded, if wished and if there can be room for that, else the bytes
  /// themselves; 0 if live memory leaves no room even for those within `limit`.
  [[nodiscard]] std::size_t affordable(std::size_t bytes, bool rounded, std::size_t limit) const noexcept;

  /// The largest cached block that serves a request.
  [[nodiscard]] std::size_t largest_block_for(std::size_t bytes) const noexcept;

  /// Takes what is cached and should go before a block of `capacity` is added, for the cache to stay within its budget.
  [[nodiscard]] BlockList take_surplus(std::size_t capacity) noexcept;

  // What is not as quick: tail calls, so that the quick part has nothing to save.
  [[nodiscard]] Block& acquire_otherwise(std::size_t bytes, AcquireOptions const& options);
  void release_otherwise(Block& block, Event last_use) noexcept;

  /// What nothing parked serves, and what cannot be parked; the first with a line for it.
  [[nodiscard]] Block& acquire_recorded(std::size_t bytes, std::uint64_t queue, AcquireOptions const& options);
  [[nodiscard]] Block& acquire_here(std::size_t bytes, std::uint64_t queue, AcquireOptions const& options, Time now);
  void release_here(Block& block, Time now) noexcept;

  // Each of these is called with the lock held and may drop it meanwhile. Those that return a block return without it.
  /// Null if the block turns out to be unfit for any owner.
  [[nodiscard]] Block* reuse(Lock& lock, Block& block, std::size_t bytes, AcquireOptions const& options, Time now);
  /// A new block of memory that `source()` finds: an empty piece if there is none, and then null is returned, as it is
  /// when the driver has no memory; `refusal` is then what it said. Other failures are thrown.
  template <class Source>
  [[nodiscard]] Block* make(Lock& lock, std::size_t capacity, std::size_t bytes, AcquireOptions const& options,
                            std::string& refusal, Source const& source);
  /// From free memory of the extents, if there are any and they have it: asks no driver. Drops the lock only to give
  /// cached blocks back, or to wait while pages are moved.
  [[nodiscard]] Block* carve(Lock& lock, std::size_t bytes, AcquireOptions const& options);
  [[nodiscard]] Block* grow(Lock& lock, std::size_t capacity, std::size_t bytes, AcquireOptions const& options,
                            std::string& refusal);
  /// Waits for the victims' work and returns them to the extents, else to the driver; returns their bytes.
  std::size_t give_back(Lock& lock, BlockList victims) noexcept;
  /// Gives pages back that no block was in for a whole `trim_interval`, and what is beyond the `release_threshold`.
  void trim_pages(Lock& lock, Time now) noexcept;
  /// Has the extents give pages back until `keep()` bytes are reserved, which is asked without the lock.
  template <class Keep>
  std::size_t trim_extents(Lock& lock, Keep const& keep) noexcept;
  std::size_t trim(std::size_t keep_bytes, bool also_pending) noexcept;
  /// Gives back what is cached until at most `keep` bytes are reserved; returns the bytes. Waits for pending work, but
  /// not in the middle of work.
  std::size_t shrink(Lock& lock, std::size_t keep) noexcept;
  /// Whether this thread may wait for work that blocks are pending behind.
  [[nodiscard]] static bool may_wait() noexcept;
  /// Has what is still pending given back by a thread of its own when its work has ended. The pool is gone.
  void give_back_later(Lock& lock) noexcept;
  /// `set_max_bytes` where blocks are parts of pages.
  void set_limit_of_pages(Lock& lock, std::size_t bytes);
  [[noreturn]] void refuse_limit(std::size_t bytes, std::size_t least) const;
  /// Waits until something has changed if memory is in transit; false if none is, or if that would never end, since
  /// the thread that gives it back waits for the kernel that called this.
  bool await_transit(Lock& lock);
  /// In a watched thread: waits for the work of a cached block, or of the oldest that make up `bytes`, before they are
  /// taken. Whether it did, and dropped the lock: then all may be different.
  bool await_work_of(Lock& lock, Block const& block);
  bool await_oldest(Lock& lock, std::size_t bytes);
  bool await_watched(Lock& lock, std::vector<Event> const& pending);
  /// How often something has come back to the limit that is shared.
  [[nodiscard]] std::uint64_t returns_to_share() const noexcept;
  /// Asks the pools that share a limit with this one for what they have only cached, unless what is in use leaves no
  /// room for `bytes`; whether anything may have come of it since there had been so many `returns`.
  [[nodiscard]] bool make_room_beside(Lock& lock, std::size_t bytes, bool may_wait, std::uint64_t returns);
  /// Throws OutOfMemory with all that is known; `refusal` is what the driver said, if it came to that.
  [[noreturn]] void fail(Lock& lock, std::size_t bytes, std::string const& refusal);

  /// A descriptor, recycled or new, in a list of its own.
  [[nodiscard]] BlockList descriptor();
  /// Makes the first descriptor of a list a live block of that memory.
  [[nodiscard]] Block& bring_to_life(BlockList& from, Extents::Piece const& piece, std::size_t bytes,
                                     Name name) noexcept;
  /// Takes back the count of a block that is not handed out after all, and gives it back.
  void withdraw(Lock& lock, Block& block, std::size_t bytes) noexcept;
  /// Takes what could not be overwritten and must not be cut again out of a list. Without the lock.
  [[nodiscard]] BlockList take_unerased(BlockList& victims) noexcept;
  /// Counts such blocks as in use, which end with the pool and not before. Returns their bytes.
  std::size_t keep_out_of_use(BlockList blocks) noexcept;
  /// Once no block will ever be handed out again: those that were kept out of use go back.
  void give_back_withheld(Lock& lock) noexcept;
  /// At the end of a Visit. When the pool is gone, the last one of all destroys the core, and has dropped the lock
  /// then: nothing of it may be touched afterwards.
  void leave(Lock& lock) noexcept;
  /// Takes a block that was released back into the extents, if it is done and they can be had at once.
  bool unite(Block& block, std::optional<Extents::Returning>& returning) noexcept;
  [[nodiscard]] std::optional<Extents::Returning> uniting() noexcept;
  void take_back(Block& block, std::optional<Extents::Returning>& returning) noexcept;
  /// Has `take(each)` call `each(Block&)` for what is parked somewhere; the peak is noted as `of_peak` sees it.
  template <class Take>
  void take_back_by(Magazines* of_peak, Take const& take) noexcept;
  /// The most bytes that may have been in use since these magazines (null: none) began to watch: all that is out of
  /// here, less the least that was parked.
  [[nodiscard]] std::size_t used_at_most(Magazines const* these) const noexcept;
  /// Notes that as a peak. Before and after the bytes that are out of here change.
  void note_peak(Magazines* these) noexcept;
  /// The same where the bytes that are parked elsewhere are known.
  [[nodiscard]] std::size_t used_at_most(Magazines const* these, std::size_t parked_elsewhere) const noexcept;
  void note_peak(Magazines* these, std::size_t parked_elsewhere) noexcept;
  enum class From : std::uint8_t { cache, extents, device };
  void note_marks() noexcept;
  void count_in(Block& block, std::size_t bytes, From from) noexcept;
  void count_out(Block& block) noexcept;
  /// Takes back the count of a hit that came to nothing.
  void uncount(std::size_t bytes) noexcept;
  [[nodiscard]] std::vector<OutOfMemory::Holder> holders_locked(std::size_t most) const;
  void changed() noexcept;
  /// Takes back what was counted as in transit when there had been so many `forks`: in a child of one since, it has
  /// been.
  void settle(std::size_t& in_transit, std::size_t bytes, unsigned forks) noexcept;

  /// Under AddressSanitizer, makes a cached block's host memory an error to touch, and back.
  void hide(Block const& block) noexcept;
  void expose(Block const& block) noexcept;
  [[nodiscard]] bool host_memory() const noexcept;

  Device& device_;
  Location const location_;
  PoolOptions const options_;
  AllocationRecorder* const recorder_;  ///< null: nothing is recorded

  std::shared_ptr<LimitShare> const share_;  ///< null: it shares no limit
  std::unique_ptr<Extents> const extents_;   ///< null: every block is an object
  ObjectSource const objects_;
  std::unique_ptr<Zeroer> const zeroer_;  ///< null: what owners wrote stays in their blocks

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t changes_ = 0;
  unsigned waiting_ = 0;   ///< for a change
  Settlers settlers_;      ///< the threads in `give_back`
  unsigned forks_ = 0;     ///< that this process has come from since the pool was made
  std::size_t max_bytes_;  ///< of pages the extents' limit too: changed while they are held
  FreeBlocks free_;
  BlockList live_;
  BlockList withheld_;         ///< in use without an owner: their last owner's data could not be overwritten
  BlockList spare_;            ///< descriptors without memory
  std::size_t growing_ = 0;    ///< in transit from the driver, or from the extents, bytes
  std::size_t returning_ = 0;  ///< in transit back, bytes
  std::size_t stranded_ = 0;   ///< was in transit when this process was forked: bytes of extents, it is not known where
  unsigned inside_ = 0;        ///< visits that are not over yet
  std::uint64_t idle_until_ = 0;  ///< the last release before idle blocks were last looked for
  Time idle_since_{};             ///< when the extents' idle pages were last looked at
  std::atomic<Time> young_since_{
      Time::min()};  ///< nothing parked is due until an interval after this; the least: unknown
  PoolStatistics counts_;
  std::size_t below_ = 0;  ///< the marks between which a watcher expects the active bytes
  std::size_t above_ = everything;
  std::atomic<bool> left_marks_{false};  ///< a hint to look; publishes nothing
  mutable ThreadCache thread_cache_;
  std::unique_ptr<PoolCore> self_;  ///< set when the pool is gone: nothing is handed out any more
  bool later_ = false;              ///< a thread of its own gives the rest back, which keeps the core
  HeldOverFork held_;
};

/// A call that the pool's end may overtake, and that keeps the core alive then. Its thread knows which it is making: in
/// a forked child only those go on, and a thread may fork in the middle of one, where an upstream of the user's does.
/// Begun under the core's lock; its last word there is `leave`.
class PoolCore::Visit {
 public:
  explicit Visit(PoolCore& core) noexcept : core_(core), outer_(innermost) {
    innermost = this;
    ++core.inside_;
  }
  Visit(Visit const&) = delete;
  Visit& operator=(Visit const&) = delete;
  ~Visit() { innermost = outer_; }

  /// How many this thread is making.
  [[nodiscard]] static unsigned of_this_thread(PoolCore const& core) noexcept {
    unsigned count = 0;
    for (auto const* visit = innermost; visit != nullptr; visit = visit->outer_) count += &visit->core_ == &core;
    return count;
  }

 private:
  static inline constinit thread_local Visit const* innermost = nullptr;

  PoolCore const& core_;
  Visit const* const outer_;
};

}  // namespace unimem::detail
