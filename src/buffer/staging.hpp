#pragma once

#include <unimem/device/queue.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "buffer/replica.hpp"

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace unimem::detail {

class AccessContext;

/// A few blocks of host memory that a copy passes through chunk by chunk, by turns, where it cannot go directly, or is
/// slower so. Each chunk takes two legs, into a block and on from it; while one block is on its way, the next is
/// filled. A copy of any size costs no more memory than this.
///
/// Everything is submitted at once, each leg behind what it needs. The blocks go back to their pool with the ticket of
/// the last work that uses them, also when submitting fails half-way.
class Staging {
 public:
  /// Large enough that starting a copy does not count, small enough that both legs are soon at work at once.
  static constexpr std::size_t chunk_bytes = std::size_t{4} << 20;

  /// One half of the way: submits to `queue` the copy of `chunk` of the whole into the block, or on from it.
  struct Leg {
    Queue& queue;
    std::function<Event(void* block, ByteRange chunk, std::span<const Event> needs)> submit;
  };

  /// For copies between two devices of at most `most` bytes each, of which nothing is submitted without both blocks:
  /// pinned memory that both legs can use at full speed if there is some, pageable else; smaller ones where there is no
  /// room for these. Nothing where the context says for what to wait. Throws OutOfMemory.
  [[nodiscard]] static std::optional<Staging> between_devices(AccessContext& context, MemoryManager& manager,
                                                              AcquireOptions const& options, std::size_t most);

  /// For a copy between a device and pageable memory, which `beside` carries out on the host's side: `depth` pinned
  /// blocks, fewer where that is enough, or nothing where there is no pinned memory to be had at once. Never waits: a
  /// queue's copies pass through the same blocks in its order, and those of other queues are none of its business.
  [[nodiscard]] static std::optional<Staging> pinned(MemoryManager& manager, AcquireOptions options, Queue& beside,
                                                     std::size_t total, std::size_t depth);

  Staging(Staging&& other) noexcept = default;
  Staging& operator=(Staging&&) = delete;
  ~Staging();

  /// Submits all chunks of `total` bytes: the first leg needs `needs`, the second needs the first. Returns one event of
  /// `ends_on` for the end of all, failed if one of them failed.
  Event pass(std::size_t total, Leg const& in, Leg const& out, Queue& ends_on, std::span<const Event> needs);

  /// Blocks until what has been submitted has ended, and nothing uses the blocks any more.
  void wait() const noexcept;

 private:
  explicit Staging(std::size_t chunk) : chunk_(chunk) {}
  [[nodiscard]] static std::optional<Staging> between_devices(AccessContext& context, MemoryManager& manager,
                                                              AcquireOptions const& options, std::size_t most,
                                                              std::size_t chunk);
  Staging(Queue& beside, std::size_t depth) : depth_(depth), beside_(&beside) {}

  static constexpr std::size_t most_blocks = 4;

  std::size_t chunk_ = chunk_bytes;
  std::size_t depth_ = 2;
  std::array<Allocation, most_blocks> blocks_;
  std::array<Event, most_blocks> last_;  ///< what each block was last used by
  Queue* beside_ = nullptr;              ///< whose order the blocks are reused in
};

/// Whether a copy between the two goes by way of the host: they are of devices that do not reach each other.
[[nodiscard]] bool goes_by_the_host(Replica const& from, Replica const& to);

/// Whether copies of `bytes` between the host memory and the device gain from being staged.
[[nodiscard]] bool gains_from_staging(Replica const& host, Device const& device, std::size_t bytes) noexcept;

/// Whether `ranges` gain from being brought together in pinned memory on their way to or from pageable memory: the
/// device has one command for them then, and they are many and small.
[[nodiscard]] bool gains_from_gathering(Replica const& host, Device const& device, ByteRanges const& ranges) noexcept;

/// How many of the first ranges are the rows of a rectangle, one of its own at least.
[[nodiscard]] std::size_t rows_at_front(std::span<const ByteRange> ranges) noexcept;

/// Whether the rows of a rectangle, each of so many bytes, go between the two as one command: one of them is the
/// host's, and the other's device has one for that.
[[nodiscard]] bool takes_rows(Replica const& from, Replica const& to, std::size_t row_bytes);

/// Whether `ranges` gain from being copied between the two as one piece of work whatever they look like: one of them is
/// the host's, and the device of the other has one command for them, as they lie or gathered.
[[nodiscard]] bool gains_from_batching(Replica const& from, Replica const& to, ByteRanges const& ranges) noexcept;

/// Gathers small pieces of pageable host memory in a pinned block here and now, as a driver reads pageable memory, and
/// submits them to `on` as one copy: two threads less to be woken than on the way through a queue of the host's.
/// Nothing where that would wait: for what is being written to the pieces, or for a block. Records the work with both.
[[nodiscard]] std::optional<Event> gathered_at_once(MemoryPool& pool, Name name, Replica& from, Replica& to,
                                                    std::shared_ptr<ByteRanges const> const& ranges, Queue& on,
                                                    SharedMeter const& meter);

/// Submits a copy of `pieces`, which rise on both sides, by way of `staging`, whose blocks `first` fills and `second`
/// empties, behind the work it conflicts with, and records it with both sides. A queue of the cpu serves the side that
/// is the host's: of the others, devices, `meter` counts the time. The source may be written again as soon as the last
/// chunk has left it; a chunk that failed to come is not written to the target. Returns an event of `ends_on`, the
/// device's queue that was asked for the copy, as if it had written to the target itself: a wait for the queue waits
/// for the bytes. If not all of it could be submitted, what has been ends before this returns: where that has changed
/// the target the event is one of work that failed, else the reason is thrown.
Event copy_staged(Staging& staging, Replica& from, Replica& to, std::span<const CopyPiece> pieces, Queue& first,
                  Queue& second, Queue& ends_on, SharedMeter const& meter);

/// The pieces that have `ranges` at the same offsets on both sides.
[[nodiscard]] std::vector<CopyPiece> in_place(ByteRanges const& ranges);

}  // namespace unimem::detail
