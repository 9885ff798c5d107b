#include <unimem/core/error.hpp>
#include "coherence/coherence.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace unimem {
namespace {

Plan plan_for(Plan::Kind kind, Place place, ByteRange range, Intent intent) {
  Plan plan;
  plan.kind = kind;
  plan.place = place;
  plan.range = range;
  plan.intent = intent;
  return plan;
}

}  // namespace

Plan Coherence::plan_access(Place place, ByteRange range, Intent intent, CopyCost const& cost) const {
  auto const& here = at(place);
  require_inside(range);
  auto plan = plan_for(Plan::Kind::access, place, range, intent);
  if (!has_data_) return plan;
  if (intent == Intent::write) return plan;

  if (lost_.intersects(range)) {
    auto const first = *lost_.find(range.begin);
    plan.lost = {std::max(first.begin, range.begin), std::min(first.end, range.end)};
    return plan;
  }
  for (auto const missing : here.valid.missing(range)) plan_copies(plan, missing, cost);
  join_copies(plan, cost);
  return plan;
}

Plan Coherence::plan_mark(Place place, ByteRange range, CopyCost const& cost) const {
  return plan_mark(plan_for(Plan::Kind::mark, place, range, Intent::write), ByteRanges{range}, cost);
}

Plan Coherence::plan_mark(Place place, ByteRanges const& ranges, CopyCost const& cost) const {
  auto const parts = ranges.ranges();
  if (parts.empty()) throw InvalidArgument("ranges", "none", "at least one");
  auto plan = plan_for(Plan::Kind::mark, place, {parts.front().begin, parts.back().end}, Intent::write);
  if (parts.size() > 1) plan.parts = ranges;
  return plan_mark(std::move(plan), ranges, cost);
}

Plan Coherence::plan_mark(Plan plan, ByteRanges const& marked, CopyCost const& cost) const {
  auto const place = plan.place;
  auto const& here = at(place);
  require_inside(plan.range);
  if (!has_data_) return plan;

  ByteRanges held, seen, unseen;
  for (auto const& other : places_) {
    bool const same_storage = other.storage_group == here.storage_group;
    if (same_storage) {
      held.add(other.held);
      seen.add(other.valid);
    } else {
      unseen.add(other.written);
    }
  }
  unseen.remove(seen);

  ByteRanges never_held = marked;
  never_held.remove(held);
  // What has to be brought in is seen by the time the mark counts; only writes under bytes that lie here already clash.
  ByteRanges clash = unseen.intersection(marked);
  clash.remove(never_held);
  if (!clash.empty()) {
    ByteRanges untouched = unseen;
    untouched.remove(marked);
    if (!untouched.empty()) {
      auto const first = clash.ranges().front().begin;
      for (Place other = 0; other < places_.size(); ++other) {
        auto const write = places_[other].written.find(first);
        if (write && write->begin <= first && !shares_storage(place, other)) plan.conflict = {other, *write};
      }
      return plan;
    }
    plan.overrules = true;
  }

  for (auto const missing : never_held.ranges()) plan_copies(plan, missing, cost);
  join_copies(plan, cost);
  return plan;
}

Plan Coherence::plan_release(Place place, Place to, ByteRange part, CopyCost const& cost) const {
  auto const& here = at(place);
  require_inside(part);
  if (to == place) throw InvalidArgument("to", std::to_string(to), "another place than the one that is released");
  bool const fence = shares_storage(place, to);
  auto plan = plan_for(Plan::Kind::release, place, part, Intent::read);
  auto saved = sole_bytes(place);
  // A fence costs nothing, and the holder of the other copy may ruin it. What lies in a file shows in no state, so that
  // going there must not either.
  if (fence || (here.on_host_side && at(to).on_host_side)) {
    saved = here.valid;
    saved.remove(at(to).valid);
    for (auto const& other : places_) {
      if (!fence && other.on_host_side && &other != &here) saved.remove(other.valid);
    }
  }
  if (part != whole()) saved = saved.intersection(ByteRanges{part});
  for (auto const range : saved.ranges()) plan.copies.push_back({place, to, range, fence});
  join_copies(plan, cost);
  return plan;
}

