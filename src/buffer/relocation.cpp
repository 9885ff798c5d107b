#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/queue.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "buffer/buffer_parts.hpp"
#include "buffer/replica.hpp"
#include "buffer/replica_memory.hpp"
#include "device/watched_wait.hpp"

#include <memory>
#include <mutex>
#include <utility>

// How a buffer's device memory moves to a better place while its address is not given away.

namespace unimem {

using detail::Replica;
using detail::ReplicaMemory;

std::size_t BufferCore::try_relocate(Queue& queue, std::size_t most_bytes) {
  auto& device = queue.device();
  Guard parts(*parts_, std::try_to_lock);
  if (!parts || parts->captured || parts->replicas.places.shares(device)) return 0;
  auto const place = parts->replicas.places.find(device);
  auto const bytes = parts->replicas.bytes();
  if (!place || bytes > most_bytes || device.is_lost()) return 0;
  auto& replica = parts->replicas.places[*place].replica;
  if (!replica || replica->holds().leased() || !replica->work().at_rest()) return 0;
  auto better = replica->better_place(parts->terms.manager->pool(device, Location::device));
  if (!better) return 0;

  detail::wait_watched(queue.record());  // the copy comes behind it, and is not left alone once it is under way
  auto fresh = std::make_shared<Replica>(ReplicaMemory(device, std::move(better)));
  parts->terms.count_in(*fresh);
  fresh->apply_advice(parts->advice);
  // Every byte, also those that are stale or were never written: whatever coherence says of this place it says of its
  // contents, and goes on to be true.
  queue.copy(fresh->memory(), replica->memory(), bytes).wait();
  replica = std::move(fresh);
  return bytes;
}

}  // namespace unimem
