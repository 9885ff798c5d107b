#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/error.hpp>

#include "buffer/buffer_access.hpp"
#include "buffer/buffer_parts.hpp"
#include "buffer/commits.hpp"
#include "buffer/reconciler.hpp"
#include "buffer/replica.hpp"
#include "buffer/replica_allocator.hpp"
#include "buffer/replica_copy.hpp"
#include "buffer/shared_access.hpp"
#include "buffer/transfer_engine.hpp"
#include "manager/access_context.hpp"
#include "manager/admission.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

// A buffer of another size keeps what fits: where it is current, or else by way of the host.

namespace unimem {

using detail::AccessContext;
using detail::BufferAccess;
using detail::BufferParts;
using detail::Commits;
using detail::Reconciler;
using detail::Replica;
using detail::ReplicaAllocator;
using detail::SharedAccess;
using detail::TransferEngine;

/// A copy of what is kept in memory of the new size, under way while the lock is free.
struct BufferCore::Resized {
  std::shared_ptr<Replica> replica;
  Event event;
  std::uint64_t operations = 0;  ///< of the buffer, when it was submitted
};

void BufferCore::resize(std::size_t bytes) {
  detail::check_size(bytes);
  Resized moved;
  detail::run_admitted(detail::operands(*this),
                       [&](AccessContext& context) { return resize_once(context, bytes, moved); });
}

bool BufferCore::resize_once(AccessContext& context, std::size_t bytes, Resized& moved) {
  Guard parts(*parts_);
  auto const before = parts->replicas.bytes();
  if (bytes == before) return true;
  if (!Reconciler(*parts).resolve_or_wait(context, parts->replicas.whole())) return false;
  for (Place place = host_place; place < parts->replicas.coherence.place_count(); ++place)
    parts->check_not_leased(place);
  SharedAccess(*parts).refuse("resize");
  if (parts->file) throw UnsupportedOperation("resize", parts->terms.display_name(), "it stands on a file");
  if (parts->replicas.host() && !parts->replicas.host()->pooled()) {
    throw UnsupportedOperation("resize", parts->terms.display_name(), "it stands on memory that was wrapped");
  }
  ByteRange const kept{0, std::min(bytes, before)};
  // What is kept stays where it is current; what is current nowhere as a whole is first brought to the host.
  bool const on_host = parts->replicas.holds(host_place, kept);
  auto const from_place = on_host ? host_place : parts->replicas.device_holding(kept).value_or(host_place);
  auto* const on = from_place == host_place ? nullptr : parts->replicas.places[from_place].device;
  bool const has_data = parts->replicas.coherence.has_data() && !kept.empty();
  bool const was_pinned = parts->pinned.load(std::memory_order_relaxed);
  bool done = false;
  // New host memory says whether it could be locked, while the old may yet stay.
  auto const say_again = [&](void*) {
    if (!done) parts->pinned.store(was_pinned, std::memory_order_relaxed);
  };
  std::unique_ptr<BufferParts, decltype(say_again)> const unless_done{&*parts, say_again};
  std::shared_ptr<Replica> replica;
  if (has_data && on != nullptr) {
    auto copied = std::exchange(moved, {});
    if (copied.replica) copied.event.wait();
    if (copied.replica && copied.operations + 1 == parts->operations) {
      replica = std::move(copied.replica);  // no other operation came between
    } else {
      copied = {};  // or there would have to be memory for both
      auto& queue = on->default_queue();
      replica = ReplicaAllocator(*parts).new_on_device(context, *on, {0, bytes}, queue);
      if (!replica) return false;
      auto& from = *parts->replicas.at(from_place);
      auto const copy =
          detail::copy_between(*parts->terms.manager, parts->terms.named(), from, kept, *replica, kept, &queue, {});
      if (context.may_await_work()) {
        moved = {std::move(replica), copy.event, parts->operations};
        context.wait_for(std::vector{copy.event});
        return false;
      }
      copy.event.wait();
    }
  } else if (has_data) {
    if (!ReplicaAllocator(*parts).ensure_host(context, kept)) return false;
    auto plan = TransferEngine(*parts).plan_read(host_place, kept);
    parts->check_lost(plan);
    if (!TransferEngine(*parts).bring_or_wait(context, plan)) return false;
    auto& host = *parts->replicas.host();
    if (!BufferAccess(*parts).await_or_wait(context, host, kept, false)) return false;
    Commits(*parts).commit(std::move(plan), {});
    replica = ReplicaAllocator(*parts).new_on_host(context, bytes);
    if (!replica) return false;
    std::memcpy(replica->host_address(), parts->replicas.host()->host_address(), kept.size());
  }
  auto const place = on == nullptr ? host_place : parts->place_of(*on);
  auto advice = parts->advice;
  advice.resize(before, bytes);
  auto coherence = parts->replicas.without_memory(bytes);
  std::unique_ptr<detail::HostWrites> host_writes;
  if (replica) {
    replica->apply_advice(advice);
    if (on == nullptr) host_writes = parts->watch.make(replica, bytes, parts->terms.display_name());
    coherence.add_storage(place);
    auto const kept_as_it_is = coherence.plan_access(place, {0, bytes}, Intent::read, parts->replicas.places.cost());
    coherence.commit_certain(kept_as_it_is);
  }
  // All that can fail has been done: until here the buffer is as it was.
  done = true;
  bool const pinned = replica && on == nullptr && parts->pinned.load(std::memory_order_relaxed);
  parts->drop_everything(std::move(coherence), bytes);
  if (parts->watch.written_map()) parts->watch.written_map()->resize(before, bytes);
  parts->advice = std::move(advice);
  if (!replica) return true;
  parts->replicas.put(place, std::move(replica));
  parts->watch.begin(std::move(host_writes));
  parts->pinned.store(pinned, std::memory_order_relaxed);
  return true;
}

}  // namespace unimem
