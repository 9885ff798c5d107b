#pragma once

#include "coherence/coherence.hpp"

#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

// What the owner of a Coherence does around it, without any memory: give storage, commit, and return the plan to look
// at.

namespace unimem::testing {

/// A link without latency: two copies are never dearer than one that also carries the gap.
inline double one_second_per_byte(Place, Place, std::size_t bytes) {
  return static_cast<double>(bytes);
}

/// A link where a command costs as much as `latency` bytes.
inline CopyCost latency_of(double latency) {
  return [=](Place, Place, std::size_t bytes) { return latency + static_cast<double>(bytes); };
}

inline Coherence::Undo carry_out(Coherence& coherence, Plan const& plan) {
  auto const give_storage = [&](Place place) {
    if (!coherence.has_storage(place)) coherence.add_storage(place);
  };
  give_storage(plan.place);
  for (auto const& copy : plan.copies) give_storage(copy.to);
  auto undo = coherence.commit(plan);
  coherence.validate();
  return undo;
}

inline Plan access(Coherence& coherence, Place place, ByteRange range, Intent intent,
                   CopyCost const& cost = one_second_per_byte) {
  auto plan = coherence.plan_access(place, range, intent, cost);
  carry_out(coherence, plan);
  return plan;
}

inline Plan read(Coherence& coherence, Place place, ByteRange range, CopyCost const& cost = one_second_per_byte) {
  return access(coherence, place, range, Intent::read, cost);
}

inline Plan write(Coherence& coherence, Place place, ByteRange range) {
  return access(coherence, place, range, Intent::write);
}

inline Plan mark(Coherence& coherence, Place place, ByteRange range, CopyCost const& cost = one_second_per_byte) {
  auto plan = coherence.plan_mark(place, range, cost);
  carry_out(coherence, plan);
  return plan;
}

/// Saves what only `place` has, and takes its storage.
inline Plan release(Coherence& coherence, Place place, Place to) {
  auto plan = coherence.plan_release(place, to, one_second_per_byte);
  carry_out(coherence, plan);
  coherence.remove_storage(place);
  coherence.validate();
  return plan;
}

/// Everything that can be seen of a Coherence from outside. What it still remembers as held shows in what a mark brings
/// in.
inline auto everything_seen(Coherence const& coherence) {
  ByteRange const whole{0, coherence.size_bytes()};
  std::vector<std::tuple<bool, ByteRanges, ByteRanges, std::vector<PlannedCopy>>> places;
  for (Place place = 0; place < coherence.place_count(); ++place) {
    places.emplace_back(coherence.has_storage(place), coherence.valid(place), coherence.written(place),
                        coherence.plan_mark(place, whole, one_second_per_byte).copies);
  }
  return std::tuple{coherence.has_data(), coherence.state(), coherence.lost(), std::move(places)};
}

}  // namespace unimem::testing
