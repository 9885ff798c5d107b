#include "buffer/hazards.hpp"

#include "buffer/mutants.hpp"

#include <algorithm>
#include <utility>

namespace unimem::detail {
namespace {

bool meet(ByteRange a, ByteRange b) noexcept {
  return a.begin < b.end && b.begin < a.end;
}

bool covers(ByteRange outer, ByteRange inner) noexcept {
  return outer.begin <= inner.begin && inner.end <= outer.end;
}

ByteRange hull(ByteRanges const& ranges) noexcept {
  return {ranges.ranges().front().begin, ranges.ranges().back().end};
}

}  // namespace

bool Hazards::Use::meets(ByteRange other) const noexcept {
  return meet(range, other) && (!parts || parts->intersects(other));
}

bool Hazards::Use::meets(ByteRanges const& others) const noexcept {
  return parts ? parts->intersects(others) : others.intersects(range);
}

bool Hazards::Use::lies_in(ByteRange other) const noexcept {
  return covers(other, range);
}

bool Hazards::Use::lies_in(ByteRanges const& others) const noexcept {
  if (!parts) return others.contains(range);
  return std::ranges::all_of(parts->ranges(), [&](ByteRange part) { return others.contains(part); });
}

/// Of one queue the later read ends last.
template <class Where>
void Hazards::forget_reads(Where const& where, Event event) {
  std::erase_if(uses_, [&](Use const& use) {
    return use.kind == Kind::read && use.event.queue_id() == event.queue_id() && use.lies_in(where);
  });
}

void Hazards::reserve(std::size_t works) {
  auto const needed = uses_.size() + works;
  // At least doubling: exact steps would copy the vector for every piece of work.
  if (needed > uses_.capacity()) uses_.reserve(std::max(needed, 2 * uses_.size()));
}

void Hazards::read_by(ByteRange range, Event event) {
  if (range.empty()) return;
  forget_reads(range, event);
  if (UNIMEM_MUTANT(reads_not_recorded)) return;
  add({range, event, Kind::read});
}

void Hazards::read_by(Parts ranges, Event event) {
  if (ranges->empty()) return;
  forget_reads(*ranges, event);
  if (UNIMEM_MUTANT(reads_not_recorded)) return;
  auto const range = hull(*ranges);
  add({range, event, Kind::read, std::move(ranges)});
}

void Hazards::written_by(ByteRange range, Event event) {
  if (range.empty()) return;
  std::erase_if(uses_, [&](Use const& use) { return use.lies_in(range); });
  if (UNIMEM_MUTANT(writes_not_recorded)) return;
  add({range, event, Kind::write});
}

void Hazards::written_by(Parts ranges, Event event) {
  if (ranges->empty()) return;
  std::erase_if(uses_, [&](Use const& use) { return use.lies_in(*ranges); });
  if (UNIMEM_MUTANT(writes_not_recorded)) return;
  auto const range = hull(*ranges);
  add({range, event, Kind::write, std::move(ranges)});
}

void Hazards::written_elsewhere_by(ByteRange range, Event event) {
  if (!range.empty()) add({range, event, Kind::write});
}

void Hazards::perhaps_written_by(ByteRange range, Event event) {
  std::erase_if(uses_, [&](Use const& use) {
    return use.kind == Kind::foreign && use.event.queue_id() == event.queue_id() && use.lies_in(range);
  });
  add({range, event, Kind::foreign});
}

void Hazards::add(Use use) {
  if (uses_.size() >= look_at_) {
    std::erase_if(uses_,
                  [](Use const& old) { return old.event.ready() && !(old.kind == Kind::write && old.event.error()); });
    // Asking costs a driver's call: no sooner again than after as many more as are still there.
    look_at_ = std::max<std::size_t>(32, 2 * uses_.size());
  }
  uses_.push_back(std::move(use));
}

template <class Where>
void Hazards::order(Queue& queue, Where const& where, bool behind_reads) const {
  for (auto const& use : uses_) {
    if ((behind_reads || use.kind != Kind::read) && use.meets(where)) queue.wait(use.event);
  }
}

void Hazards::order_read(Queue& queue, ByteRange range) const {
  if (!UNIMEM_MUTANT(reads_not_ordered)) order(queue, range, false);
}

void Hazards::order_read(Queue& queue, ByteRanges const& ranges) const {
  if (!UNIMEM_MUTANT(reads_not_ordered)) order(queue, ranges, false);
}

void Hazards::order_write(Queue& queue, ByteRange range) const {
  if (!UNIMEM_MUTANT(writes_not_ordered)) order(queue, range, !UNIMEM_MUTANT(writes_overtake_reads));
}

void Hazards::order_write(Queue& queue, ByteRanges const& ranges) const {
  if (!UNIMEM_MUTANT(writes_not_ordered)) order(queue, ranges, !UNIMEM_MUTANT(writes_overtake_reads));
}

void Hazards::wait_to_read(ByteRange range) const noexcept {
  if (UNIMEM_MUTANT(host_reads_at_once)) return;
  for (auto const& use : uses_) {
    if (use.kind != Kind::read && use.meets(range)) static_cast<void>(use.event.wait_for_error());
  }
}

void Hazards::wait_to_write(ByteRange range) const noexcept {
  if (UNIMEM_MUTANT(host_writes_at_once)) return;
  for (auto const& use : uses_) {
    if (use.meets(range)) static_cast<void>(use.event.wait_for_error());
  }
}

template <class Where>
void Hazards::writers(Where const& where, std::vector<Event>& events) const {
  if (UNIMEM_MUTANT(needs_forgotten)) return;
  for (auto const& use : uses_) {
    if (use.kind != Kind::write || !use.meets(where)) continue;
    if (use.event.ready() && !use.event.error()) continue;
    if (std::ranges::find(events, use.event) == events.end()) events.push_back(use.event);
  }
}

void Hazards::add_writers(ByteRange range, std::vector<Event>& events) const {
  writers(range, events);
}

void Hazards::add_writers(ByteRanges const& ranges, std::vector<Event>& events) const {
  writers(ranges, events);
}

void Hazards::add_unfinished(ByteRange range, bool readers_too, std::vector<Event>& events) const {
  for (auto const& use : uses_) {
    if ((use.kind == Kind::read && !readers_too) || !use.meets(range) || use.event.ready()) continue;
    if (std::ranges::find(events, use.event) == events.end()) events.push_back(use.event);
  }
}

bool Hazards::writes_ended_well(ByteRange range) const noexcept {
  return std::ranges::all_of(uses_, [&](Use const& use) {
    if (use.kind == Kind::read || !use.meets(range)) return true;
    return use.event.ready() && (use.kind == Kind::foreign || !use.event.error() || UNIMEM_MUTANT(failures_arrive));
  });
}

bool Hazards::idle() const noexcept {
  return std::ranges::all_of(uses_, [](Use const& use) { return use.event.ready(); });
}

std::vector<Event> Hazards::unfinished() const {
  std::vector<Event> latest;
  for (auto const& use : uses_) {
    if (use.event.ready()) continue;
    auto const same = std::ranges::find(latest, use.event.queue_id(), &Event::queue_id);
    if (same == latest.end()) {
      latest.push_back(use.event);
    } else if (same->ticket() < use.event.ticket()) {
      *same = use.event;
    }
  }
  return latest;
}

void Hazards::forget_ended() noexcept {
  std::erase_if(uses_, [](Use const& use) { return use.event.ready(); });
}

}  // namespace unimem::detail
