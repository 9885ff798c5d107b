#pragma once

#include <unimem/device/queue.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "buffer/storage.hpp"

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>

namespace unimem::detail {

/// Two blocks of host memory that a copy passes through chunk by chunk, by turns, where it cannot go directly, or is
/// slower so. Each chunk takes two legs, into a block and on from it; while one block is on its way, the other is
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

  /// For a copy between two devices, of which nothing is submitted without both blocks: pinned memory that both legs
  /// can use at full speed if there is some, pageable else. Throws OutOfMemory.
  Staging(MemoryManager& manager, AcquireOptions const& options, std::size_t total);

  /// For a copy between a device and pageable memory, which `beside` carries out on the host's side: two pinned blocks,
  /// one where that is enough, or nothing where there is no pinned memory to be had at once. Never waits: a queue's
  /// copies pass through the same two blocks in its order, and those of other queues are none of its business.
  [[nodiscard]] static std::optional<Staging> pinned(MemoryManager& manager, AcquireOptions options, Queue& beside,
                                                     std::size_t total);

  Staging(Staging&& other) noexcept = default;
  Staging& operator=(Staging&&) = delete;
  ~Staging();

  /// Submits all chunks of `total` bytes: the first leg needs `needs`, the second needs the first. Returns one event of
  /// `ends_on` for the end of all, failed if one of them failed.
  Event pass(std::size_t total, Leg const& in, Leg const& out, Queue& ends_on, std::span<const Event> needs);

 private:
  explicit Staging(Queue& beside) : beside_(&beside) {}

  std::array<Allocation, 2> blocks_;
  std::array<Event, 2> last_;  ///< what each block was last used by
  Queue* beside_ = nullptr;    ///< whose order the blocks are reused in
};

/// Whether copies of `bytes` between the host memory and the device gain from being staged.
[[nodiscard]] bool gains_from_staging(Storage const& host, Device const& device, std::size_t bytes) noexcept;

/// Submits a copy by way of `staging`, whose blocks `first` fills and `second` empties, behind the work it conflicts
/// with, and records it with both sides. A queue of the cpu serves the side that is the host's: of the others, devices,
/// `meter` counts the time. The source may be written again as soon as the last chunk has left it; a chunk that failed
/// to come is not written to the target. Returns an event of `ends_on`, the device's queue that was asked for the copy,
/// as if it had written to the target itself: who waits for the queue waits for the bytes.
Event copy_staged(Staging& staging, Storage& from, ByteRange source, Storage& to, ByteRange target, Queue& first,
                  Queue& second, Queue& ends_on, SharedMeter const& meter);

}  // namespace unimem::detail
