#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/detail/blocking_wait.hpp>

#include "buffer/buffer_access.hpp"
#include "buffer/buffer_parts.hpp"
#include "buffer/commits.hpp"
#include "buffer/copy_choice.hpp"
#include "buffer/operand_parts.hpp"
#include "buffer/places.hpp"
#include "buffer/reconciler.hpp"
#include "buffer/shared_access.hpp"
#include "buffer/transfer_engine.hpp"
#include "buffer/windows.hpp"
#include "core/few.hpp"
#include "device/queue_control.hpp"
#include "manager/access_context.hpp"
#include "manager/admission.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <ranges>
#include <utility>

namespace unimem {

using detail::AccessContext;
using detail::BufferAccess;
using detail::BufferGuard;
using detail::BufferParts;
using detail::Commits;
using detail::CopyChoice;
using detail::Few;
using detail::HeldTurn;
using Leaves = detail::BufferGuard::Leaves;
using detail::least_window;
using detail::NextUse;
using detail::part_of;
using detail::Reconciler;
using detail::Replica;
using detail::Room;
using detail::SharedAccess;
using detail::SharedTurn;
using detail::TentativeChange;
using detail::TransferEngine;
using detail::Windows;

namespace {

/// An operand, and the place of its buffer that the work is at.
struct PlacedOperand {
  BufferParts* parts = nullptr;
  ByteRange range;
  Intent intent = Intent::read;
  Place place = host_place;
  /// All of the range is there already, and nothing else is to be done about it. It stays so while the other operands
  /// are looked at: a look that takes something back throws.
  bool is_ready = false;
  Replica* replica = nullptr;
};

/// Announces what the operation needs of each manager beside what stands there, so that no room is made in vain.
void announce(AccessContext& context, Device& device, std::span<PlacedOperand const> operands, Room room) {
  auto const stands = [&](PlacedOperand const& one) {
    auto const& replicas = one.parts->replicas;
    return one.is_ready || replicas.places.shares(device) || replicas.coherence.has_storage(one.place);
  };
  if (std::ranges::all_of(operands, stands)) return;
  context.demand().clear();
  for (auto one = operands.begin(); one != operands.end(); ++one) {
    auto const& parts = *one->parts;
    auto const same = [&](PlacedOperand const& other) { return other.parts == &parts && other.place == one->place; };
    if (parts.replicas.places.shares(device) || std::find_if(operands.begin(), one, same) != one) continue;
    auto const bytes = parts.replicas.reach(one->place).size();
    // What stands, and is larger than the least that is used of it, may have to go for that.
    std::size_t used = room == Room::ample ? bytes : 0;
    for (auto const& other : operands) used += same(other) ? other.range.size() : 0;
    stands(*one) ? context.demand().add(*parts.terms.manager, 0, std::min(bytes, used))
                 : context.demand().add(*parts.terms.manager, bytes, bytes);
  }
}

/// Whether there is room for whole copies of all that have none, with nothing evicted.
bool whole_copies_fit(Device& device, std::span<BufferParts* const> buffers) {
  auto const outstanding = [&](BufferParts const& parts) {
    auto const place = parts.replicas.places.find(device);
    bool const stands = parts.replicas.places.shares(device) || (place && parts.replicas.coherence.has_storage(*place));
    return stands ? 0 : parts.replicas.bytes();
  };
  std::size_t all = 0;
  for (auto const* const parts : buffers) all += outstanding(*parts);
  return std::ranges::all_of(buffers, [&](BufferParts* parts) {
    auto const own = outstanding(*parts);
    return own == 0 || Windows(*parts).fits_whole(device, all - own);
  });
}

}  // namespace

Event use_on_device(Queue& queue, std::span<const Operand> operands, DeviceWork const& submit) {
  auto const work = [&](CopyChoice& choice) {
    // No operand's memory goes for another's: tries would have no end.
    auto const all = [&](detail::OperandsInUse& in_use) {
      for (auto const& operand : operands) {
        auto const use = [&](ByteRange part) { in_use.add(operand.buffer->manager(), *operand.buffer, part); };
        auto const part = part_of(operands, operand, choice.room());
        if (choice.took_whole()) {
          use(detail::OperandsInUse::all_of_it);
        } else if (choice.room() == Room::ample) {
          use(part);
        } else {
          use(least_window(queue.device(), *operand.buffer, part));
          use(detail::OperandsInUse::no_more);
        }
      }
    };
    std::optional<Event> event;
    detail::OperandTurns turns;
    detail::run_admitted(all, [&](AccessContext& context) {
      event = BufferCore::use_once(context, queue, operands, submit, choice, turns);
      if (!event) turns.clear();  // before it waits
      return event.has_value();
    });
    detail::end_turns(turns);
    return *event;
  };
  auto& device = queue.device();
  return detail::with_copy_choice(
      work, [&](OutOfMemory const& refused) { return detail::least_may_fit(device, operands, refused); },
      [&](OutOfMemory const& refused) { detail::clear_the_way(device, operands, refused); });
}

std::optional<Event> BufferCore::use_once(AccessContext& context, Queue& queue, std::span<const Operand> operands,
                                          DeviceWork const& submit, CopyChoice& choice, detail::OperandTurns& turns) {
  // In id order, each once: two launches over the same buffers never wait for each other in a circle.
  Few<BufferParts*> buffers(operands.size());
  for (std::size_t i = 0; i < operands.size(); ++i) buffers[i] = operands[i].buffer->parts_.get();
  auto const id = [](BufferParts const* parts) { return parts->terms.id; };
  if (std::ranges::adjacent_find(buffers, std::ranges::greater_equal{}, id) != buffers.end()) {
    std::ranges::sort(buffers, {}, id);
    auto const again = std::ranges::unique(buffers);
    buffers.erase(again.begin(), again.end());
  }
  Few<BufferGuard> guards;
  guards.reserve(buffers.size());
  for (auto* const parts : buffers) guards.emplace_back(*parts);

  choice.looks_at_earlier_work(true);
  auto& device = queue.device();
  Few<PlacedOperand> placed(operands.size());
  bool all_ready = true;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    auto const& [buffer, range, intent] = operands[i];
    auto& parts = *buffer->parts_;
    parts.check_access("device access");
    if (intent != Intent::read) parts.check_writable("writing on a device");
    parts.check_range(range);
    bool const undisturbed = parts.is_undisturbed();
    if (!undisturbed) {
      HeldTurn turn;
      auto const access = intent == Intent::read ? SharedTurn::Access::reads : SharedTurn::Access::writes;
      if (!SharedAccess(parts).begin(context, range, access, turn)) return std::nullopt;
      if (turn) turns.push_back({std::move(turn), &parts, i, {}});
    }
    if (!Reconciler(parts).look_or_wait(context, range)) return std::nullopt;
    auto const place = undisturbed ? parts.replicas.only_place_on(device, range) : std::nullopt;
    placed[i] = {&parts, range, intent, place.value_or(host_place), place.has_value()};
    all_ready = all_ready && place;
  }
  choice.looks_at_earlier_work(false);

