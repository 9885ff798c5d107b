#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/timed_wait.hpp>

#include "buffer/inside.hpp"
#include "buffer/mutants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <utility>

namespace unimem {

Event use_on_device(Queue& queue, std::span<const Operand> operands, DeviceWork const& submit) {
  std::optional<Event> event;
  try {
    detail::run_admitted([&](detail::AccessContext& context) {
      event = BufferCore::use_once(context, queue, operands, submit);
      return event.has_value();
    });
  } catch (OutOfMemory const& refused) {
    BufferCore::refuse_copies(refused, queue.device(), operands);
  }
  return *event;
}

/// Announces what the operation needs of each manager beside what stands there, so that no room is made in vain.
void BufferCore::announce(detail::AccessContext& context, Device& device, std::span<BufferCore* const> buffers) {
  auto const outstanding = [&](BufferCore const* buffer) {
    auto const& inside = *buffer->inside_;
    auto const place = inside.find_place(device);
    bool const stands = inside.shares(device) || (place && inside.coherence.has_storage(*place));
    return stands ? 0 : inside.bytes;
  };
  bool const nothing = std::ranges::all_of(buffers, [&](auto const* buffer) { return outstanding(buffer) == 0; });
  if (nothing || UNIMEM_MUTANT(sums_unannounced)) return;
  context.needs_nothing();
  for (auto* const buffer : buffers) {
    auto const& inside = *buffer->inside_;
    if (!inside.shares(device)) context.needs(*inside.manager, outstanding(buffer), inside.bytes);
  }
}

std::optional<Event> BufferCore::use_once(detail::AccessContext& context, Queue& queue,
                                          std::span<const Operand> operands, DeviceWork const& submit) {
  // For the lists that end with this call: for some operands, without an allocation for each. Nothing reads it before
  // it is written.
  std::array<std::byte, 1024> room;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  std::pmr::monotonic_buffer_resource nearby{room.data(), room.size()};
  std::pmr::vector<BufferCore*> buffers{&nearby};
  buffers.reserve(operands.size());
  for (auto const& operand : operands) buffers.push_back(operand.buffer);
  // In id order, each once: two launches over the same buffers never wait for each other in a circle.
  std::ranges::sort(buffers, {}, [](BufferCore const* buffer) { return buffer->inside_->id; });
  buffers.erase(std::ranges::unique(buffers).begin(), buffers.end());
  std::pmr::vector<std::optional<BufferCore::Guard>> guards{buffers.size(), &nearby};
  for (std::size_t i = 0; i < buffers.size(); ++i) guards[i].emplace(*buffers[i]);

  for (auto const& [buffer, range, intent] : operands) {
    buffer->inside_->check_access("device access");
    buffer->inside_->check_range(range);
    buffer->inside_->resolve_pending(range, false);
  }

  auto& device = queue.device();
  announce(context, device, buffers);
  for (auto const& [buffer, range, intent] : operands) {
    if (!context.again()) buffer->inside_->note_use(buffer->inside_->place_of(device), range.size());
  }
  for (auto const& [buffer, range, intent] : operands) {
    auto& inside = *buffer->inside_;
    if (!inside.prepare(context, *buffer, inside.place_of(device), range, intent, queue)) return std::nullopt;
  }
  context.end_turn();
  for (auto const& [buffer, range, intent] : operands) {
    auto const& written = buffer->inside_->written_map;
    if (intent != Intent::write && written) written->read(range, fmt::format("by work on {}", device.id()));
  }
  // Only now: a window is a window of the memory that stays, and one operand's copies may be what another needs.
  std::pmr::vector<DeviceMemory> memory{&nearby};
  std::vector<Event> needs;
  std::pmr::vector<Inside::PlannedWrite> writes{&nearby};
  memory.reserve(operands.size());
  writes.reserve(operands.size());
  for (auto const& [buffer, range, intent] : operands) {
    auto& inside = *buffer->inside_;
    auto const place = inside.place_of(device);
    auto const& storage = inside.storage_at(place);
    memory.push_back(storage ? storage->window_on(device, range) : DeviceMemory{});
    if (intent != Intent::read) writes.push_back(inside.plan_write(place, range, operands.size()));
    if (storage) storage->hazards().reserve(operands.size());
    if (storage) storage->usage().note_device(intent != Intent::write, intent != Intent::read);
    if (storage && intent != Intent::write) storage->hazards().add_writers(range, needs);
  }

  auto const before = queue.record().ticket();
  auto const event = [&] {
    detail::AccessContext const within;  // a user's code may come next, and is not tried again
    try {
      return submit(memory, needs);
    } catch (...) {
      // What it may have submitted all the same is not on record: it must not be at the memory any more.
      if (auto const last = queue.record(); last.ticket() != before) static_cast<void>(last.wait_for_error());
      throw;
    }
  }();
  // Of several steps the event is the last one's: that it never began does not say that of the others.
  bool const one_step = event.queue_id() == queue.id() && event.ticket() == before + 1;
  auto const what = one_step ? Inside::Events::of_all : Inside::Events::of_the_end;

  // The work is on its way: from here on nothing can fail.
  auto write = writes.begin();
  for (auto const& [buffer, range, intent] : operands) {
    auto& inside = *buffer->inside_;
    auto const& storage = inside.storage_at(inside.place_of(device));
    if (storage && intent == Intent::read) storage->hazards().read_by(range, event);
    if (storage && intent != Intent::read) storage->hazards().written_by(range, event);
    if (intent != Intent::read) inside.commit(std::move(*write++), event, what);
  }
  return event;
}

DeviceLease BufferCore::lease(Device& device, Queue* queue, ByteRange range, Intent intent, bool looks) {
  if (intent == Intent::read && queue != nullptr) {
    if (auto* const fast_lease = inside_->fast_lease.load(std::memory_order_acquire)) {
      if (auto const memory = fast_lease->enter(device, queue->id(), range)) return {*fast_lease, *memory};
    }
  }
  std::optional<DeviceLease> leased;
  try {
    detail::run_admitted([&](detail::AccessContext& context) {
      leased = lease_once(context, device, queue, range, intent);
      return leased.has_value();
    });
  } catch (OutOfMemory const& refused) {
    Operand const operand{this, range, intent};
    refuse_copies(refused, device, {&operand, 1});
  }
  // A caller that may write as well may do so first.
  if (looks && intent == Intent::read && inside_->written_map) {
    inside_->written_map->read(range, fmt::format("by a lease on {}", device.id()));
  }
  return *std::move(leased);
}

std::optional<DeviceLease> BufferCore::lease_once(detail::AccessContext& context, Device& device, Queue* queue,
                                                  ByteRange range, Intent intent) {
  Guard inside(*this);
  inside->check_access("device access");
  inside->check_range(range);
  inside->resolve_pending(range, queue == nullptr);
  auto const place = inside->place_of(device);
  if (!context.again()) inside->note_use(place, range.size());
  if (auto const& there = inside->storage_at(place);
      intent == Intent::read && there && inside->is_quiet(place, range)) {
    inside->ensure_resident(*there);
    there->used_by_others(device, queue);
    there->usage().note_device(true, false);
    if (queue != nullptr) inside->offer_leases(there, *queue);
    return DeviceLease{there, there->window_on(device, range)};
  }
  auto& on = queue == nullptr ? device.default_queue() : *queue;
  if (!inside->prepare(context, *this, place, range, intent, on)) return std::nullopt;
  context.end_turn();
  auto const storage = inside->storage_at(place);
  auto const arrived = inside->arrival(place, range, on);
  if (queue == nullptr) {
    if (intent != Intent::write) inside->resolve_pending(range, true);
    if (storage) intent == Intent::read ? storage->wait_to_read(range) : storage->wait_to_write(range);
  }
  if (storage) storage->used_by_others(device, queue);
  if (intent != Intent::read) inside->commit_write(place, range, arrived, Inside::Events::of_the_end);
  if (!storage) return DeviceLease{};
  storage->usage().note_device(intent != Intent::write, intent != Intent::read);
  if (queue != nullptr && intent == Intent::read) inside->offer_leases(storage, *queue);
  return DeviceLease{storage, storage->window_on(device, range)};
}

LeaseOption BufferCore::lease_option(Device& device, ByteRange range) {
  // `use_on_device` holds the lock.
  auto const& storage = inside_->storage_at(inside_->place_of(device));
  if (storage && storage->serves_host()) storage->mark_exported(false);  // it may be taken up at any time
  return storage ? LeaseOption(storage, storage->window_on(device, range)) : LeaseOption{};
}

DeviceLease BufferCore::capture(Queue& queue, ByteRange range, std::span<const ByteRange> current, bool begins) {
  std::optional<DeviceLease> leased;
  detail::run_admitted([&](detail::AccessContext& context) {
    leased = capture_once(context, queue, range, current, begins);
    return leased.has_value();
  });
  return *std::move(leased);
}

std::optional<DeviceLease> BufferCore::capture_once(detail::AccessContext& context, Queue& queue, ByteRange range,
                                                    std::span<const ByteRange> current, bool begins) {
  Guard inside(*this);
  inside->check_access("device access");
  inside->check_range(range);
  if (begins) inside->resolve_pending(inside->whole(), false);
  auto const place = inside->place_of(queue.device());
  for (auto const wanted : current) {
    if (inside->holds(place, wanted)) continue;
    throw UnsupportedOperation(
        "capturing a launch", inside->display_name(),
        fmt::format("bytes [{}, {}) are not up to date on {}, and copies are not captured: synchronize before",
                    wanted.begin, wanted.end, queue.device().id()));
  }
  if (!inside->ensure_device(context, *this, place, queue)) return std::nullopt;
  auto const& storage = inside->storage_at(place);
  DeviceLease lease;
  if (storage) lease = {storage, storage->window_on(queue.device(), inside->whole())};
  inside->captured = true;
  return lease;
}

void BufferCore::end_capture() noexcept {
  if (inside_->mutex.is_lost()) return;
  Guard inside(*this, Inside::Watched::no);
  inside->captured = false;
}

std::weak_ptr<void const> BufferCore::life() const {
  std::lock_guard const lock{*inside_};
  if (!inside_->life) inside_->life = std::make_shared<char const>('\0');
  return inside_->life;
}

void BufferCore::Inside::offer_leases(std::shared_ptr<detail::Storage> const& storage, Queue const& queue) {
  auto* at = fast_lease.load(std::memory_order_relaxed);
  if (at == nullptr) {
    at = new detail::FastLease;
    fast_lease.store(at, std::memory_order_release);
  }
  at->stand_before(storage, bytes, queue.id());
}

void BufferCore::Inside::open_fast_lease() noexcept {
  auto* const at = fast_lease.load(std::memory_order_relaxed);
  auto const* const storage = at == nullptr ? nullptr : at->behind();
  if (storage == nullptr) return;
  auto const side = std::ranges::find_if(sides, [&](Side const& one) { return one.storage.get() == storage; });
  if (side == sides.end()) return at->detach();
  auto const place = static_cast<Place>(side - sides.begin() + 1);
  bool const all_written = !written_map || written_map->complete();
  bool const at_rest = all_written && !host_writes && !deferred && !captured && unrecorded.empty() && pending.empty() &&
                       storage->hazards().writes_ended_well(whole());
  if (at_rest && holds(place, whole()) && storage->used_by_others_on(*side->device, at->queue_id())) at->open();
}

Event BufferCore::prefetch(Device& device, Queue* queue, ByteRange range) {
  std::optional<Event> event;
  try {
    detail::run_admitted([&](detail::AccessContext& context) {
      event = prefetch_once(context, device, queue, range);
      return event.has_value();
    });
  } catch (OutOfMemory const& refused) {
    Operand const operand{this, range, Intent::read};
    refuse_copies(refused, device, {&operand, 1});
  }
  return *event;
}

std::optional<Event> BufferCore::prefetch_once(detail::AccessContext& context, Device& device, Queue* queue,
                                               ByteRange range) {
  auto& on = queue == nullptr ? device.default_queue() : *queue;
  Guard inside(*this);
  inside->check_access("prefetch");
  inside->check_range(range);
  inside->resolve_pending(range, false);
  auto const place = inside->place_of(device);
  inside->side(place).next_use = Inside::NextUse::soon;  // or why bring it
  if (!inside->prepare(context, *this, place, range, Intent::read, on)) return std::nullopt;
  if (auto const& storage = inside->storage_at(place); storage && storage->location() == Location::unified) {
    // Nothing to copy; the pages may come ahead of their use all the same.
    storage->hazards().reserve(1);
    storage->hazards().read_by(range, on.prefetch(storage->window_on(device, range)));
  }
  return inside->arrival(place, range, on);
}

Event BufferCore::sync_to_device_async(Device& device, ByteRange range) {
  {
    Guard inside(*this);
    inside->check_allocated("sync_to_device");
  }
  return prefetch(device, nullptr, range);
}

/// For callers that wait anyway: bytes that may yet fail are not brought over the last good copy of them.
void BufferCore::resolve_first(std::string_view operation, ByteRange range) {
  Guard inside(*this);
  inside->check_allocated(operation);
  inside->check_range(range);
  inside->resolve_pending(range, true);
}

void BufferCore::sync_to_device_slow(Device& device, ByteRange range) {
  resolve_first("sync_to_device", range);
  wait_unless_endless(sync_to_device_async(device, range));
  Guard inside(*this);
  inside->resolve_pending(range, true);
}

Event BufferCore::synchronize_async(ByteRange range) {
  Device* target = nullptr;
  bool done = false;
  {
    Guard inside(*this);
    inside->check_allocated("synchronize");
    inside->check_range(range);
    inside->resolve_pending(range, false, true);  // or one side has what the other lacks, and it is not known yet
    for (auto const& side : inside->sides) {
      auto const place = *inside->find_place(*side.device);
      done = done || (inside->holds(place, range) && inside->holds(host_place, range));
      // Where a copy stands already; the default device else.
      if (inside->coherence.has_storage(place) && target == nullptr) target = side.device;
    }
    if (target == nullptr) target = &inside->default_device();
  }
  auto const fetched = fetch(range);
  if (done) return fetched;
  auto const sent = prefetch(*target, nullptr, range);
  return target->default_queue().join({{fetched, sent}});
}

void BufferCore::synchronize(ByteRange range) {
  resolve_first("synchronize", range);
  wait_unless_endless(synchronize_async(range));
  Guard inside(*this);
  inside->resolve_pending(range, true);
}

}  // namespace unimem
