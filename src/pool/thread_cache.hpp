#pragma once

#include "pool/depots.hpp"
#include "pool/magazines.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace unimem::detail {

class BlockIntake;
class ThreadCache;

/// The magazines of one thread for one pool, which both know: whichever ends first takes its leave of the other.
struct ThreadMagazines {
  Magazines magazines;
  std::thread::id owner = std::this_thread::get_id();
  std::mutex mutex;              ///< of what follows: taken only by a thread that ends and a pool that ends
  ThreadCache* cache = nullptr;  ///< null once the pool is gone
};

/// Where a thread finds its magazines of a pool: by the pool's number, which is never used again. Null if it has none
/// there (yet), or if another pool has their slot in the table.
struct MagazineTable {
  struct Slot {
    std::uint64_t pool = 0;
    Magazines* magazines = nullptr;
  };
  static constexpr std::size_t slots = 16;
  std::array<Slot, slots> all;

  [[nodiscard]] Magazines* find(std::uint64_t pool) const noexcept {
    auto const& slot = all[pool % slots];
    return slot.pool == pool ? slot.magazines : nullptr;
  }
};

#if defined(__GNUC__)
// Known to the linker as an offset from the thread's own register, or each look-up in a shared library would be a call.
[[gnu::tls_model("initial-exec")]]
#endif
extern constinit thread_local MagazineTable magazine_table;

/// Released blocks on their way round the core of their pool: in their threads' magazines and in the depots between
/// them. To the core they are in use still, but for the mark `Block::parked`; whatever needs the whole truth has them
/// brought back first (`flush_all`, `CacheFlush`) or counted in (`inspect`).
///
/// Thread-safe. Locks are taken in this order: the mutex of a ThreadMagazines, `mutex_`, magazines (being inside, or
/// having seized them), the mutex of the core, a depot's.
class ThreadCache {
 public:
  /// How a pool's blocks are parked: not at all, only by calls that looked at the clock, or also the quick way.
  enum class Use : std::uint8_t { none, timed, quick };
  /// Throws std::bad_alloc.
  ThreadCache(BlockIntake& core, Use use);
  ThreadCache(ThreadCache const&) = delete;
  ThreadCache& operator=(ThreadCache const&) = delete;

  /// A parked block for `bytes` that is ready for the host, if it is where it mostly is: on top of this thread's
  /// magazine. Takes no lock, no atomic read-modify-write, and calls nothing.
  [[nodiscard]] Block* take_ready(std::size_t bytes, Name name) noexcept {
    auto* const own = magazine_table.find(quick_pool_);
    if (own == nullptr || !own->enter()) [[unlikely]]
      return nullptr;
    auto* const block = own->take_ready(bytes, name);
    own->leave();
    return block;
  }

  /// Parks a block that was just released, marked with the queue that may go on with it, if there is room as things
  /// are.
  [[nodiscard]] bool keep_quickly(Block& block) noexcept {
    auto* const own = magazine_table.find(quick_pool_);
    if (own == nullptr || !own->enter()) [[unlikely]]
      return false;
    bool const kept = own->keep(block);
    own->leave();
    return kept;
  }

  /// A parked block for `bytes` that work on the queue with this id (0: the host) may start on at once, from this
  /// thread's magazines or a depot; null if there is none.
  [[nodiscard]] Block* take(std::size_t bytes, std::uint64_t queue, Name name) noexcept;

  /// Parks a block that was just released, unless it does not belong here: then it is the core's to take back. Its
  /// release gets a number above `number`.
  [[nodiscard]] bool keep(Block& block, std::uint64_t number) noexcept;

  /// Brings everything that is parked back to the core. False if that was nothing.
  bool flush_all() noexcept;

  /// The same if what is in small blocks is more than `flush_threshold_small` bytes; else what is in large ones, if
  /// that is more than `flush_threshold_large`. False if neither was.
  bool flush_beyond(std::size_t flush_threshold_small, std::size_t flush_threshold_large) noexcept;

  [[nodiscard]] bool is_used() const noexcept { return pool_ != 0; }

  /// This thread's magazines, null if it has none. What they count may be asked under the core's mutex.
  [[nodiscard]] Magazines* own() const noexcept {
    auto* const known = magazine_table.find(pool_);
    return known != nullptr ? known : own_elsewhere();
  }

  /// Bytes that are parked anywhere but in `these`, a moment ago. Under the core's mutex.
  [[nodiscard]] std::size_t bytes_beside(Magazines const* these) const noexcept;

  /// While it lives nothing is parked: everything is with the core, and goes there when it is released.
  class CacheFlush {
   public:
    explicit CacheFlush(ThreadCache& thread_cache) noexcept;
    CacheFlush(CacheFlush const&) = delete;
    CacheFlush& operator=(CacheFlush const&) = delete;
    ~CacheFlush();

   private:
    ThreadCache& thread_cache_;
  };

  /// Calls `look(Depots const&, std::span<std::shared_ptr<ThreadMagazines> const>)` while no thread parks or takes
  /// anything.
  template <class Look>
  void inspect(Look look) {
    std::lock_guard const lock{mutex_};
    seize_all();
    look(std::as_const(depots_), std::span{std::as_const(threads_)});
    release_all();
  }

  /// Ends it: nothing is parked, nor ever will be.
  void close() noexcept;

  /// A thread that ends takes its leave.
  void retire(ThreadMagazines& thread) noexcept;

 private:
  /// What the table does not know.
  [[nodiscard]] Magazines* own_elsewhere() const noexcept;
  /// Inside.
  [[nodiscard]] Block* take_from_depot(Magazines& own, std::size_t bytes, std::uint64_t queue, Name name) noexcept;
  /// Makes room for a block of so many bytes: others go to a depot, or to the core. Inside.
  void make_room(Magazines& own, std::size_t bytes) noexcept;
  /// This thread's magazines, made if it has none; null if that cannot be. Not inside.
  [[nodiscard]] Magazines* enroll() noexcept;

  // With mutex_.
  void seize_all() noexcept;
  void release_all() noexcept;

  BlockIntake& core_;               ///< where blocks go back to
  std::uint64_t const pool_;        ///< its number: 0 for a pool that parks nothing
  std::uint64_t const quick_pool_;  ///< the same, or 0, which no pool has, if each call is to look at the clock
  std::mutex mutex_;
  std::vector<std::shared_ptr<ThreadMagazines>> threads_;  ///< changed with both mutex_ and the core's mutex
  int seizures_ = 0;
  bool closed_ = false;
  Depots depots_;
};

}  // namespace unimem::detail
