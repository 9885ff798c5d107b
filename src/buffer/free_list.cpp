#include "buffer/free_list.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

namespace unimem::detail {

std::size_t BufferKindHash::operator()(BufferKind const& kind) const noexcept {
  constexpr std::size_t spread = 0x9E3779B97F4A7C15U;
  auto hash = std::hash<Name>{}(kind.element) + static_cast<std::size_t>(kind.pinned);
  for (auto const extent : kind.shape.extents()) hash = (hash ^ extent) * spread;
  return hash ^ hash >> 32;
}

FreeList::Kept const* FreeList::find(BufferKind const& kind) const noexcept {
  auto const found = by_kind_.find(kind);
  return found == by_kind_.end() || found->second.places.empty() ? nullptr : &*found->second.places.back();
}

void FreeList::take(Kept const& found, Buffers& to) noexcept {
  remove(found.bin_->places.back(), to);
}

bool FreeList::admits(BufferPoolLimits const& limits, BufferKind const& kind) noexcept {
  return kind.bytes <= std::min(limits.max_buffer_bytes, limits.max_bytes) && limits.max_buffers != 0 &&
         limits.max_buffers_per_class != 0;
}

FreeList::Bin& FreeList::bin_for(Kept& one) {
  if (one.bin_ == nullptr || one.times_forgot_ != times_forgot_) {
    auto const [at, is_new] = by_kind_.try_emplace(one.kind);
    if (is_new) ++empty_kinds_;
    one.bin_ = &at->second;
  }
  return *one.bin_;
}

void FreeList::put(Buffers& one) {
  auto const place = one.begin();
  auto& places = bin_for(*place).places;
  places.push_back(place);
  if (places.size() == 1) --empty_kinds_;
  by_age_.splice(by_age_.end(), one);
  bytes_ += place->kind.bytes;
  ++in_class_[size_class(place->kind.bytes)];
}

void FreeList::make_room(BufferPoolLimits const& limits, BufferKind const& kind, Buffers& to) noexcept {
  evict_until([&] { return count() < limits.max_buffers && bytes_ <= limits.max_bytes - kind.bytes; }, to);
  evict_of_class(size_class(kind.bytes), limits.max_buffers_per_class - 1, to);
}

void FreeList::shrink_to(BufferPoolLimits const& limits, Buffers& to) noexcept {
  for (auto it = by_age_.begin(); it != by_age_.end();) {
    auto const place = it++;
    if (!admits(limits, place->kind)) evict(place, to);
  }
  evict_until([&] { return count() <= limits.max_buffers && bytes_ <= limits.max_bytes; }, to);
  for (std::size_t i = 0; i < size_class_count; ++i) evict_of_class(i, limits.max_buffers_per_class, to);
}

void FreeList::set_ages(Time time) noexcept {
  for (auto& kept : by_age_) kept.since = time;
}

void FreeList::evict_older_than(Time time, Buffers& to) noexcept {
  evict_until([&] { return by_age_.front().since >= time; }, to);
}

void FreeList::evict(Place place, Buffers& to) noexcept {
  ++evicted_;
  remove(place, to);
}

void FreeList::remove(Place place, Buffers& to) noexcept {
  // Its kind's oldest or newest, as a rule.
  auto& places = place->bin_->places;
  place->times_forgot_ = times_forgot_;
  places.erase(places.back() == place ? std::prev(places.end()) : std::ranges::find(places, place));
  if (places.empty()) ++empty_kinds_;
  if (empty_kinds_ > 16 + by_kind_.size() / 2) forget_empty_kinds();
  bytes_ -= place->kind.bytes;
  --in_class_[size_class(place->kind.bytes)];
  to.splice(to.end(), by_age_, place);
}

void FreeList::forget_empty_kinds() noexcept {
  std::erase_if(by_kind_, [](auto const& one) { return one.second.places.empty(); });
  empty_kinds_ = 0;
  ++times_forgot_;
}

template <class Enough>
void FreeList::evict_until(Enough enough, Buffers& to) noexcept {
  while (!by_age_.empty() && !enough()) evict_oldest(to);
}

void FreeList::evict_of_class(std::size_t index, std::size_t most, Buffers& to) noexcept {
  for (auto it = by_age_.begin(); it != by_age_.end() && in_class_[index] > most;) {
    auto const place = it++;
    if (size_class(place->kind.bytes) == index) evict(place, to);
  }
}

void FreeList::validate() const {
  auto const require = [](bool holds, char const* broken) {
    if (!holds) throw std::logic_error(std::string("FreeList: ") + broken);
  };
  std::size_t bytes = 0, indexed = 0;
  std::array<std::size_t, size_class_count> in_class{};
  for (auto const& kept : by_age_) {
    bytes += kept.kind.bytes;
    ++in_class[size_class(kept.kind.bytes)];
    auto const at = by_kind_.find(kept.kind);
    require(at != by_kind_.end(), "a buffer's kind is not known");
    require(std::ranges::count_if(at->second.places, [&](Place place) { return &*place == &kept; }) == 1,
            "a buffer is not once among those of its kind");
    require(kept.bin_ == &at->second, "a buffer's kind is another one's");
    require(kept.core.use_count() == 1, "a kept buffer is in somebody's hands");
  }
  std::size_t empty = 0;
  for (auto const& [kind, bin] : by_kind_) {
    indexed += bin.places.size();
    empty += bin.places.empty() ? 1 : 0;
  }
  require(empty == empty_kinds_, "the kinds without buffers do not add up");
  require(indexed == count(), "the kinds do not add up");
  require(bytes == bytes_, "the bytes do not add up");
  require(in_class == in_class_, "the classes do not add up");
}

}  // namespace unimem::detail
