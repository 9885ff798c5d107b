#pragma once

#include <unimem/core/error.hpp>
#include <unimem/core/export.hpp>
#include <unimem/core/name.hpp>
#include <unimem/core/stack.hpp>
#include <unimem/device/device.hpp>
#include <unimem/pool/allocation.hpp>
#include <unimem/pool/statistics.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace unimem {

class MemoryPool;
class Upstream;

namespace detail {
class LimitShare;
class PoolCore;
class SharedLimit;
void give_way(MemoryPool& pool, bool may_wait) noexcept;
std::vector<PoolStatistics> statistics_of(std::span<MemoryPool* const> pools, SharedLimit& limit);
}  // namespace detail

/// What a pool's blocks are made of.
enum class PoolBacking : std::uint8_t {
  automatic,    ///< pages, where the device maps them and the limit leaves room for at least 256; else allocations
  pages,        ///< parts of pages that the pool reserves, maps and moves: what is free in pieces serves as in one
  allocations,  ///< an allocation of the driver, or of the pool's upstream, for each block
};

[[nodiscard]] UNIMEM_API std::string_view to_string(PoolBacking backing) noexcept;

/// How a pool behaves. Every field has the default most programs want.
struct PoolOptions {
  /// Hard limit on the bytes reserved from the device, cached ones included. Default: none but the device's own
  /// capacity.
  std::size_t max_bytes = std::numeric_limits<std::size_t>::max();

  /// Blocks cached longer than this are given back by a later acquire or release, once their work has ended, those that
  /// a thread keeps for itself at the latest when they are older by an eighth; pages that were free for a whole
  /// interval between two looks, so after one to two intervals. Zero: never by age.
  std::chrono::nanoseconds trim_interval{0};

  /// When a release leaves more than this cached, the oldest cached blocks without pending work are given back.
  /// Default: no threshold.
  std::size_t release_threshold = std::numeric_limits<std::size_t>::max();

  /// Overwrite every block with zeros when it is released, whether it is kept or not: what one owner wrote never
  /// reaches another. At once where nothing is pending on it; otherwise behind that work, by the queue that takes it
  /// next, before that queue's own work, or when another owner takes it. A block that cannot be overwritten is not used
  /// again: memory without pages goes back, pages stay out of use until the pool ends. (The one thing not seen is work
  /// of the next owner's queue that it accepted and that fails later.) Threads keep no blocks for themselves, so that
  /// each acquire and release takes a lock. The host's memory of such a pool is left out of core dumps
  /// (MADV_DONTDUMP); that of an upstream is the upstream's to see to.
  bool zero_on_release = false;

  /// What blocks are made of. Pages are reserved whole, so that a limit of a few of them would be felt as one of fewer
  /// bytes: that is why small pools go without.
  PoolBacking backing = PoolBacking::automatic;

  /// Where memory comes from; null: the device. With an upstream each block is an object of its own, whatever the
  /// device could do with pages (`PoolBacking::pages` is refused), and the device's capacity is a limit all the same.
  /// Kept for as long as a block of the pool is in use.
  std::shared_ptr<Upstream> upstream{};

  /// Of which blocks that go by their addresses (PoolResource, CudaResource) the stacks of taking and giving them back
  /// are captured, so that giving one back again is reported with both. UnsupportedOperation where the library cannot.
  /// Each of them takes a kilobyte while it is in use, and so do those that were given back last, at most 512 of a
  /// resource. (An Allocation cannot be given back twice.) A manager's pools have its `LeakOptions::stacks` if this
  /// asks for none.
  StackOptions stacks{};

  /// The clock ages are measured with; for tests. Default: std::chrono::steady_clock. Called, with no lock held and
  /// only if there is a trim_interval, by every acquire and release: it must be thread-safe and must not throw.
  std::function<std::chrono::steady_clock::time_point()> clock{};
};

/// What one acquire asks for besides its size.
struct AcquireOptions {
  /// A power of two, bytes; 0 or less than the device's: the device's own alignment. For more than that the block is
  /// larger by as much; of memory without addresses (OpenCL's) it is refused.
  std::size_t alignment = 0;

  /// The queue that will use the block first. A block whose last work ran on the same queue is taken without waiting;
  /// for another's, this queue is made to wait. Null: the block is ready for the host when acquire returns, which waits
  /// for a cached block's pending work rather than take more memory, so that a host running ahead of its device does
  /// not fill it.
  Queue* queue = nullptr;

