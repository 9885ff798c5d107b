#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/event.hpp>
#include <unimem/device/queue.hpp>
#include <unimem/pool/allocation.hpp>

#include "buffer/buffer_counters.hpp"

#include <memory>

namespace unimem {
struct AcquireOptions;
class MemoryManager;
}  // namespace unimem

namespace unimem::detail {

class Replica;
class Staging;

/// A copy that is under way.
struct StartedCopy {
  Event event;
  CopyPath path = CopyPath::direct;
};

/// Submits one copy between two replicas, wherever they are, behind the work it conflicts with, and records it with
/// both. `queue`, if given and of the device that carries the copy out, is the queue. `meter` counts the time of what
/// goes over a link. Where the two `overlap`, `aside` is a block of as many bytes, by way of which they go; where it
/// `goes_by_the_host`, `between` has the blocks for that. Whatever it throws, nothing that it has submitted is under
/// way any more.
StartedCopy copy_between(MemoryManager& manager, AcquireOptions const& staging, Replica& from, ByteRange source,
                         Replica& to, ByteRange target, Queue* queue, SharedMeter const& meter, Allocation aside = {},
                         Staging* between = nullptr);
[[nodiscard]] bool overlap(Replica const& from, ByteRange source, Replica const& to, ByteRange target) noexcept;

/// The same for several ranges, at the same offsets on both sides, as one piece of work. For what
/// `gains_from_batching`.
StartedCopy copy_between(MemoryManager& manager, AcquireOptions const& staging, Replica& from, Replica& to,
                         std::shared_ptr<ByteRanges const> const& ranges, Queue* queue, SharedMeter const& meter);

}  // namespace unimem::detail
