#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/error.hpp>

#include "buffer/buffer_access.hpp"
#include "buffer/buffer_parts.hpp"
#include "buffer/commits.hpp"
#include "buffer/reconciler.hpp"
#include "buffer/replica.hpp"
#include "buffer/replica_allocator.hpp"
#include "buffer/shared_access.hpp"
#include "buffer/transfer_engine.hpp"
#include "buffer/windows.hpp"
#include "manager/access_context.hpp"
#include "manager/admission.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <new>
#include <optional>
#include <utility>

namespace unimem {

using detail::AccessContext;
using Access = detail::SharedTurn::Access;
using detail::BufferAccess;
using detail::BufferGuard;
using detail::BufferParts;
using detail::Commits;
using detail::HeldTurn;
using detail::Reconciler;
using detail::Replica;
using detail::ReplicaAllocator;
using detail::SharedAccess;
using detail::SharedTurn;
using detail::TransferEngine;
using detail::Windows;
using detail::with_turn;

namespace {

/// Before code outside of the library writes to the host's memory: old failures are told, since it is too late to
/// refuse afterwards, and what was submitted before must not see what is about to be written.
bool may_write_in_place(AccessContext& context, BufferParts& parts, ByteRange range) {
  return Reconciler(parts).resolve_or_wait(context, range) &&
         BufferAccess(parts).await_or_wait(context, *parts.replicas.host(), range, true);
}

/// Puts on record what was written in place. Where work is pending that it may come behind, `locked` is unlocked when
/// this returns: that is waited for without the lock.
void record_writes(BufferGuard& locked) {
  auto& of = *locked;
  if (of.replicas.pending.empty()) return Reconciler(of).try_to_record_writes();
  locked.unlock();
  detail::run_admitted(detail::operands(), [&](AccessContext& context) {
    BufferGuard parts(of, detail::Watched::no);
    try {
      if (!Reconciler(*parts).may_record(context)) return false;
    } catch (std::bad_alloc const&) {
      return true;  // the next operation records it first
    }
    Reconciler(*parts).try_to_record_writes();
    return true;
  });
}

}  // namespace

BufferCore::HostUse BufferCore::use_host(ByteRange range, Intent intent, Turn turn) {
  // With the lock even where all is ready: without a lease another thread may let go of the memory meanwhile.
  HostUse use;
  detail::run_admitted(use_of(range), [&](AccessContext& context) {
    return host_once(context, range, intent, turn, &use.lease, use.address);
  });
  return use;
}

BufferCore::HostUse BufferCore::use_host_to_write(ByteRange range) {
  Guard(*parts_)->watch.expect_mapped_write();
  try {
    return use_host(range, Intent::write);
  } catch (...) {
    nothing_written_through_map();
    throw;
  }
}

void BufferCore::written_on_host(ByteRange range, HostUse const& use) {
  Guard parts(*parts_, detail::Watched::no);
  parts->watch.mapped_write_ended();
  auto const& replicas = parts->replicas;
  if (range.empty() || !replicas.host() || replicas.host()->host_window(range) != use.lease.memory()) return;
  bool elsewhere = false;
  for (Place place = host_place + 1; place < replicas.places.count() && !elsewhere; ++place) {
    elsewhere = !replicas.places.in_host_memory(place) && replicas.coherence.valid(place).intersects(range);
  }
  if (!elsewhere) return;
  parts->watch.add_unrecorded({range, {}});
  record_writes(parts);
}

void BufferCore::note_read(ByteRange range) const {
  if (parts_->watch.written_map()) parts_->watch.written_map()->read(range, "on the host");
}

void* BufferCore::host_slow(ByteRange range, Intent intent, bool looks) {
  void* address = nullptr;
  detail::run_admitted(use_of(range), [&](AccessContext& context) {
    return host_once(context, range, intent, Turn::as_asked, nullptr, address);
  });
  if (looks && intent == Intent::read) note_read(range);
  return address;
}

bool BufferCore::host_once(AccessContext& context, ByteRange range, Intent intent, Turn lasts, DeviceLease* hold,
                           void*& address) {
  Guard parts(*parts_);
  bool const for_writing = intent != Intent::read;
  parts->check_access("host access");
  if (for_writing) parts->check_writable("writing on the host");
  parts->check_range(range);
  if (hold == nullptr && for_writing) SharedAccess(*parts).refuse("host() for writing", SharedAccess::has_no_end);
  HeldTurn turn;
  auto const access = for_writing || lasts == Turn::may_write ? Access::writes : Access::reads;
  if (!SharedAccess(*parts).begin(context, range, access, turn)) return false;
  // Manual tracking: a read-write view is a read until it is marked.
  // So it is where pages tell what was really written.
  if (parts->watch.tracking() != Tracking::access && intent == Intent::read_write) intent = Intent::read;
  if (!Reconciler(*parts).resolve_or_wait(context, range)) return false;
  if (intent != Intent::read) parts->watch.note("a host view that may be written", range);
  auto const& host = parts->replicas.host();
  std::optional<Plan> plan;
  bool const in_parts = host && host->reserved() != nullptr;  // whose use is noted part by part
  if (intent == Intent::read && parts->replicas.holds(host_place, range) && !in_parts) {
    if (host) ReplicaAllocator(*parts).note_use(*host);
  } else {
    if (!ReplicaAllocator(*parts).ensure_host(context, range)) return false;
    TransferEngine transfers(*parts);
    plan = transfers.plan_access(host_place, range, intent);
    if (intent != Intent::write) parts->check_lost(*plan);
    if (!plan->copies.empty() && !transfers.bring_or_wait(context, *plan)) return false;
  }
  parts->check_intact(range);
  if (host && !BufferAccess(*parts).await_or_wait(context, *host, range, for_writing)) return false;
  if (hold != nullptr && host) {  // before anything is committed: it may fail
    if (turn) turn->ends_as(SharedTurn::Outcome::written);
    HeldTurn lasting;
    if (lasts != Turn::ends_at_once) lasting = std::move(turn);
    *hold = {with_turn(host, std::move(lasting)), host->host_window(range)};
  }
  if (plan) Commits(*parts).commit(*std::move(plan), {});
  if (!host) return true;
  host->usage().note_host(intent != Intent::write, intent != Intent::read);
  if (hold == nullptr) host->mark_exported(range, for_writing);
  address = host->host_address();
  return true;
}

std::vector<Event> BufferCore::work_on(ByteRange range, Intent intent, Device const* device) {
  std::vector<Event> events;
  Guard parts(*parts_);
  parts->replicas.pending.add_unfinished(range, events);
  auto const add = [&](Place place, bool readers_too) {
    auto const& replica = parts->replicas.at(place);
    if (!replica) return;
    for (auto const event : replica->work().before_host_access(range, readers_too)) {
      if (std::ranges::find(events, event) == events.end()) events.push_back(event);
    }
  };
  bool current = false;
  for (Place place = host_place; place < parts->replicas.places.count(); ++place) {
    auto const* const at = place == host_place ? nullptr : parts->replicas.places[place].device;
    if (at != device) continue;
    add(place, intent != Intent::read);
    current = current || parts->replicas.holds(place, range);
  }
  if (intent == Intent::write || current) return events;
  // What is lacking comes from elsewhere.
  for (Place place = host_place; place < parts->replicas.places.count(); ++place) add(place, false);
  return events;
}

std::vector<Event> BufferCore::work_under_way() {
  std::vector<Event> events;
  Guard parts(*parts_);
  parts->replicas.for_each([&](Replica& replica) {
    if (!replica.work().at_rest()) std::ranges::copy(replica.work().unfinished(), std::back_inserter(events));
  });
  return events;
}

void BufferCore::bring_to_host_slow(std::span<const ByteRange> ranges) {
  auto const used = [&](detail::OperandsInUse& in_use) {
    for (auto const range : ranges) in_use.add(manager(), *this, range);
  };
  detail::run_admitted(used, [&](AccessContext& context) {
    Guard parts(*parts_);
    parts->check_access("host access");
    for (auto const range : ranges) parts->check_range(range);
    HeldTurn turn;
    if (!SharedAccess(*parts).begin(context, parts->replicas.whole(), Access::reads, turn)) return false;
    for (auto const range : ranges) {
      if (!Reconciler(*parts).resolve_or_wait(context, range)) return false;
    }
    for (auto const range : ranges) {
      if (!ReplicaAllocator(*parts).ensure_host(context, range)) return false;
      parts->check_intact(range);
    }
    TransferEngine transfers(*parts);
    std::vector<Plan> plans;
    Plan all;
    all.place = host_place;
    for (auto const range : ranges) {
      auto plan = transfers.plan_read(host_place, range);
      parts->check_lost(plan);
      all.copies.insert(all.copies.end(), plan.copies.begin(), plan.copies.end());
      plans.push_back(std::move(plan));
    }
    if (!transfers.bring_or_wait(context, all)) return false;
    if (auto const& host = parts->replicas.host()) host->usage().note_host(true, false);
    for (auto& plan : plans) Commits(*parts).commit(std::move(plan), {});
    return true;
  });
}

Event BufferCore::fetch(ByteRange range) {
  std::optional<Event> event;
  detail::run_admitted(use_of(range), [&](AccessContext& context) {
    Guard const parts(*parts_);
    event = BufferAccess(*parts).fetch(context, range);
    return event.has_value();
  });
  return *event;
}

Event BufferCore::sync_to_host_async(ByteRange range) {
  {
    Guard parts(*parts_);
    parts->check_allocated("sync_to_host");
  }
  return fetch(range);
}

void BufferCore::sync_to_host_slow(ByteRange range) {
  {
    Guard parts(*parts_);
    parts->check_allocated("sync_to_host");
  }
  static_cast<void>(use_host(range, Intent::read));
}

void BufferCore::mark_host_dirty(ByteRange range) {
  detail::run_admitted(use_of(range), [&](AccessContext& context) {
    Guard parts(*parts_);
    parts->check_allocated("mark_host_dirty");
    parts->check_writable("mark_host_dirty");
    parts->check_range(range);
    HeldTurn turn;
    if (!SharedAccess(*parts).begin(context, range, Access::writes, turn)) return false;
    if (auto* const writes = parts->watch.writes()) writes->declared(range);
    if (!Reconciler(*parts).resolve_or_wait(context, range, true)) return false;
    parts->watch.note("mark_host_dirty", range);
    if (!BufferAccess(*parts).mark(context, host_place, range, {})) return false;
    if (turn) turn->ends_as(SharedTurn::Outcome::written);
    return true;
  });
}

void BufferCore::mark_device_dirty(Device* device, ByteRange range, Event event) {
  HeldTurn turn;
  detail::run_admitted(detail::operands(*this), [&](AccessContext& context) {
    Guard parts(*parts_);
    parts->check_allocated("mark_device_dirty");
    parts->check_writable("mark_device_dirty");
    parts->check_range(range);
    HeldTurn begun;
    if (!SharedAccess(*parts).begin(context, range, Access::writes, begun)) return false;
    if (!Reconciler(*parts).resolve_or_wait(context, range, true)) return false;
    parts->watch.note("mark_device_dirty", range);
    auto& on = device == nullptr ? parts->replicas.default_device() : *device;
    auto const place = Windows(*parts).place_for(on, range);
    Windows(*parts).check_write(place, range);
    if (!BufferAccess(*parts).mark(context, place, range, event)) return false;
    if (auto* const writes = parts->watch.writes()) writes->overrule(range);
    turn = std::move(begun);
    return true;
  });
  detail::publish_after(turn, *parts_, event);
}

DeviceLease BufferCore::map(ByteRange range, MapMode mode, bool looks) {
  if (mode == MapMode::read) {
    auto mapped = map_to_read(range);
    if (looks) note_read(range);
    return mapped;
  }
  {
    Guard parts(*parts_);
    parts->check_writable("mapping for writing");
    parts->watch.expect_mapped_write();
  }
  try {
    return map_to_write(range, mode);
  } catch (...) {
    nothing_written_through_map();
    throw;
  }
}

void BufferCore::nothing_written_through_map() noexcept {
  try {
    Guard(*parts_, detail::Watched::no)->watch.mapped_write_ended();
  } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): a forked child's, where no thread writes any more
  }
}