  /// The asking component's name, for usage reports and out-of-memory messages.
  Name name{};

  /// False: for callers that can do without. A block is taken only if its last work has ended, or ran on the same
  /// queue; nothing pending is waited for to make room, and without other room it is OutOfMemory.
  bool may_wait = true;
};

namespace detail {

/// What `MemoryPool::acquire` takes its block from, with room for a larger alignment than the device's; `bytes` is not
/// 0.
[[nodiscard]] UNIMEM_API Block& acquire(PoolCore& core, std::size_t bytes, AcquireOptions const& options);

/// The same for `MemoryPool::acquire_without_waiting`; null if that would wait.
[[nodiscard]] UNIMEM_API Block* acquire_without_waiting(PoolCore& core, std::size_t bytes,
                                                        AcquireOptions const& options);

/// The first byte of a block whose address has that alignment.
[[nodiscard]] UNIMEM_API std::size_t first_aligned(Block const& block, std::size_t alignment);

}  // namespace detail

/// Memory of one device at one location, kept for reuse. Freed blocks are cached and handed out again to requests they
/// fit nearly exactly; nothing returns to the driver before the work that uses it has ended. The cache is bounded even
/// without options: before taking new memory for a block of its own, a pool gives back cached blocks that are done,
/// those that are large and old first, until it holds no more than a fifth, or 64 MiB, beyond the most it ever had in
/// use at once.
///
/// Each thread keeps a few of the blocks it has released for itself, bounded in bytes, so that asking again for what
/// was just released takes no lock. All other memory stands behind one lock: parts of pages, or whole driver
/// allocations (`PoolBacking`). Before anything new is taken, refused, trimmed or waited for, all threads' blocks are
/// brought back, without their help; a thread that ends hands its own back. With a `release_threshold` or
/// `zero_on_release` no thread keeps any. No driver call, wait or user code runs under a lock. Thread-safe. All
/// allocations should be released before the pool is destroyed. In a forked child whose parent made the pool, its
/// functions throw UnsupportedOperation, and blocks are kept.
class UNIMEM_API MemoryPool {
 public:
  /// Throws UnsupportedOperation for pages where there are none, and for stacks where none can be captured.
  MemoryPool(Device& device, Location location, PoolOptions options = {});
  /// One of several that share a limit, which a manager makes (`MemoryManager::set_limit`).
  MemoryPool(Device& device, Location location, PoolOptions options, std::shared_ptr<detail::LimitShare> share);
  MemoryPool(MemoryPool const&) = delete;
  MemoryPool& operator=(MemoryPool const&) = delete;

  /// Waits for the work on cached blocks and gives them back; in a kernel it waits for nothing, since that work may
  /// come behind the kernel, and a thread of the library's gives back what is pending when its work has ended. Blocks
  /// still in use are reported to the log and outlive the pool; each goes back to the driver when it is released and
  /// its work has ended.
  ~MemoryPool();

  /// A block of at least `bytes` bytes, contents undefined (but see `zero_on_release`); empty for 0. A cached block is
  /// taken if it is at most an eighth, or 4 KiB, larger; a thirty-second where blocks are made of pages. When the limit
  /// or the device is full, cached blocks are given back, then the oldest pending ones are waited for, and only then it
  /// throws OutOfMemory; at once, and giving nothing back, if live blocks alone leave no room. Throws InvalidArgument
  /// for a bad alignment, and what the driver throws if it fails for another reason than memory. After an exception
  /// cached blocks may be fewer; nothing else has changed. O(log cached blocks).
  [[nodiscard]] Allocation acquire(std::size_t bytes, AcquireOptions const& options = {}) {
    if (bytes == 0) return {};
    auto& block = detail::acquire(*core_, bytes, options);
    return {&block, bytes, options.alignment == 0 ? 0 : detail::first_aligned(block, options.alignment)};
  }

  /// The same, but nothing where `acquire` would wait for pending work, which then counts as no failure: for callers
  /// that hold what such work may be waiting for. They let go of that and call `acquire`.
  [[nodiscard]] std::optional<Allocation> acquire_without_waiting(std::size_t bytes,
                                                                  AcquireOptions const& options = {}) {
    if (bytes == 0) return Allocation{};
    auto* const block = detail::acquire_without_waiting(*core_, bytes, options);
    if (block == nullptr) return std::nullopt;
    return Allocation{block, bytes, options.alignment == 0 ? 0 : detail::first_aligned(*block, options.alignment)};
  }

