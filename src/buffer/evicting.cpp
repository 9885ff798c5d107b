#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/device/device.hpp>

#include "buffer/buffer_access.hpp"
#include "buffer/buffer_parts.hpp"
#include "buffer/commits.hpp"
#include "buffer/host_device.hpp"
#include "buffer/reconciler.hpp"
#include "buffer/replica.hpp"
#include "buffer/residency.hpp"
#include "buffer/shared_access.hpp"
#include "buffer/transfer_engine.hpp"
#include "manager/access_context.hpp"
#include "manager/admission.hpp"
#include "manager/backing_file.hpp"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

// How a buffer gives memory back, asked by its user or for others: a device's, once what only it holds is saved to the
// host, and the host's, once a device or a file has it.

namespace unimem {

using detail::AccessContext;
using detail::BufferAccess;
using detail::BufferParts;
using detail::Commits;
using detail::DevicePlace;
using detail::Reconciler;
using detail::SharedAccess;
using detail::TransferEngine;

namespace {

bool is_all_in_use(std::span<const ByteRange> used) noexcept {
  return std::ranges::find(used, detail::OperandsInUse::all_of_it) != used.end();
}

/// Whether a device has all of it, so that the host's memory could go without a file.
bool released_for_a_device(BufferParts& parts) {
  auto& replicas = parts.replicas;
  auto const place = replicas.device_holding(replicas.whole());
  bool const only_the_buffers = replicas.host() && replicas.host().use_count() == 1;
  if (!place || !only_the_buffers) return false;
  auto const plan = replicas.coherence.plan_release(host_place, *place, replicas.places.cost());
  if (!plan.copies.empty() || !parts.is_quiet(*place, replicas.whole())) return false;
  BufferAccess(parts).release_now(host_place, *place);
  return true;
}

/// Where bytes are saved that only the host has, for a part of its memory to go: if nowhere, there must be none.
Place place_to_save_parts_at(BufferParts& parts) {
  bool const spills = parts.terms.spill_files != nullptr && parts.file->mode() != FileMode::read_write;
  return parts.replicas.place_of_file(spills ? DevicePlace::File::spill : DevicePlace::File::users,
                                      *parts.terms.manager);
}

/// Where bytes go that only a device has: to the file, if the buffer's memory of the host went there, goes there in
/// parts, or is more than there may be.
Place place_to_save_at(BufferParts& parts) {
  auto& replicas = parts.replicas;
  if (parts.file && detail::may_save_parts(parts)) return place_to_save_parts_at(parts);
  if (replicas.coherence.has_storage(host_place)) return host_place;
  auto& manager = *parts.terms.manager;
  bool const fits = parts.terms.spill_files == nullptr || parts.file ||
                    replicas.bytes() <= manager.limit(detail::host_device(), Location::host);
  if (!fits) return replicas.place_of_file(DevicePlace::File::spill, manager);
  auto const file = replicas.places.spill_file();
  return file && replicas.coherence.has_storage(*file) ? *file : host_place;
}

/// A device's memory goes, once the host or a file has what only it has.
bool release_from_device(AccessContext& context, BufferParts& parts, Place place,
                         std::optional<TransferEngine::CarriedOut>& carried) {
  auto& replicas = parts.replicas;
  auto const to = place_to_save_at(parts);
  replicas.file_may_go = replicas.places.spill_file().has_value();  // whatever this throws
  bool const released = BufferAccess(parts).release(context, place, to, carried);
  replicas.file_may_go = replicas.file_may_go && released;  // else something may be on its way there
  return released;
}

/// The host's memory goes, at every place that works in it, once the file has what is there.
bool release_to_file(AccessContext& context, BufferParts& parts, std::optional<TransferEngine::CarriedOut>& carried) {
  auto& replicas = parts.replicas;
  auto const file = replicas.place_of_file(DevicePlace::File::spill, *parts.terms.manager);
  replicas.file_may_go = true;  // whatever this throws
  for (Place place = host_place; place < replicas.places.count(); ++place) {
    if (!replicas.places.in_host_memory(place) || !replicas.coherence.has_storage(place)) continue;
    if (BufferAccess(parts).release(context, place, file, carried)) continue;
    replicas.file_may_go = false;
    return false;
  }
  return true;
}

}  // namespace

void BufferCore::release_device(Device* device, Leased leased) {
  std::optional<TransferEngine::CarriedOut> carried;
  // What is saved to a file takes host memory for the way, which the buffer's own parts may give.
  bool const to_file = parts_->file && detail::may_save_parts(*parts_);
  auto const operand = use_of(to_file ? ByteRange{} : detail::OperandsInUse::all_of_it);
  detail::run_admitted(operand, [&](AccessContext& context) {
    Guard parts(*parts_);
    auto const& replicas = parts->replicas;
    if (!Reconciler(*parts).resolve_or_wait(context, replicas.whole())) return false;
    for (Place place = host_place + 1; place < replicas.places.count(); ++place) {
      if (device != nullptr && replicas.places[place].device != device) continue;
      if (replicas.places.is_file(place) || !replicas.coherence.has_storage(place)) continue;
      if (leased == Leased::throws) parts->check_not_leased(place);
      if (auto const& replica = replicas.at(place); replica && replica->holds().leased()) continue;
      if (!release_from_device(context, *parts, place, carried)) return false;
    }
    return true;
  });
}

void BufferCore::release_host() {
  std::optional<TransferEngine::CarriedOut> carried;
  detail::run_admitted(detail::operands(*this), [&](AccessContext& context) {
    Guard parts(*parts_);
    if (!Reconciler(*parts).resolve_or_wait(context, parts->replicas.whole())) return false;
    auto const& replicas = parts->replicas;
    SharedAccess(*parts).refuse("releasing its host memory");
    parts->check_not_leased(host_place);
    auto const to = parts->place_of(parts->replicas.default_device());
    for (auto const place : {std::optional{host_place}, replicas.places.spill_file()}) {
      if (!place || !replicas.coherence.has_storage(*place)) continue;
      if (!BufferAccess(*parts).release(context, *place, to, carried)) return false;
    }
    return true;
  });
}

bool BufferCore::gives_beside_users(MemoryPlace place) const noexcept {
  return parts_->file != nullptr && place.device->reaches_host_memory();
}

BufferCore::Evictable BufferCore::evictable(MemoryPlace place, std::span<const ByteRange> used) noexcept {
  if (is_all_in_use(used)) return {};
  auto& parts = *parts_;
  if (!parts.lock.has_operations() && parts.lock.try_lock()) {
    std::lock_guard const lock{parts.lock, std::adopt_lock};
    parts.record_fast_uses();
    return detail::evictable_from(parts, place, used);
  }
  Evictable in_use;
  // Whether there is anything to be had only the lock's holder knows: that it is not this very thread is all we know.
  in_use.busy = parts.lock.holder() != std::this_thread::get_id();
  if (!in_use.busy) return in_use;
  if (place.device->reaches_host_memory()) {
    in_use.bytes = published_.spillable_bytes();
  } else if (published_.has_memory_on(*place.device)) {
    in_use.bytes = published_.bytes();
  }
  return in_use;
}

std::size_t BufferCore::evict(MemoryPlace place, std::span<const ByteRange> used) {
  if (is_all_in_use(used)) return 0;
  if (!place.device->reaches_host_memory()) return evict_from_device(*place.device, used);
  bool const in_parts = parts_->file != nullptr;
  if (in_parts) return place.location == Location::host ? evict_part_of_host(used) : 0;
  return used.empty() ? evict_from_host(place.location) : 0;
}

std::size_t BufferCore::evict_from_device(Device& device, std::span<const ByteRange> used) {
  std::size_t given = 0;
  std::optional<Place> place;  // the same at each try: what is saved of it is under way
  std::optional<ByteRange> saved_in_parts;
  auto const operands = [&](detail::OperandsInUse& in_use) {
    if (saved_in_parts) in_use.add(manager(), *this, *saved_in_parts);
  };
  std::optional<TransferEngine::CarriedOut> carried;
  AccessContext context{AccessContext::Waiting::for_work, AccessContext::Evicts::yes};
  detail::run_admitted(context, operands, [&](AccessContext&) {
    Guard parts(*parts_, context.again() ? Guard::to_go_on : Guard::at_once);
    if (!parts) return true;
    if (!place) place = detail::first_to_evict(*parts, device, used);
    if (!place) return true;
    if (parts->file && !detail::may_save_parts(*parts)) saved_in_parts = parts->replicas.reach(*place);
    auto const& replica = parts->replicas.at(*place);
    if (!replica || replica->holds().leased() || parts->captured) return true;
    if (Commits(*parts).would_wait_in_work()) return true;
    if (!Reconciler(*parts).may_record(context)) return false;
    Reconciler(*parts).collect_host_writes(false, true, AccessContext::Evicts::yes);
    if (!Reconciler(*parts).resolve_quietly(context, parts->replicas.whole())) return false;
    if (replica->is_read_by_work()) return true;
    auto const bytes = replica->capacity();
    if (!release_from_device(context, *parts, *place, carried)) return false;
    given = bytes;
    return true;
  });
  return given;
}

std::size_t BufferCore::evict_part_of_host(std::span<const ByteRange> used) {
  std::size_t given = 0;
  std::optional<std::size_t> cell;  // the same at each try: what is saved of it is under way
  std::optional<TransferEngine::CarriedOut> carried;
  AccessContext context{AccessContext::Waiting::for_work, AccessContext::Evicts::yes};
  detail::run_admitted(context, detail::operands(), [&](AccessContext&) {
    Guard parts(*parts_, context.again() ? Guard::to_go_on : Guard::at_once);
    if (!parts) return true;
    if (!cell) cell = detail::first_part_to_evict(*parts, used);
    auto const& replica = parts->replicas.in_memory_of_host();
    if (!cell || !replica || parts->captured) return true;
    auto& memory = *replica->reserved();
    if (!memory.is_committed(*cell) || memory.is_held(*cell) || Commits(*parts).would_wait_in_work()) return true;
    if (!Reconciler(*parts).resolve_quietly(context, parts->replicas.whole())) return false;
    if (!parts->watch.unrecorded().empty()) return true;  // there was no memory for that: the bytes stay where they are
    auto const range = memory.range_of(*cell);
    if (!BufferAccess(*parts).await_or_wait(context, *replica, range, true)) return false;
    if (!detail::part_may_go(*parts, *cell)) return true;  // it has been written meanwhile
    auto const file = place_to_save_parts_at(*parts);
    if (!BufferAccess(*parts).release_in_host_memory(context, range, file, carried)) return false;
    parts->replicas.file_may_go = parts->replicas.places.spill_file().has_value();
    given = memory.cell_bytes();
    memory.decommit(*cell);
    return true;
  });
  return given;
}

std::size_t BufferCore::evict_from_host(Location location) {
  std::size_t given = 0;
  std::optional<TransferEngine::CarriedOut> carried;
  AccessContext context{AccessContext::Waiting::for_work, AccessContext::Evicts::yes};
  detail::run_admitted(context, detail::operands(), [&](AccessContext&) {
    Guard parts(*parts_, context.again() ? Guard::to_go_on : Guard::at_once);
    if (!parts) return true;
    auto& replicas = parts->replicas;
    auto* const replica = replicas.in_memory_of_host().get();
    if (replica == nullptr || !detail::may_spill(*parts, location)) return true;
    bool const leased = replica->holds().leased();
    if (leased || Commits(*parts).would_wait_in_work()) return true;
    if (!Reconciler(*parts).resolve_quietly(context, parts->replicas.whole())) return false;
    if (!parts->watch.unrecorded().empty()) return true;  // there was no memory for that: the bytes stay where they are
    if (!BufferAccess(*parts).await_or_wait(context, *replica, replicas.whole(), true)) return false;
    if (!detail::may_spill(*parts, location) || !replica->work().at_rest()) return true;
    auto const bytes = replica->capacity();
    if (!released_for_a_device(*parts) && !release_to_file(context, *parts, carried)) return false;
    given = bytes;
    return true;
  });
  return given;
}

}  // namespace unimem
