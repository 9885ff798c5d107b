#include <unimem/buffer/detail/buffer_core.hpp>

#include "buffer/buffer_parts.hpp"
#include "buffer/replica.hpp"
#include "buffer/replica_allocator.hpp"

#include <memory>
#include <utility>

// A buffer that changes owners: what of the old one must not be seen by the new one.

namespace unimem {

using detail::Replica;
using detail::ReplicaAllocator;

bool BufferCore::recycle(bool zero) {
  Guard parts(*parts_);
  parts->check_not_captured();
  bool kept = !parts->replicas.places.has_windows();  // windows are made for what their owner uses
  parts->watch.end();                                 // first of all: zeroing touches what is stale
  parts->replicas.for_each([&](Replica& replica) {
    bool const held = replica.holds().leased() || !replica.pooled();
    if (held) kept = false;
    if (zero) held ? replica.zero_at_end() : replica.zero();
  });
  if (kept) {
    parts->replicas.pending.clear();
    parts->watch.unrecorded().clear();
    parts->deferred = nullptr;
    parts->life.reset();
    parts->replicas.coherence.discard();
  } else {
    parts->drop_everything();
  }
  parts->forget_history();
  parts->watch.forget(parts->replicas.bytes());
  if (!kept) return false;
  for (Place place = host_place; place < parts->replicas.coherence.place_count(); ++place) {
    auto const& replica = parts->replicas.at(place);
    if (!replica) continue;
    replica->hand_over();
    replica->apply_advice(parts->advice);
  }
  if (parts->replicas.host()) ReplicaAllocator(*parts).watch_host();
  return true;
}

void BufferCore::zero_at_end() {
  Guard parts(*parts_);
  parts->replicas.for_each([](Replica& replica) { replica.zero_at_end(); });
}

}  // namespace unimem
