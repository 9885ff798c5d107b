#include "coherence/random_operations.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace unimem::testing {
namespace {

/// Seconds as a link has them: a latency and a rate per pair of places. Without latency nothing may ever be joined
/// across a gap; with much of it nearly everything is.
struct Links {
  std::array<std::array<double, ShadowModel::max_places>, ShadowModel::max_places> latency{}, per_byte{};

  double operator()(Place from, Place to, std::size_t bytes) const {
    return latency[from][to] + per_byte[from][to] * static_cast<double>(bytes);
  }
};

}  // namespace

void RandomOperations::step() {
  if (steps_left_ == 0) begin_buffer();
  --steps_left_;
  if (!started_.empty() && chance(3)) return fail_latest();
  if (chance(12)) {
    auto const place = any_place();
    return model_->has_storage(place) ? model_->remove_storage(place) : model_->add_storage(place);
  }
  if (chance(60)) return model_->discard();
  work();
}

void RandomOperations::begin_buffer() {
  if (model_) model_->count_in(finished_);
  started_.clear();
  steps_left_ = 50 + below(400);

  // Four places; some share storage, with the host or with an earlier device.
  std::vector<std::optional<Place>> shares_with(3);
  if (chance(3)) shares_with[below(3)] = host_place;
  if (chance(4)) shares_with[2] = static_cast<Place>(1 + below(2));
  Links links;
  double const latency = std::array{0.0, 1.0, 10.0}[below(3)];
  for (auto& row : links.latency)
    for (auto& seconds : row) seconds = latency * static_cast<double>(1 + below(3));
  for (auto& row : links.per_byte)
    for (auto& seconds : row) seconds = static_cast<double>(1 + below(4));
  auto const bytes = chance(20) ? below(2) : 2 + below(40);
  model_.emplace(bytes, shares_with, links);
}

void RandomOperations::fail_latest() {
  auto const latest = std::move(started_.back());
  started_.pop_back();
  model_->fail(latest);
}

void RandomOperations::work() {
  auto const place = any_place();
  auto const range = any_range();
  switch (below(9)) {
    case 8:
      return edit_and_look();
    case 0:
      return keep_or_forget(range, model_->mark(place, range));
    case 1: {
      ByteRanges parts{range};
      for (auto more = below(4); more > 0; --more) parts.add(any_range());
      if (chance(2)) parts.remove(any_range());
      if (parts.empty()) return;
      ByteRange const all{parts.ranges().front().begin, parts.ranges().back().end};
      return keep_or_forget(all, model_->mark(place, parts));
    }
    case 2: {
      auto const to = any_place();
      if (place == to) return;
      keep_or_forget({0, model_->size_bytes()}, model_->release(place, to));
      if (chance(2) && model_->has_storage(place)) model_->remove_storage(place);
      return;
    }
    case 3:
      return edit_and_look();
    default: {
      auto const intent = std::array{Intent::read, Intent::write, Intent::read_write}[below(3)];
      return keep_or_forget(range, model_->access(place, range, intent));
    }
  }
}

/// What users do and chance hardly ever would: both places have everything, a few small edits at one, a look from the
/// other.
void RandomOperations::edit_and_look() {
  ByteRange const whole{0, model_->size_bytes()};
  auto const here = any_place(), there = any_place();
  for (auto const place : {here, there}) keep_or_forget(whole, model_->access(place, whole, Intent::read));
  for (auto edits = 2 + below(3); edits > 0; --edits) {
    auto const range = any_range();
    if (range.size() < 5) keep_or_forget(range, model_->access(here, range, Intent::write));
  }
  keep_or_forget(whole, model_->access(there, whole, Intent::read));
}

void RandomOperations::keep_or_forget(ByteRange range, std::optional<ShadowModel::Started> started) {
  if (!started) return;
  // What builds on an operation that will fail must fail with it.
  bool const doomed =
      std::ranges::any_of(started_, [&](auto const& earlier) { return model_->overlaps(earlier, range); });
  if (doomed || chance(6)) started_.push_back(std::move(*started));
}

ByteRange RandomOperations::any_range() {
  auto const size = model_->size_bytes();
  if (chance(6)) return {0, size};
  auto begin = below(size + 1), end = chance(3) ? std::min(size, begin + 1 + below(4)) : below(size + 1);
  if (begin > end) std::swap(begin, end);
  return {begin, end};
}

ShadowModel::Tally RandomOperations::tally() const {
  auto all = finished_;
  if (model_) model_->count_in(all);
  return all;
}

}  // namespace unimem::testing