/// Appends the copies that bring `missing` to the plan's place, each piece from the cheapest place that has it. Bytes
/// that no place has are left out.
void Coherence::plan_copies(Plan& plan, ByteRange missing, CopyCost const& cost) const {
  for (auto here = missing.begin; here < missing.end;) {
    // A piece ends where any place begins or ceases to have the bytes: within it the choice is the same for all.
    auto until = missing.end;
    for (auto const& source : places_) {
      auto const found = source.valid.find(here);
      if (found) until = std::min(until, found->begin > here ? found->begin : found->end);
    }
    if (auto copy = cheapest_copy(plan.place, {here, until}, cost)) {
      bool const continues = !plan.copies.empty() && plan.copies.back().from == copy->from &&
                             plan.copies.back().range.end == copy->range.begin;
      if (continues) {
        plan.copies.back().range.end = copy->range.end;
      } else {
        plan.copies.push_back(*copy);
      }
    }
    here = until;
  }
}

/// The cheapest way to bring `range`, every place having either all of it or nothing; empty if no place has it.
std::optional<PlannedCopy> Coherence::cheapest_copy(Place to, ByteRange range, CopyCost const& cost) const {
  std::optional<PlannedCopy> best;
  std::optional<double> best_cost;
  for (Place from = 0; from < places_.size(); ++from) {
    auto const& source = places_[from];
    if (from == to || !source.valid.contains(range)) continue;
    if (shares_storage(from, to)) return PlannedCopy{from, to, range, true};
    PlannedCopy const copy{from, to, range};
    if (!best) {
      best = copy;
      continue;
    }
    if (!best_cost) best_cost = cost(best->from, to, range.size());
    auto const this_cost = cost(from, to, range.size());
    if (this_cost < *best_cost) {
      best = copy;
      best_cost = this_cost;
    }
  }
  return best;
}

/// Makes neighbouring copies one as long as that pays.
void Coherence::join_copies(Plan& plan, CopyCost const& cost) const {
  auto& copies = plan.copies;
  std::size_t kept = 0;
  for (std::size_t next = 0; next < copies.size(); ++next) {
    copies[kept++] = copies[next];
    while (kept >= 2) {
      auto const one = joined(copies[kept - 2], copies[kept - 1], plan.kind, cost);
      if (!one) break;
      copies[kept-- - 2] = *one;
    }
  }
  copies.resize(kept);
}

/// One copy in place of two, if either source can deliver everything between them and that is not dearer.
std::optional<PlannedCopy> Coherence::joined(PlannedCopy const& left, PlannedCopy const& right, Plan::Kind kind,
                                             CopyCost const& cost) const {
  // A fence orders work that a copy would race with, and costs nothing: never swallow one.
  if (left.fence || right.fence) return {};
  // What a mark does not bring in, its place already has, newer than any other place: a copy over it would undo the
  // user's write.
  bool const touching = left.range.end == right.range.begin;
  if (kind == Plan::Kind::mark && !touching) return {};

  ByteRange const both{left.range.begin, right.range.end};
  std::optional<PlannedCopy> best;
  double best_cost = 0;
  for (auto const from : {std::min(left.from, right.from), std::max(left.from, right.from)}) {
    if (best && best->from == from) break;  // the two are one
    // Valid at the source means current: then the destination cannot have anything newer in the gap.
    if (!places_[from].valid.contains(both)) continue;
    auto const one_cost = cost(from, left.to, both.size());
    if (best && one_cost >= best_cost) continue;
    best = {from, left.to, both};
    best_cost = one_cost;
  }
  if (!best) return best;
  auto const two_cost = cost(left.from, left.to, left.range.size()) + cost(right.from, right.to, right.range.size());
  return best_cost <= two_cost ? best : std::nullopt;
}

/// The bytes that are valid at `place` and nowhere else.
ByteRanges Coherence::sole_bytes(Place place) const {
  auto sole = at(place).valid;
  for (auto const& other : places_)
    if (&other != &places_[place]) sole.remove(other.valid);
  return sole;
}

}  // namespace unimem