  auto const takes_whole = [&] {
    return choice.takes_whole([&] { return whole_copies_fit(device, {buffers.data(), buffers.size()}); });
  };
  for (std::size_t i = 0; i < placed.size(); ++i) {
    auto& one = placed[i];
    if (!one.is_ready) {
      bool const ample = choice.room() == Room::ample;
      auto const& operand = operands[i];
      auto part = ample && operands.size() == buffers.size() ? one.range : part_of(operands, operand, choice.room());
      if (!ample) part = least_window(device, *operand.buffer, part);
      one.place = Windows(*one.parts).place_for(device, part, takes_whole, choice.room());
      if (one.intent != Intent::read) Windows(*one.parts).check_write(one.place, one.range);
    }
    if (!context.again()) one.parts->replicas.places[one.place].used(one.range.size());
  }
  if (!all_ready) announce(context, device, {placed.data(), placed.size()}, choice.room());
  for (auto const& one : placed) {
    BufferAccess const access(*one.parts);
    if (one.is_ready) {
      access.order(one.place, one.range, one.intent, queue);
    } else if (!access.prepare(context, one.place, one.range, one.intent, queue)) {
      return std::nullopt;
    }
  }
  context.end_turn();
  for (auto const& one : placed) {
    auto const& written = one.parts->watch.written_map();
    if (one.intent != Intent::write && written) written->read(one.range, fmt::format("by work on {}", device.id()));
  }
  // Only now: a window is a window of the memory that stays, and one operand's copies may be what another needs.
  Few<DeviceMemory> memory(placed.size());
  std::vector<Event> needs;
  Few<TentativeChange> writes;
  for (std::size_t i = 0; i < placed.size(); ++i) {
    auto& [parts, range, intent, place, is_ready, replica] = placed[i];
    replica = parts->replicas.at(place).get();
    if (replica != nullptr) memory[i] = replica->window_on(device, range);
    if (intent != Intent::read) writes.push_back(Commits(*parts).plan_write(place, range, operands.size()));
    if (replica == nullptr) continue;
    replica->work().reserve(operands.size());
    replica->usage().note_device(intent != Intent::write, intent != Intent::read);
    if (intent != Intent::write) replica->work().add_writers(range, needs);
  }

  auto const lasts_with_work = [&](detail::OperandTurn const& one) {
    return one.turn->writes() || one.parts->replicas.places.in_host_memory(placed[one.operand].place);
  };
  for (auto& one : turns) {
    auto const& [parts, range, intent, place, is_ready, replica] = placed[one.operand];
    if (!lasts_with_work(one)) one.end = TransferEngine(*parts).arrival(place, range, queue);
  }

