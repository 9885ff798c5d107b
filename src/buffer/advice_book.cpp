#include "buffer/advice_book.hpp"

#include <algorithm>

namespace unimem::detail {

ByteRanges const* AdviceBook::find(Advice advice, Device const* place) const noexcept {
  auto const found = std::ranges::find_if(
      entries_, [&](Entry const& entry) { return entry.advice == advice && entry.place == place; });
  return found == entries_.end() ? nullptr : &found->ranges;
}

void AdviceBook::give(AdvisedRange const& advised) {
  if (advised.range.empty()) return;
  for (auto& entry : entries_) {
    bool const other_place = entry.advice == advised.advice && entry.place != advised.place;
    if (other_place && entry.advice == Advice::preferred_location) entry.ranges.remove(advised.range);
  }
  std::erase_if(entries_, [](Entry const& entry) { return entry.ranges.empty(); });
  auto const known = std::ranges::find_if(
      entries_, [&](Entry const& entry) { return entry.advice == advised.advice && entry.place == advised.place; });
  if (known != entries_.end()) {
    known->ranges.add(advised.range);
  } else {
    entries_.push_back({advised.advice, advised.place, ByteRanges{advised.range}});
  }
}

void AdviceBook::take_back(AdvisedRange const& advised) {
  for (auto& entry : entries_) {
    if (entry.advice == advised.advice && entry.place == advised.place) entry.ranges.remove(advised.range);
  }
  std::erase_if(entries_, [](Entry const& entry) { return entry.ranges.empty(); });
}

void AdviceBook::resize(std::size_t from, std::size_t to) {
  for (auto& entry : entries_) {
    bool const of_all = entry.ranges.contains({0, from});
    if (to < from) entry.ranges.remove({to, from});
    if (of_all && to > from) entry.ranges.add({from, to});
  }
  std::erase_if(entries_, [](Entry const& entry) { return entry.ranges.empty(); });
}

std::vector<AdvisedRange> AdviceBook::list() const {
  return beyond({});
}

std::vector<AdvisedRange> AdviceBook::beyond(AdviceBook const& other) const {
  std::vector<AdvisedRange> result;
  for (auto const& [advice, place, ranges] : entries_) {
    auto rest = ranges;
    if (auto const* const there = other.find(advice, place)) rest.remove(*there);
    for (auto const range : rest.ranges()) result.push_back({advice, place, range});
  }
  return result;
}

}  // namespace unimem::detail
