#include "buffer/buffer_access.hpp"

#include <unimem/core/error.hpp>

#include "buffer/buffer_parts.hpp"
#include "buffer/commits.hpp"
#include "buffer/host_device.hpp"
#include "buffer/reconciler.hpp"
#include "buffer/replica_allocator.hpp"
#include "buffer/transfer_engine.hpp"
#include "manager/access_context.hpp"

#include <utility>
#include <vector>

namespace unimem::detail {

bool BufferAccess::prepare(AccessContext& context, Place place, ByteRange range, Intent intent, Queue& queue) const {
  auto& replicas = parts_->replicas;
  // Where every byte is current there is nothing to plan, and nothing to record of a read.
  if (replicas.is_apart_and_holds(place, range) && parts_->watch.writes() == nullptr) {
    order(place, range, intent, queue);
    return true;
  }
  if (!ReplicaAllocator(*parts_).ensure_device(context, place, range, queue)) return false;
  if (parts_->is_mapped() && replicas.places.in_host_memory(place)) parts_->check_intact(range);
  bool const waits = parts_->watch.writes() != nullptr && replicas.places.in_host_memory(place);  // as `fetch` does
  if (waits && intent != Intent::write) Reconciler(*parts_).resolve(range, true);
  if (intent != Intent::write && !replicas.holds(place, range)) {
    TransferEngine transfers(*parts_);
    auto plan = transfers.plan_read(place, range);
    parts_->check_lost(plan);
    if (!transfers.make_ready(context, plan)) return false;
    if (waits) {
      transfers.carry_out(plan);
      Commits(*parts_).commit(std::move(plan), {});
    } else {
      transfers.bring(plan, &queue);
    }
  }
  order(place, range, intent, queue);
  return true;
}

void BufferAccess::order(Place place, ByteRange range, Intent intent, Queue& queue) const {
  auto const& replica = parts_->replicas.at(place);
  if (!replica) return;
  intent == Intent::read ? replica->work().order_read(queue, range) : replica->work().order_write(queue, range);
}

bool BufferAccess::await_or_wait(AccessContext& context, Replica& replica, ByteRange range, bool writes) const {
  if (!context.may_await_work()) {
    replica.work().wait_for_host_access(range, writes);
    return true;
  }
  auto work = replica.work().before_host_access(range, writes);
  if (work.empty()) return true;
  context.wait_for(std::move(work));
  return false;
}

std::optional<Event> BufferAccess::fetch(AccessContext& context, ByteRange range) const {
  parts_->check_access("host access");
  parts_->check_range(range);
  // Bytes that arrive later could not be told from a user's: so tracked buffers wait, and resolve what is pending
  // first.
  if (parts_->watch.watches()) {
    Reconciler(*parts_).resolve(range, true);
  } else if (!Reconciler(*parts_).look_or_wait(context, range)) {
    return std::nullopt;
  }
  if (!ReplicaAllocator(*parts_).ensure_host(context, range)) return std::nullopt;
  parts_->check_intact(range);
  if (auto const& host = parts_->replicas.host(); host && host->mapped() != nullptr) host->mapped()->will_need(range);
  TransferEngine transfers(*parts_);
  auto plan = transfers.plan_read(host_place, range);
  parts_->check_lost(plan);
  if (!transfers.make_ready(context, plan)) return std::nullopt;
  if (parts_->watch.writes() != nullptr) {
    transfers.carry_out(plan);
    Commits(*parts_).commit(std::move(plan), {});
    return Event{};
  }
  transfers.bring(plan, nullptr);
  auto const arriving = transfers.arriving(host_place, range);
  if (arriving.empty()) return Event{};  // without a queue, which a forked child cannot make
  return host_device().default_queue().join(arriving);
}

bool BufferAccess::mark(AccessContext& context, Place place, ByteRange range, Event event) const {
  if (!ReplicaAllocator(*parts_).ensure(context, place, range)) return false;
  auto const& replicas = parts_->replicas;
  return mark_there(context, replicas.coherence.plan_mark(place, range, replicas.places.cost()), event);
}

bool BufferAccess::mark_there(AccessContext& context, Plan plan, Event event) const {
  auto& replicas = parts_->replicas;
  auto const place = plan.place;
  auto const range = plan.range;
  if (plan.conflict) {
    auto const& there = *plan.conflict;
    throw CoherenceConflict(parts_->terms.display_name(),
                            {replicas.places.name(there.place), there.range.begin, there.range.end},
                            {replicas.places.name(place), range.begin, range.end});
  }
  TransferEngine transfers(*parts_);
  if (!transfers.make_ready(context, plan)) return false;
  transfers.carry_out(plan);
  bool const overrules = plan.overrules;
  auto const& replica = replicas.at(place);
  auto* const writes = parts_->watch.writes();
  bool const says_when = event != Event{} && place != host_place;
  if (replica && says_when) replica->work().written_elsewhere_by(range, event);
  if (writes != nullptr && says_when && replicas.places.in_host_memory(place)) writes->expect_device(range, event);
  if (replica && !says_when && place != host_place) {
    replica->work().used_by_others(*replicas.places[place].device, nullptr);
  }
  Commits(*parts_).commit(std::move(plan), says_when ? std::vector{event} : std::vector<Event>{},
                          Commits::Events::of_the_end);
  if (overrules) parts_->counters.count_conflicting_mark();
  if (!replica) return true;
  // What is marked was written without an access for writing.
  replica->usage().note_host(false, place == host_place);
  replica->usage().note_device(false, place != host_place);
  return true;
}

std::optional<Event> BufferAccess::overwrite_host(AccessContext& context, ByteRange range,
                                                  std::function<Event(Queue&, DeviceMemory)> const& submit) const {
  parts_->check_writable("writing on the host");
  if (!ReplicaAllocator(*parts_).ensure_host(context, range)) return std::nullopt;
  Commits const commits(*parts_);
  if (range.empty()) {
    // Not by the queue: what it returns for nothing is the end of everything there, of failed work too.
    commits.commit_write(host_place, range, {}, Commits::Events::of_all);
    return Event{};
  }
  auto& queue = host_device().default_queue();
  auto& host = *parts_->replicas.host();
  host.work().order_write(queue, range);
  auto write = commits.plan_write(host_place, range);
  host.work().reserve(1);
  auto const event = submit(queue, host.host_window(range));
  host.work().written_by(range, event);
  host.usage().note_host(false, true);
  commits.commit(std::move(write), event, Commits::Events::of_all);
  return event;
}

bool BufferAccess::release(AccessContext& context, Place place, Place to,
                           std::optional<TransferEngine::CarriedOut>& carried) const {
  auto& replicas = parts_->replicas;
  auto plan = replicas.coherence.plan_release(place, to, replicas.places.cost());
  if (!save(context, plan, carried)) return false;
  replicas.coherence.remove_storage(place);
  if (place == host_place) {
    parts_->watch.unrecorded().clear();
    parts_->watch.end();
  }
  replicas.drop(place);
  return true;
}

bool BufferAccess::release(AccessContext& context, Place place, ByteRange part, Place to,
                           std::optional<TransferEngine::CarriedOut>& carried) const {
  auto& replicas = parts_->replicas;
  auto plan = replicas.coherence.plan_release(place, to, part, replicas.places.cost());
  if (!save(context, plan, carried)) return false;
  replicas.coherence.remove_storage(place, part);
  return true;
}

bool BufferAccess::release_in_host_memory(AccessContext& context, ByteRange part, Place to,
                                          std::optional<TransferEngine::CarriedOut>& carried) const {
  auto const& replicas = parts_->replicas;
  for (Place place = host_place; place < replicas.places.count(); ++place) {
    if (!replicas.places.in_host_memory(place) || !replicas.coherence.has_storage(place)) continue;
    if (!release(context, place, part, to, carried)) return false;
  }
  return true;
}

bool BufferAccess::save(AccessContext& context, Plan& plan, std::optional<TransferEngine::CarriedOut>& carried) const {
  TransferEngine transfers(*parts_);
  transfers.spare_good_bytes(plan);
  for (auto const& copy : plan.copies) {
    if (!ReplicaAllocator(*parts_).ensure(context, copy.to, copy.range)) return false;
  }
  if (!transfers.carry_out_or_wait(context, plan, carried)) return false;
  parts_->replicas.coherence.commit_certain(plan);
  return true;
}

void BufferAccess::release_now(Place place, Place to) const {
  AccessContext context{AccessContext::Waiting::never};
  std::optional<TransferEngine::CarriedOut> carried;
  static_cast<void>(release(context, place, to, carried));  // there is nothing to save
}

}  // namespace unimem::detail