  choice.settle();
  auto const before = queue.record().ticket();
  auto const event = [&] {
    try {
      return submit({memory.data(), memory.size()}, needs);
    } catch (...) {
      // What it may have submitted all the same is not on record: it must not be at the memory any more.
      if (auto const last = queue.record(); last.ticket() != before) static_cast<void>(last.wait_for_error());
      throw;
    }
  }();
  // Of several steps the event is the last one's: that it never began does not say that of the others.
  bool const on_this_queue = event.queue_id() == queue.id() && event.ticket() == before + 1;
  bool const one_step = on_this_queue || detail::QueueControl::is_external(event);
  auto const what = one_step ? Commits::Events::of_all : Commits::Events::of_the_end;

  // The work is on its way: from here on nothing can fail.
  for (auto& one : turns) {
    if (lasts_with_work(one)) one.end = event;
    one.turn->ends_as(SharedTurn::Outcome::lost);  // unless it comes to more
  }
  for (auto& guard : guards) guard.leaves(Leaves::what_was);
  auto write = writes.begin();
  for (auto const& [parts, range, intent, place, is_ready, replica] : placed) {
    bool rewrites = false;
    if (intent == Intent::read) {
      if (replica != nullptr) replica->work().read_by(range, event);
    } else {
      if (replica != nullptr) replica->work().written_by(range, event);
      rewrites = write->is_rewrite();
      Commits(*parts).commit(std::move(*write++), event, what);
    }
    if (is_ready && intent == Intent::read) continue;  // leaves what was
    auto const left = is_ready && rewrites ? Leaves::a_rewrite : Leaves::anything;
    for (auto& guard : guards) {
      if (&*guard == parts) guard.leaves(std::max(guard.leaves(), left));
    }
  }
  return event;
}

Event BufferCore::prefetch(Device& device, Queue* queue, ByteRange range) {
  return detail::with_copy_choice([&](CopyChoice& choice) {
    std::optional<Event> event;
    detail::run_admitted(use_of(range), [&](AccessContext& context) {
      event = prefetch_once(context, device, queue, range, choice);
      return event.has_value();
    });
    return *event;
  });
}

std::optional<Event> BufferCore::prefetch_once(AccessContext& context, Device& device, Queue* queue, ByteRange range,
                                               CopyChoice& choice) {
  auto& on = queue == nullptr ? device.default_queue() : *queue;
  Guard parts(*parts_);
  parts->check_access("prefetch");
  parts->check_range(range);
  if (!Reconciler(*parts).look_or_wait(context, range)) return std::nullopt;
  auto const place = Windows(*parts).place_for(device, range, choice);
  parts->replicas.places[place].next_use = NextUse::soon;  // or why bring it
  BufferAccess const access(*parts);
  if (!access.prepare(context, place, range, Intent::read, on)) return std::nullopt;
  auto const leased = Windows(*parts).leased_beside(place, range);
  for (auto const& [other, part] : leased) {
    if (!access.prepare(context, other, part, Intent::read, on)) return std::nullopt;
  }
  if (auto const& replica = parts->replicas.at(place); replica && replica->location() == Location::unified) {
    // Nothing to copy; the pages may come ahead of their use all the same.
    replica->work().reserve(1);
    replica->work().read_by(range, on.prefetch(replica->window_on(device, range)));
  }
  TransferEngine const transfers(*parts);
  std::vector<Event> arriving{transfers.arrival(place, range, on)};
  for (auto const& [other, part] : leased) arriving.push_back(transfers.arrival(other, part, on));
  return leased.empty() ? arriving.front() : on.join(arriving);
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
  std::vector<ByteRange> to_send;
  detail::run_admitted(detail::operands(), [&](AccessContext& context) {
    Guard parts(*parts_);
    parts->check_allocated("synchronize");
    parts->check_range(range);
    // Or one side has what the other lacks, and it is not known yet.
    if (!Reconciler(*parts).look_or_wait(context, range, true)) return false;
    auto const& replicas = parts->replicas;
    for (Place place = host_place + 1; place < replicas.places.count(); ++place) {
      if (replicas.places.is_file(place)) continue;
      done = done || (replicas.holds(place, range) && replicas.holds(host_place, range));
      // Where a copy stands already; the default device else.
      if (replicas.coherence.has_storage(place) && target == nullptr) target = replicas.places[place].device;
    }
    if (target == nullptr) target = &parts->replicas.default_device();
    to_send = Windows(*parts).standing_in(*target, range);
    return true;
  });
  auto const fetched = fetch(range);
  if (done) return fetched;
  std::vector<Event> sent{fetched};
  for (auto const part : to_send) sent.push_back(prefetch(*target, nullptr, part));
  return target->default_queue().join(sent);
}

void BufferCore::synchronize(ByteRange range) {
  resolve_first("synchronize", range);
  detail::await_end(synchronize_async(range), detail::Watched::no);
  resolve_now(range);
}

}  // namespace unimem
