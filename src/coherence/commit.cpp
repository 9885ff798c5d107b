#include "coherence/coherence.hpp"

#include "coherence/coverage.hpp"

#include <algorithm>
#include <ranges>
#include <stdexcept>
#include <string>
#include <utility>

namespace unimem {
namespace {

bool writes(Plan const& plan) noexcept {
  return plan.kind == Plan::Kind::mark || (plan.kind == Plan::Kind::access && plan.intent != Intent::read);
}

}  // namespace

auto Coherence::commit(Plan const& plan) -> Undo {
  auto undo = prepare(plan);
  record(plan, undo);
  validate_in_debug();
  return undo;
}

void Coherence::commit_certain(Plan const& plan) {
  require_possible(plan);
  make_room_for(plan, 1);
  Undo nothing_kept;
  nothing_kept.adopted = adopts(plan);
  record(plan, nothing_kept);
  validate_in_debug();
}

void Coherence::require_possible(Plan const& plan) const {
  if (auto const* const reason = refusal_of(plan)) throw std::logic_error(std::string("Coherence: ") + reason);
}

bool Coherence::adopts(Plan const& plan) const noexcept {
  return !has_data_ && plan.kind != Plan::Kind::release;
}

auto Coherence::prepare(Plan const& plan, std::size_t together) -> Undo {
  require_possible(plan);
  auto undo = undo_for(plan);
  if (!undo.rewrite) make_room_for(plan, together);
  return undo;
}

void Coherence::record(Plan const& plan, Undo const& undo) noexcept {
  if (undo.rewrite) return;
  state_.reset();
  if (undo.adopted && !has_data_) {  // or another that was prepared with it has adopted them
    auto& place = places_[plan.place];
    has_data_ = true;
    place.valid.add(whole());
    place.held.add(whole());
  }
  // The last first: what is behind it in the sets, and would have to move, grows less and less.
  for (auto const& copy : plan.copies | std::views::reverse) record_copy(copy);
  if (!writes(plan)) return;
  if (plan.parts.empty()) record_write(plan.place, plan.range);
  for (auto const part : plan.parts.ranges()) record_write(plan.place, part);
}

char const* Coherence::refusal_of(Plan const& plan) const {
  auto const& place = at(plan.place);
  require_inside(plan.range);
  if (plan.lost) return "commit of a plan that reads lost bytes";
  if (plan.conflict) return "commit of a mark that is in conflict";
  if (bytes_ > 0 && !place.storage) return "commit at a place without storage";
  for (auto const& copy : plan.copies) {
    if (!at(copy.to).storage) return "commit of a copy to a place without storage";
    if (!at(copy.from).valid.contains(copy.range)) return "commit of a plan whose source has become stale";
  }
  bool const reads = plan.kind == Plan::Kind::access && plan.intent != Intent::write;
  if (!has_data_ || !reads || place.valid.contains(plan.range)) return nullptr;
  ByteRanges arriving;
  for (auto const& copy : plan.copies) arriving.add(copy.range);
  bool const complete = detail::covered(plan.range, [&](auto look) {
    look(place.valid);
    look(arriving);
  });
  return complete ? nullptr : "commit of a plan that leaves bytes to be read missing";
}

/// How things stand with every byte that the plan changes.
auto Coherence::undo_for(Plan const& plan) const -> Undo {
  Undo undo;
  undo.data = data_;
  undo.place = plan.copies.empty() ? plan.place : plan.copies.front().to;
  for (auto const& copy : plan.copies) {
    undo.changed.add(copy.range);
    if (!copy.fence) undo.touched.add(copy.range);
  }
  if (writes(plan) && plan.parts.empty()) {
    undo.changed.add(plan.range);
    undo.touched.add(plan.range);
  } else if (writes(plan)) {
    undo.changed.add(plan.parts);
    undo.touched.add(plan.parts);
  }
  undo.adopted = adopts(plan);
  undo.rewrite = is_rewrite(plan);
  if (undo.adopted || undo.rewrite || undo.changed.empty()) return undo;
  for (Place place = 0; place < places_.size(); ++place) {
    auto const& now = places_[place];
    // What is valid or written is held, so a place that holds none of the bytes has neither.
    if (!now.held.intersects(undo.changed)) continue;
    undo.before.push_back({place, now.valid.intersection(undo.changed), now.written.intersection(undo.changed),
                           now.held.intersection(undo.changed)});
  }
  return undo;
}

bool Coherence::is_rewrite(Plan const& plan) const noexcept {
  return writes(plan) && plan.copies.empty() && plan.parts.empty() && is_rewrite(plan.place, plan.range);
}

bool Coherence::is_rewrite(Place place, ByteRange range) const noexcept {
  auto const& writer = places_[place];
  if (range.empty() || !writer.written.contains(range)) return false;
  for (auto const& other : places_) {
    if (&other != &writer && other.valid.intersects(range)) return false;
  }
  return true;
}

auto Coherence::undo_of_rewrite(Place place, ByteRange range, std::uint64_t data) -> Undo {
  Undo undo;
  undo.data = data;
  undo.place = place;
  undo.touched.add(range);
  undo.changed.add(range);
  undo.rewrite = true;
  return undo;
}

/// Makes the edits of `record_copy` and `record_write` unable to throw, of as many plans like this one.
void Coherence::make_room_for(Plan const& plan, std::size_t times) {
  auto const copies = plan.copies.size();
  bool const copies_all = copies == 1 && plan.copies.front().range == whole();
  if ((copies == 0 || copies_all) && plan.parts.empty() && plan.range == whole()) return;  // all of a set, or nothing
  auto const writes = std::max(plan.parts.ranges().size(), std::size_t{1});
  auto const destination = copies == 0 ? plan.place : plan.copies.front().to;
  for (Place place = 0; place < places_.size(); ++place) {
    bool const receives = place == destination;
    auto& sets = places_[place];
    sets.valid.reserve(times * (receives ? copies + writes + 1 : writes));
    sets.held.reserve(times * (receives ? copies + writes + 1 : 0));
    sets.written.reserve(times * (receives ? writes : copies + writes));
  }
  lost_.reserve(times * writes);
}

void Coherence::record_copy(PlannedCopy const& copy) {
  places_[copy.to].valid.add(copy.range);
  places_[copy.to].held.add(copy.range);
  // The bytes have reached this side. What one device wrote and another fetched still waits for the host.
  for (Place other = 0; other < places_.size(); ++other) {
    if (!on_one_side(other, copy.to)) places_[other].written.remove(copy.range);
  }
}

void Coherence::record_write(Place place, ByteRange range) {
  for (Place other = 0; other < places_.size(); ++other) {
    if (other == place) continue;
    places_[other].valid.remove(range);
    places_[other].written.remove(range);
  }
  auto& writer = places_[place];
  writer.valid.add(range);
  writer.held.add(range);
  writer.written.add(range);
  lost_.remove(range);
}

void Coherence::roll_back(Undo const& undo) {
  if (!has_data_ || undo.data != data_) return;
  if (undo.adopted) return forget_data();
  if (undo.rewrite) return roll_back_rewrite(undo);

  auto places = places_;
  for (auto& place : places) {
    place.valid.remove(undo.changed);
    place.written.remove(undo.changed);
    place.held.remove(undo.changed);
  }
  for (auto const& before : undo.before) {
    // Storage that was replaced no longer holds the bytes, nor does storage that a later operation ruined.
    auto held = before.held.intersection(at(before.place).held);
    // Half an operation may have run: what it was to write is neither current nor merely stale, it is garbage.
    if (shares_storage(before.place, undo.place)) held.remove(undo.touched);
    auto& place = places[before.place];
    place.valid.add(before.valid.intersection(held));
    place.held.add(held);
  }
  for (auto const& before : undo.before) record_waiting(places, before.place, before.written);

  auto lost = lost_;
  lost.remove(undo.changed);
  auto nowhere = undo.changed;
  for (auto const& place : places) nowhere.remove(place.valid);
  lost.add(nowhere);

  places_ = std::move(places);
  lost_ = std::move(lost);
  state_.reset();
  validate_in_debug();
}

void Coherence::lose(ByteRange range) {
  require_inside(range);
  if (!has_data_ || range.empty()) return;
  auto places = places_;
  auto lost = lost_;
  for (auto& place : places) {
    // What is held no more no rolling back brings back.
    for (auto* const set : {&place.valid, &place.written, &place.held}) set->remove(range);
  }
  lost.add(range);

  places_ = std::move(places);
  lost_ = std::move(lost);
  state_.reset();
  validate_in_debug();
}

/// Nothing changed, so there is nothing to take back; but what half an operation wrote is garbage.
void Coherence::roll_back_rewrite(Undo const& undo) {
  auto places = places_;
  auto ruined = undo.touched;
  for (Place place = 0; place < places.size(); ++place) {
    if (shares_storage(place, undo.place)) {
      for (auto* const set : {&places[place].valid, &places[place].written, &places[place].held})
        set->remove(undo.touched);
    }
    ruined.remove(places[place].valid);
  }
  auto lost = lost_;
  lost.add(ruined);

  places_ = std::move(places);
  lost_ = std::move(lost);
  state_.reset();
  validate_in_debug();
}

}  // namespace unimem
