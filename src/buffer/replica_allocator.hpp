#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/pool/allocation.hpp>

#include "coherence/coherence.hpp"

#include <cstddef>
#include <memory>

namespace unimem {
class Device;
class Queue;
}  // namespace unimem

namespace unimem::detail {

class AccessContext;
struct BufferParts;
class Replica;
class SharedMemory;

/// Gives the places of a buffer memory.
///
/// For the holder of the buffer's lock. What returns false, or null, has changed nothing: other operations are in the
/// way, and the context says for what to wait with no lock held.
class ReplicaAllocator {
 public:
  explicit ReplicaAllocator(BufferParts& parts) noexcept : parts_(&parts) {}

  /// Sees to it that there is memory at a place: for all of the buffer, or at least for `range`.
  [[nodiscard]] bool ensure_host(AccessContext& context, ByteRange range) const;
  /// A new block is taken in `queue`'s order.
  [[nodiscard]] bool ensure_device(AccessContext& context, Place place, ByteRange range, Queue& queue) const;
  [[nodiscard]] bool ensure(AccessContext& context, Place place, ByteRange range) const;

  /// This replica is about to be used: if it is the host's, that decides when it is evicted to a file.
  void note_use(Replica const& replica) const;

  [[nodiscard]] std::shared_ptr<Replica> new_on_host(AccessContext& context, std::size_t size) const;
  /// Memory of the device for that part of the buffer.
  [[nodiscard]] std::shared_ptr<Replica> new_on_device(AccessContext& context, Device& device, ByteRange part,
                                                       Queue& queue) const;
  /// Host memory that is shared with other processes.
  [[nodiscard]] static std::shared_ptr<Replica> replica_over(std::shared_ptr<SharedMemory> const& memory);
  /// A segment of the buffer's size, for which a block of the host's pool stands; null as above.
  [[nodiscard]] std::shared_ptr<SharedMemory> new_segment(AccessContext& context) const;
  /// Begins to notice what is written to the host memory that has just come.
  void watch_host() const;

 private:
  /// Memory of a pool of the host's, and the part of it that is to be used; empty where room has to be made.
  struct HostBlock {
    Allocation block;
    DeviceMemory part;
  };

  /// The host's memory: what stands already, a sharing device's, or a new block.
  [[nodiscard]] std::shared_ptr<Replica> host_replica(AccessContext& context) const;
  [[nodiscard]] std::shared_ptr<Replica> device_replica(AccessContext& context, Place place, Queue& queue) const;
  [[nodiscard]] std::shared_ptr<Replica> new_in_file() const;
  /// Host memory that other processes can have, too, for a buffer that was asked for so.
  [[nodiscard]] std::shared_ptr<Replica> new_in_segment(AccessContext& context) const;
  /// Host memory that comes in parts, none of which is there yet.
  [[nodiscard]] std::shared_ptr<Replica> new_in_parts() const;
  /// Where the host looks at the pages of a file: they have all of it as they come.
  void adopt_mapped() const;
  /// Where host memory comes in parts: puts some behind those of `range`, which is about to be used.
  [[nodiscard]] bool commit(AccessContext& context, Replica& replica, ByteRange range) const;
  /// Where there is no data yet, the host's memory becomes it: a window has no room for all of it.
  [[nodiscard]] bool begin_data_on_host(AccessContext& context) const;
  [[nodiscard]] HostBlock new_host_block(AccessContext& context, std::size_t size) const;

  BufferParts* parts_;
};

}  // namespace unimem::detail
