#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/detail/blocking_wait.hpp>

#include "buffer/buffer_access.hpp"
#include "buffer/buffer_parts.hpp"
#include "buffer/commits.hpp"
#include "buffer/places.hpp"
#include "buffer/reconciler.hpp"
#include "buffer/transfer_engine.hpp"
#include "manager/access_context.hpp"
#include "manager/admission.hpp"

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

using detail::AccessContext;
using detail::BufferAccess;
using detail::BufferGuard;
using detail::Commits;
using detail::NextUse;
using detail::PlannedWrite;
using detail::Reconciler;
using detail::TransferEngine;

namespace {

/// An operand, and the place of its buffer that the work is at.
struct PlacedOperand {
  detail::BufferParts& parts;
  Place place;
  ByteRange range;
  Intent intent;
};

}  // namespace

Event use_on_device(Queue& queue, std::span<const Operand> operands, DeviceWork const& submit) {
  std::optional<Event> event;
  try {
    auto const all = [operands](detail::OperandsInUse& in_use) {
      for (auto const& operand : operands) in_use.add(operand.buffer->manager(), *operand.buffer);
    };
    detail::run_admitted(all, [&](AccessContext& context) {
      event = BufferCore::use_once(context, queue, operands, submit);
      return event.has_value();
    });
  } catch (OutOfMemory const& refused) {
    BufferCore::refuse_copies(refused, queue.device(), operands);
  }
  return *event;
}

/// Announces what the operation needs of each manager beside what stands there, so that no room is made in vain.
void BufferCore::announce(AccessContext& context, Device& device, std::span<BufferCore* const> buffers) {
  auto const outstanding = [&](BufferCore const* buffer) {
    auto const& parts = *buffer->parts_;
    auto const place = parts.replicas.places.find(device);
    bool const stands = parts.replicas.places.shares(device) || (place && parts.replicas.coherence.has_storage(*place));
    return stands ? 0 : parts.replicas.bytes();
  };
  bool const nothing = std::ranges::all_of(buffers, [&](auto const* buffer) { return outstanding(buffer) == 0; });
  if (nothing) return;
  context.demand().clear();
  for (auto* const buffer : buffers) {
    auto const& parts = *buffer->parts_;
    if (!parts.replicas.places.shares(device))
      context.demand().add(*parts.terms.manager, outstanding(buffer), parts.replicas.bytes());
  }
}

