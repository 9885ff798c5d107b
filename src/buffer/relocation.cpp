#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/queue.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "buffer/buffer_parts.hpp"
#include "buffer/replica.hpp"
#include "buffer/replica_memory.hpp"
#include "device/watched_wait.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

// How a buffer's device memory moves to a better place while its address is not given away.

namespace unimem {

using detail::BufferParts;
using detail::Replica;
using detail::ReplicaMemory;

namespace {

/// Whether the device's replica may be copied to a better place: its address was not given away, and it is at rest.
Replica* movable(BufferParts& parts, Device& device, std::size_t most_bytes) {
  auto const place = parts.replicas.places.find(device);
  if (parts.captured || !place || parts.replicas.places.shares(device) || device.is_lost()) return nullptr;
  auto* const replica = parts.replicas.at(*place).get();
  bool const may_move = replica != nullptr && !replica->holds().leased() && replica->work().at_rest();
  return may_move && parts.replicas.bytes() <= most_bytes ? replica : nullptr;
}

}  // namespace

Resident::Relocation BufferCore::try_relocate(Queue& queue, std::size_t most_bytes) {
  auto& device = queue.device();
  detail::wait_watched(queue.record());  // the copy comes behind it, and is not left alone once it is under way
  Replica* from = nullptr;
  std::shared_ptr<Replica> fresh;
  Event copied;
  std::uint64_t operations = 0;
  {
    Guard parts(*parts_, Guard::at_once);
    from = parts ? movable(*parts, device, most_bytes) : nullptr;
    if (from == nullptr) return {};
    auto better = from->better_place(parts->terms.manager->pool(device, Location::device));
    if (!better) return {};
    fresh = std::make_shared<Replica>(ReplicaMemory(device, std::move(better)));
    parts->terms.count_in(*fresh);
    fresh->apply_advice(parts->advice);
    fresh->work().reserve(1);
    from->work().reserve(1);
    // Every byte, also those that are stale or were never written: whatever coherence says of this place it says of its
    // contents, and goes on to be true.
    copied = queue.copy(fresh->memory(), from->memory(), parts->replicas.bytes());
    fresh->work().perhaps_written_by(fresh->whole(), copied);
    from->work().read_by(from->whole(), copied);
    operations = parts->operations;
  }
  copied.wait();
  auto const bytes = fresh->whole().size();
  Guard parts(*parts_, Guard::to_go_on);
  // Used meanwhile, by an operation or by a lease that takes no lock, it stays where it is.
  if (!parts || parts->operations != operations + 1 || movable(*parts, device, most_bytes) != from)
    return {.copied = bytes, .moved = false};
  parts->replicas.put(*parts->replicas.places.find(device), std::move(fresh));
  return {.copied = bytes, .moved = true};
}

}  // namespace unimem
