#include "coherence/coherence.hpp"
#include <unimem/core/error.hpp>

#include "coherence/coverage.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace unimem {

Coherence::Coherence(std::size_t bytes) : bytes_(bytes), places_(1) {
  places_[host_place].on_host_side = true;
}

Place Coherence::add_device(std::optional<Place> shares_with) {
  auto const device = static_cast<Place>(places_.size());
  PlaceState state;
  state.storage_group = shares_with ? at(*shares_with).storage_group : device;
  places_.push_back(std::move(state));
  state_.reset();
  return device;
}

Place Coherence::add_file() {
  auto const file = add_device();
  places_[file].on_host_side = true;
  state_.reset();
  return file;
}

void Coherence::add_storage(Place place) {
  if (at(place).storage) throw std::logic_error("Coherence: the place has storage already");
  places_[place].storage = true;
  state_.reset();
}

void Coherence::remove_storage(Place place) {
  remove_bytes(place, whole());
  places_[place].storage = false;
  // Storage that comes after all was gone is as fresh as the first, whatever was discarded before.
  if (std::ranges::none_of(places_, &PlaceState::storage)) discarded_ = false;
  state_.reset();
  validate_in_debug();
}

void Coherence::remove_storage(Place place, ByteRange part) {
  require_inside(part);
  remove_bytes(place, part);
  state_.reset();
  validate_in_debug();
}

void Coherence::remove_bytes(Place place, ByteRange part) {
  if (!at(place).storage) throw std::logic_error("Coherence: the place has no storage to remove");
  ByteRanges const going{part};
  auto lost = lost_;
  lost.add(sole_bytes(place).intersection(going));
  auto places = places_;
  auto& here = places[place];
  auto const waiting = here.written.intersection(going);
  for (auto* const set : {&here.valid, &here.written, &here.held}) set->remove(going);
  record_waiting(places, place, waiting);

  places_ = std::move(places);
  lost_ = std::move(lost);
}

/// Records that the other side has not seen `waiting`, which `writer` wrote: there if it still has the bytes, else
/// at a place of the same side that does. Bytes that side no longer has anywhere do not wait any more.
void Coherence::record_waiting(std::vector<PlaceState>& places, Place writer, ByteRanges waiting) {
  auto const record_at = [&](PlaceState& place) {
    auto const here = waiting.intersection(place.valid);
    place.written.add(here);
    waiting.remove(here);
  };
  record_at(places.at(writer));
  for (auto& place : places) {
    if (waiting.empty()) return;
    if (place.on_host_side == places[writer].on_host_side) record_at(place);
  }
}

bool Coherence::shares_storage(Place a, Place b) const {
  return at(a).storage_group == at(b).storage_group;
}

void Coherence::discard() noexcept {
  forget_data();
  ++data_;
  discarded_ = std::ranges::any_of(places_, &PlaceState::storage);
  state_.reset();
}

void Coherence::forget_data() noexcept {
  has_data_ = false;
  state_.reset();
  lost_.clear();
  for (auto& place : places_) {
    place.valid.clear();
    place.written.clear();
    place.held.clear();
  }
}

void Coherence::refuse(Place place) const {
  throw InvalidArgument("place", std::to_string(place), "below " + std::to_string(places_.size()));
}

void Coherence::require_inside(ByteRange range) const {
  if (range.begin <= range.end && range.end <= bytes_) return;
  throw InvalidArgument("range", "[" + std::to_string(range.begin) + ", " + std::to_string(range.end) + ")",
                        "within the buffer's " + std::to_string(bytes_) + " bytes");
}

// Allocates nothing, or a debug build could run out of memory in a mutation that has happened already.
void Coherence::validate() const {
  auto const require = [](bool holds, char const* broken) {
    if (!holds) throw std::logic_error(std::string("Coherence: ") + broken);
  };
  auto const in_buffer = [&](ByteRanges const& set) { return set.empty() || set.ranges().back().end <= bytes_; };
  auto const in_set = [](ByteRanges const& outer, ByteRanges const& inner) {
    return std::ranges::all_of(inner.ranges(), [&](ByteRange range) { return outer.contains(range); });
  };

  lost_.validate();
  require(in_buffer(lost_), "lost bytes outside the buffer");
  require(has_data_ || lost_.empty(), "lost bytes without data");
  for (Place p = 0; p < places_.size(); ++p) {
    auto const& place = places_[p];
    for (auto const* set : {&place.valid, &place.written, &place.held}) set->validate();
    require(place.storage_group <= p && places_[place.storage_group].storage_group == place.storage_group,
            "storage shared with a place that shares another's");
    require((has_data_ && place.storage) || place.held.empty(), "bytes held without data or without storage");
    require(in_buffer(place.held), "held bytes outside the buffer");
    require(in_set(place.held, place.valid), "valid bytes that were never received");
    require(in_set(place.valid, place.written), "written bytes that are not valid");
    require(!lost_.intersects(place.valid), "lost bytes that are valid");
    for (Place other = 0; other < places_.size(); ++other) {
      require(other == p || !places_[other].written.intersects(place.written), "bytes written last at two places");
      require(on_one_side(p, other) || !place.written.intersects(places_[other].valid),
              "bytes wait for a side that has them");
    }
  }
  bool const complete = detail::covered(whole(), [&](auto look) {
    look(lost_);
    for (auto const& place : places_) look(place.valid);
  });
  require(!has_data_ || complete, "bytes that are valid nowhere and not lost");
  require(!state_ || *state_ == projection(), "a state of earlier sets");
}

void Coherence::validate_in_debug() const {
#ifndef NDEBUG
  validate();
#endif
}

}  // namespace unimem