std::optional<Event> BufferCore::use_once(AccessContext& context, Queue& queue, std::span<const Operand> operands,
                                          DeviceWork const& submit) {
  // For the lists that end with this call: for some operands, without an allocation for each. Nothing reads it before
  // it is written.
  std::array<std::byte, 2048> room;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  std::pmr::monotonic_buffer_resource nearby{room.data(), room.size()};
  std::pmr::vector<BufferCore*> buffers{&nearby};
  buffers.reserve(operands.size());
  for (auto const& operand : operands) buffers.push_back(operand.buffer);
  // In id order, each once: two launches over the same buffers never wait for each other in a circle.
  std::ranges::sort(buffers, {}, [](BufferCore const* buffer) { return buffer->parts_->terms.id; });
  buffers.erase(std::ranges::unique(buffers).begin(), buffers.end());
  std::pmr::vector<std::optional<BufferGuard>> guards{buffers.size(), &nearby};
  for (std::size_t i = 0; i < buffers.size(); ++i) guards[i].emplace(*buffers[i]->parts_);

  for (auto const& [buffer, range, intent] : operands) {
    buffer->parts_->check_access("device access");
    buffer->parts_->check_range(range);
    if (!Reconciler(*buffer->parts_).look_or_wait(context, range)) return std::nullopt;
  }

  auto& device = queue.device();
  announce(context, device, buffers);
  std::pmr::vector<PlacedOperand> placed{&nearby};
  placed.reserve(operands.size());
  for (auto const& [buffer, range, intent] : operands) {
    auto& parts = *buffer->parts_;
    placed.push_back({parts, parts.place_of(device), range, intent});
    if (!context.again()) parts.replicas.places[placed.back().place].used(range.size());
  }
  for (auto const& [parts, place, range, intent] : placed) {
    if (!BufferAccess(parts).prepare(context, place, range, intent, queue)) return std::nullopt;
  }
  context.end_turn();
  for (auto const& [parts, place, range, intent] : placed) {
    auto const& written = parts.watch.written_map();
    if (intent != Intent::write && written) written->read(range, fmt::format("by work on {}", device.id()));
  }
  // Only now: a window is a window of the memory that stays, and one operand's copies may be what another needs.
  std::pmr::vector<DeviceMemory> memory{&nearby};
  std::vector<Event> needs;
  std::pmr::vector<PlannedWrite> writes{&nearby};
  memory.reserve(operands.size());
  writes.reserve(operands.size());
  for (auto const& [parts, place, range, intent] : placed) {
    auto const& replica = parts.replicas.at(place);
    memory.push_back(replica ? replica->window_on(device, range) : DeviceMemory{});
    if (intent != Intent::read) writes.push_back(Commits(parts).plan_write(place, range, operands.size()));
    if (replica) replica->work().reserve(operands.size());
    if (replica) replica->usage().note_device(intent != Intent::write, intent != Intent::read);
    if (replica && intent != Intent::write) replica->work().add_writers(range, needs);
  }

  auto const before = queue.record().ticket();
  auto const event = [&] {
    AccessContext const within;  // a user's code may come next, and is not tried again
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
  auto const what = one_step ? Commits::Events::of_all : Commits::Events::of_the_end;

  // The work is on its way: from here on nothing can fail.
  auto write = writes.begin();
  for (auto const& [parts, place, range, intent] : placed) {
    auto const& replica = parts.replicas.at(place);
    if (replica && intent == Intent::read) replica->work().read_by(range, event);
    if (replica && intent != Intent::read) replica->work().written_by(range, event);
    if (intent != Intent::read) Commits(parts).commit(std::move(*write++), event, what);
  }
  return event;
}

Event BufferCore::prefetch(Device& device, Queue* queue, ByteRange range) {
  std::optional<Event> event;
  try {
    detail::run_admitted(detail::operands(*this), [&](AccessContext& context) {
      event = prefetch_once(context, device, queue, range);
      return event.has_value();
    });
  } catch (OutOfMemory const& refused) {
    Operand const operand{this, range, Intent::read};
    refuse_copies(refused, device, {&operand, 1});
  }
  return *event;
}

std::optional<Event> BufferCore::prefetch_once(AccessContext& context, Device& device, Queue* queue, ByteRange range) {
  auto& on = queue == nullptr ? device.default_queue() : *queue;
  Guard parts(*parts_);
  parts->check_access("prefetch");
  parts->check_range(range);
  if (!Reconciler(*parts).look_or_wait(context, range)) return std::nullopt;
  auto const place = parts->place_of(device);
  parts->replicas.places[place].next_use = NextUse::soon;  // or why bring it
  if (!BufferAccess(*parts).prepare(context, place, range, Intent::read, on)) return std::nullopt;
  if (auto const& replica = parts->replicas.at(place); replica && replica->location() == Location::unified) {
    // Nothing to copy; the pages may come ahead of their use all the same.
    replica->work().reserve(1);
    replica->work().read_by(range, on.prefetch(replica->window_on(device, range)));
  }
  return TransferEngine(*parts).arrival(place, range, on);
}

Event BufferCore::sync_to_device_async(Device& device, ByteRange range) {
  {
    Guard parts(*parts_);
    parts->check_allocated("sync_to_device");
  }
  return prefetch(device, nullptr, range);
}

/// For callers that wait anyway: bytes that may yet fail are not brought over the last good copy of them.
void BufferCore::resolve_first(std::string_view operation, ByteRange range) {
  {
    Guard parts(*parts_);
    parts->check_allocated(operation);
    parts->check_range(range);
  }
  resolve_now(range);
}

void BufferCore::resolve_now(ByteRange range) {
  detail::run_admitted(detail::operands(*this), [&](AccessContext& context) {
    Guard parts(*parts_);
    return Reconciler(*parts).resolve_or_wait(context, range);
  });
}

void BufferCore::sync_to_device_slow(Device& device, ByteRange range) {
  resolve_first("sync_to_device", range);
  detail::await_end(sync_to_device_async(device, range), detail::Watched::no);
  resolve_now(range);
}

Event BufferCore::synchronize_async(ByteRange range) {
  Device* target = nullptr;
  bool done = false;
  detail::run_admitted(detail::operands(), [&](AccessContext& context) {
    Guard parts(*parts_);
    parts->check_allocated("synchronize");
    parts->check_range(range);
    // Or one side has what the other lacks, and it is not known yet.
    if (!Reconciler(*parts).look_or_wait(context, range, true)) return false;
    for (Place place = host_place + 1; place < parts->replicas.places.count(); ++place) {
      if (parts->replicas.places.is_file(place)) continue;
      done = done || (parts->replicas.holds(place, range) && parts->replicas.holds(host_place, range));
      // Where a copy stands already; the default device else.
      if (parts->replicas.coherence.has_storage(place) && target == nullptr)
        target = parts->replicas.places[place].device;
    }
    if (target == nullptr) target = &parts->replicas.default_device();
    return true;
  });
  auto const fetched = fetch(range);
  if (done) return fetched;
  auto const sent = prefetch(*target, nullptr, range);
  return target->default_queue().join({{fetched, sent}});
}

void BufferCore::synchronize(ByteRange range) {
  resolve_first("synchronize", range);
  detail::await_end(synchronize_async(range), detail::Watched::no);
  resolve_now(range);
}

}  // namespace unimem
