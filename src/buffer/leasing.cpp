#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/error.hpp>

#include "buffer/buffer_access.hpp"
#include "buffer/buffer_lock.hpp"
#include "buffer/buffer_parts.hpp"
#include "buffer/commits.hpp"
#include "buffer/copy_choice.hpp"
#include "buffer/reconciler.hpp"
#include "buffer/replica_allocator.hpp"
#include "buffer/shared_access.hpp"
#include "buffer/transfer_engine.hpp"
#include "buffer/windows.hpp"
#include "manager/access_context.hpp"
#include "manager/admission.hpp"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>

// Leases on a buffer's device memory: for code outside of the library, and for work that is captured now and runs
// later.

namespace unimem {

using detail::AccessContext;
using detail::BufferAccess;
using detail::BufferLook;
using detail::Commits;
using detail::CopyChoice;
using detail::HeldTurn;
using detail::Reconciler;
using detail::Replica;
using detail::ReplicaAllocator;
using detail::SharedAccess;
using detail::SharedTurn;
using detail::TransferEngine;
using detail::Windows;
using detail::with_turn;

DeviceLease BufferCore::lease(Device& device, Queue* queue, ByteRange range, Intent intent, bool looks) {
  if (intent == Intent::read && queue != nullptr) {
    if (auto* const fast_lease = parts_->fast_lease.load(std::memory_order_acquire)) {
      if (auto const memory = fast_lease->enter(device, queue->id(), range)) return {*fast_lease, *memory};
    }
  }
  auto leased = detail::with_copy_choice([&](CopyChoice& choice) {
    DeviceLease stays;
    std::optional<DeviceLease> lease;
    detail::run_admitted(use_of(range), [&](AccessContext& context) {
      lease = lease_once(context, device, queue, range, intent, stays, choice);
      return lease.has_value();
    });
    return *std::move(lease);
  });
  // A caller that may write as well may do so first.
  if (looks && intent == Intent::read && parts_->watch.written_map()) {
    parts_->watch.written_map()->read(range, fmt::format("by a lease on {}", device.id()));
  }
  return leased;
}

std::optional<DeviceLease> BufferCore::lease_once(AccessContext& context, Device& device, Queue* queue, ByteRange range,
                                                  Intent intent, DeviceLease& stays, CopyChoice& choice) {
  DeviceLease lease;  // if it comes to nothing, it ends without the lock
  Guard parts(*parts_);
  parts->check_access("device access");
  if (intent != Intent::read) parts->check_writable("writing on a device");
  parts->check_range(range);
  HeldTurn turn;
  auto const access = intent == Intent::read ? SharedTurn::Access::reads : SharedTurn::Access::writes;
  if (!SharedAccess(*parts).begin(context, range, access, turn)) return std::nullopt;
  auto const place = Windows(*parts).place_for(device, range, choice);
  if (intent != Intent::read) Windows(*parts).check_write(place, range);
  if (!context.again()) parts->replicas.places[place].used(range.size());
  // A window's leases are taken with the lock.
  auto const offer_further = [&](Place at) {
    auto const& replica = parts->replicas.at(at);
    bool const is_looked_after = replica->reserved() != nullptr || replica->mapped() != nullptr || parts->shared;
    if (!parts->replicas.places[at].window && !is_looked_after) parts->offer_leases(parts->replicas.at(at), *queue);
  };
  // Of memory of the device's own other processes know nothing, once the bytes have come there.
  auto const leased_for = [&](std::shared_ptr<Replica> const& replica, Event arrived) {
    auto const memory = replica->window_on(device, range);
    if (turn && turn->writes()) {
      return DeviceLease{detail::publishing_at_end(replica, std::move(turn), *parts), memory};
    }
    if (parts->replicas.places.in_host_memory(place)) return DeviceLease{with_turn(replica, std::move(turn)), memory};
    detail::end_turn_after(turn, arrived);
    return DeviceLease{replica, memory};
  };
  bool const resolved = queue != nullptr ? Reconciler(*parts).look_or_wait(context, range)
                                         : Reconciler(*parts).resolve_or_wait(context, range);
  if (!resolved) return std::nullopt;
  if (auto const& there = parts->replicas.at(place); intent == Intent::read && there && parts->is_quiet(place, range)) {
    if (parts->is_mapped() && parts->replicas.places.in_host_memory(place)) parts->check_intact(range);
    ReplicaAllocator(*parts).note_use(*there);
    there->work().used_by_others(device, queue);
    there->usage().note_device(true, false);
    if (queue != nullptr) offer_further(place);
    return leased_for(there, Event{});
  }
  auto& on = queue == nullptr ? device.default_queue() : *queue;
  if (!BufferAccess(*parts).prepare(context, place, range, intent, on)) return std::nullopt;
  context.end_turn();
  auto const replica = parts->replicas.at(place);
  auto const arrived = TransferEngine(*parts).arrival(place, range, on);
  if (queue == nullptr) {
    // Or another operation could take it away while this one waits.
    if (replica) stays = {replica, replica->window_on(device, range)};
    if (intent != Intent::write && !Reconciler(*parts).resolve_or_wait(context, range)) return std::nullopt;
    bool const writes = intent != Intent::read;
    if (replica && !BufferAccess(*parts).await_or_wait(context, *replica, range, writes)) return std::nullopt;
  }
  if (replica) replica->work().used_by_others(device, queue);
  if (replica) lease = leased_for(replica, arrived);  // before anything is committed: it may fail
  if (intent != Intent::read) Commits(*parts).commit_write(place, range, arrived, Commits::Events::of_the_end);
  if (!replica) return lease;
  replica->usage().note_device(intent != Intent::write, intent != Intent::read);
  if (queue != nullptr && intent == Intent::read) offer_further(place);
  return lease;
}

LeaseOption BufferCore::lease_option(Device& device, ByteRange range, DeviceMemory memory) {
  // `use_on_device` holds the lock.
  for (auto const& one : parts_->replicas.places.devices()) {
    if (one.device != &device || !one.replica || !one.replica->whole().contains(range)) continue;
    if (one.replica->window_on(device, range) != memory) continue;
    // It may be taken up at any time; what is evicted in parts stays while work is there.
    if (one.replica->serves_host() && one.replica->reserved() == nullptr) one.replica->holds().mark_exported(false);
    return {one.replica, memory};
  }
  return {};
}

DeviceLease BufferCore::capture(Queue& queue, ByteRange range, std::span<const ByteRange> current, bool begins) {
  std::optional<DeviceLease> leased;
  detail::run_admitted(detail::operands(*this), [&](AccessContext& context) {
    leased = capture_once(context, queue, range, current, begins);
    return leased.has_value();
  });
  return *std::move(leased);
}

std::optional<DeviceLease> BufferCore::capture_once(AccessContext& context, Queue& queue, ByteRange range,
                                                    std::span<const ByteRange> current, bool begins) {
  Guard parts(*parts_);
  parts->check_access("device access");
  parts->check_range(range);
  SharedAccess(*parts).refuse("capturing a launch", SharedAccess::has_no_turns);
  if (begins && !Reconciler(*parts).look_or_wait(context, parts->replicas.whole())) return std::nullopt;
  auto const place = parts->place_of(queue.device());
  for (auto const wanted : current) {
    if (parts->replicas.holds(place, wanted)) continue;
    if (parts->replicas.held_on(queue.device(), wanted).contains(wanted)) {  // windows, which the copy comes from now
      if (!BufferAccess(*parts).prepare(context, place, wanted, Intent::read, queue)) return std::nullopt;
      continue;
    }
    throw UnsupportedOperation(
        "capturing a launch", parts->terms.display_name(),
        fmt::format("bytes [{}, {}) are not up to date on {}, and copies are not captured: synchronize before",
                    wanted.begin, wanted.end, queue.device().id()));
  }
  if (!ReplicaAllocator(*parts).ensure_device(context, place, parts->replicas.whole(), queue)) return std::nullopt;
  if (parts->is_mapped() && parts->replicas.places.in_host_memory(place)) parts->check_intact(range);
  auto const& replica = parts->replicas.at(place);
  DeviceLease lease;
  if (replica) lease = {replica, replica->window_on(queue.device(), parts->replicas.whole())};
  parts->captured = true;
  return lease;
}

void BufferCore::end_capture() noexcept {
  if (parts_->lock.is_lost()) return;
  Guard parts(*parts_, detail::Watched::no);
  parts->captured = false;
}

std::weak_ptr<void const> BufferCore::life() const {
  BufferLook const look{parts_->lock, parts_->terms};
  if (!parts_->life) parts_->life = std::make_shared<char const>('\0');
  return parts_->life;
}

}  // namespace unimem