DeviceLease BufferCore::hold_host(ByteRange range) {
  return std::move(use_host(range, Intent::read, Turn::ends_at_once).lease);
}

DeviceLease BufferCore::map_to_read(ByteRange range) {
  return std::move(use_host(range, Intent::read).lease);
}

DeviceLease BufferCore::map_to_write(ByteRange range, MapMode mode) {
  auto held = use_host(range, mode == MapMode::discard ? Intent::write : Intent::read, Turn::may_write);
  detail::run_admitted(use_of(range), [&](AccessContext& context) {
    Guard parts(*parts_);
    // If it has been freed since, what is written is not missed.
    auto const& host = parts->replicas.host();
    if (!host || host->host_window(range) != held.lease.memory()) return true;
    if (auto* const writes = parts->watch.writes(); writes != nullptr && !context.again()) writes->expect(range);
    return may_write_in_place(context, *parts, range);
  });
  return std::move(held.lease);
}

void BufferCore::written_through_map(ByteRange range, DeviceLease const& mapped, ByteRanges written) {
  Guard parts(*parts_, detail::Watched::no);
  parts->watch.mapped_write_ended();
  // The lease holds the memory it was made for, so no other memory can have come to lie at its address.
  if (!parts->replicas.host() || parts->replicas.host()->host_window(range) != mapped.memory()) return;
  if (!range.empty()) parts->watch.add_unrecorded({range, std::move(written)});
  if (parts->watch.writes()) parts->watch.writes()->not_expected(range);
  try {
    parts->watch.note("unmapping a mapping that may be written", range);
  } catch (std::bad_alloc const&) {  // NOLINT(bugprone-empty-catch): a note for messages alone
  }
  auto const end = [](BufferParts& recorded) {
    if (recorded.deferred) std::rethrow_exception(std::exchange(recorded.deferred, nullptr));
    recorded.check_not_captured();
  };
  record_writes(parts);
  if (parts) return end(*parts);
  end(*Guard(*parts_, detail::Watched::no));
}

}  // namespace unimem