  /// A cached block whose last work has ended, ready for the host; empty if there is none that fits. Takes no memory,
  /// waits for nothing, and counts as no failure. O(log cached blocks).
  [[nodiscard]] Allocation acquire_cached(std::size_t bytes, Name name = {});

  /// Gives cached blocks back, oldest first, until at most `keep_bytes` are cached. Blocks whose work is pending are
  /// waited for, but not in the middle of a kernel, which they may come behind. Returns the bytes given back.
  std::size_t trim(std::size_t keep_bytes = 0);

  /// Gives back what was not used since this was last called: cached blocks that were cached then, pages that were
  /// free all the time. Waits for nothing, and brings back what threads keep, so that it is for calling now and then
  /// (IdleTrimmer does). Returns the bytes given back.
  std::size_t trim_idle();

  /// Another block for what is in `block`, in free memory of the pool, for a holder that alone knows its address: if it
  /// copies to it and releases `block`, more is free in whole pages than before, or as much and in larger pieces, or
  /// slabs of small blocks are fuller and others nearer to being empty. Empty where that would not be so, so that
  /// moving comes to an end; where memory for it would have to be taken from the device; where blocks are allocations.
  /// Ready for the host; waits for nothing but the driver, if pages are being moved. Brings back what threads keep.
  /// `block` stays as it is. Has the device's own alignment. Counts as an acquire under the name of `block`.
  [[nodiscard]] Allocation acquire_better(Allocation const& block);

  /// Puts the free memory of a pool of pages side by side: what is cached is united, and pages that are free as a whole
  /// are moved together by their mappings. No byte in use moves, and nothing is copied; free parts of pages in use stay
  /// where they are (`MemoryManager::defragment` moves blocks in use too). Does not wait for pending work, whose blocks
  /// stay. What an acquire would have to gather it then finds. Within the limits it moves the longest runs of pages
  /// that fit in, each to where it makes one with others, so that calls come to an end however little each may move.
  /// Threads that need pages wait meanwhile. Throws what the driver throws; all that had been moved until then stays
  /// moved. Where blocks are allocations there is nothing to do.
  PoolDefragmentation defragment(DefragmentationLimits const& limits = {});

  [[nodiscard]] PoolStatistics statistics() const;
  [[nodiscard]] PoolFragmentation fragmentation() const;

  /// The largest live holders by name, at most `most`, largest first. A walk.
  [[nodiscard]] std::vector<OutOfMemory::Holder> holders(std::size_t most) const;

  [[nodiscard]] Device& device() const noexcept;
  [[nodiscard]] Location location() const noexcept;
  [[nodiscard]] std::size_t max_bytes() const noexcept;
  /// As it was made with.
  [[nodiscard]] StackOptions const& stacks() const noexcept;
  [[nodiscard]] bool zeroes_on_release() const noexcept;

  /// Changes the hard limit, giving cached blocks back if need be: once it returns, no more is reserved, whatever other
  /// threads had begun to ask for. Throws InvalidArgument, and the limit stays, if it is below what is live, parts of
  /// pages in use counted whole, or below what the device does not take back.
  void set_max_bytes(std::size_t bytes);

  /// Bytes of blocks in use, exactly: brings back what threads keep for themselves, so it is not for every day.
  [[nodiscard]] std::size_t bytes_in_use() noexcept;

  /// Has `has_left_marks` tell when the bytes in use leave [below, above), what threads keep counted in; for a watcher
  /// of how full a pool is (a manager, one for each pool). Returns whether they are outside already.
  [[nodiscard]] bool set_marks(std::size_t below, std::size_t above) noexcept;

  /// Whether they have left them since the marks were set. One load.
  [[nodiscard]] bool has_left_marks() const noexcept;

  /// Throws std::logic_error unless every invariant of PoolStatistics and of the free lists holds. A walk; for tests.
  void validate() const;

 private:
  friend void detail::give_way(MemoryPool& pool, bool may_wait) noexcept;
  friend std::vector<PoolStatistics> detail::statistics_of(std::span<MemoryPool* const> pools,
                                                           detail::SharedLimit& limit);

  std::unique_ptr<detail::PoolCore> core_;
};

}  // namespace unimem
