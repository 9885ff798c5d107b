#include <unimem/core/byte_ranges.hpp>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace unimem {

auto ByteRanges::ending_after(std::size_t offset) const noexcept -> Iterator {
  if (ranges_.empty() || ranges_.back().end <= offset) return ranges_.end();
  return std::ranges::partition_point(ranges_, [=](ByteRange r) { return r.end <= offset; });
}

void ByteRanges::add(ByteRange range) {
  if (range.empty()) return;
  if (ranges_.empty() || ranges_.back().end < range.begin) {  // as a set is made, from its beginning to its end
    ranges_.push_back(range);
    return;
  }
  // Touching counts as overlapping here, or two adjacent writes would cost two transfers for ever.
  auto const first = std::ranges::partition_point(ranges_, [=](ByteRange r) { return r.end < range.begin; });
  auto const last = std::partition_point(first, ranges_.end(), [=](ByteRange r) { return r.begin <= range.end; });
  if (first == last) {
    ranges_.insert(first, range);
    return;
  }
  *first = {std::min(first->begin, range.begin), std::max(std::prev(last)->end, range.end)};
  ranges_.erase(std::next(first), last);
}

void ByteRanges::remove(ByteRange range) {
  if (range.empty()) return;
  auto const first = ranges_.begin() + (ending_after(range.begin) - ranges_.cbegin());
  if (first == ranges_.end() || first->begin >= range.end) return;

  if (first->begin < range.begin && range.end < first->end) {
    // Cut through the middle. Insert before shrinking: the insertion may throw, the shrinking cannot.
    ByteRange const tail{range.end, first->end};
    auto const at = ranges_.insert(std::next(first), tail);
    std::prev(at)->end = range.begin;
    return;
  }
  auto last = std::partition_point(first, ranges_.end(), [=](ByteRange r) { return r.begin < range.end; });
  auto erase_from = first;
  if (first->begin < range.begin) {
    first->end = range.begin;
    ++erase_from;
  }
  if (erase_from != last && std::prev(last)->end > range.end) {
    --last;
    last->begin = range.end;
  }
  ranges_.erase(erase_from, last);
}

void ByteRanges::add(ByteRanges const& other) {
  std::vector<ByteRange> both;
  both.reserve(ranges_.size() + other.ranges_.size());
  std::ranges::merge(ranges_, other.ranges_, std::back_inserter(both), {}, &ByteRange::begin, &ByteRange::begin);
  std::size_t kept = 0;
  for (auto const range : both) {
    if (kept > 0 && range.begin <= both[kept - 1].end) {
      both[kept - 1].end = std::max(both[kept - 1].end, range.end);
    } else {
      both[kept++] = range;
    }
  }
  both.resize(kept);
  ranges_ = std::move(both);
}

void ByteRanges::remove(ByteRanges const& other) {
  std::vector<ByteRange> rest;
  for (auto const range : ranges_) {
    auto const left = other.missing(range);
    rest.insert(rest.end(), left.begin(), left.end());
  }
  ranges_ = std::move(rest);
}

void ByteRanges::reserve(std::size_t edits) {
  // An edit makes one range more at most. Doubling, because exact steps would copy the vector at every edit.
  auto const needed = ranges_.size() + edits;
  if (needed > ranges_.capacity()) ranges_.reserve(std::max(needed, 2 * ranges_.capacity()));
}

bool ByteRanges::contains(ByteRange range) const noexcept {
  if (range.empty()) return true;
  auto const it = ending_after(range.begin);
  return it != ranges_.end() && it->begin <= range.begin && range.end <= it->end;
}

bool ByteRanges::intersects(ByteRange range) const noexcept {
  if (range.empty()) return false;
  auto const it = ending_after(range.begin);
  return it != ranges_.end() && it->begin < range.end;
}

bool ByteRanges::intersects(ByteRanges const& other) const noexcept {
  if (ranges_.size() > other.ranges_.size()) return other.intersects(*this);
  return std::ranges::any_of(ranges_, [&](ByteRange r) { return other.intersects(r); });
}

ByteRanges ByteRanges::intersection(ByteRanges const& other) const {
  if (ranges_.size() > other.ranges_.size()) return other.intersection(*this);
  // What is found stays sorted and apart: a gap of one set or the other lies between any two pieces.
  ByteRanges shared;
  for (auto const range : ranges_)
    for (auto it = other.ending_after(range.begin); it != other.ranges_.end() && it->begin < range.end; ++it)
      shared.ranges_.push_back({std::max(it->begin, range.begin), std::min(it->end, range.end)});
  return shared;
}

std::optional<ByteRange> ByteRanges::find(std::size_t offset) const noexcept {
  auto const it = ending_after(offset);
  if (it == ranges_.end()) return {};
  return *it;
}

std::vector<ByteRange> ByteRanges::missing(ByteRange range) const {
  std::vector<ByteRange> gaps;
  auto here = range.begin;
  for (auto it = ending_after(range.begin); here < range.end && it != ranges_.end() && it->begin < range.end; ++it) {
    if (here < it->begin) gaps.push_back({here, it->begin});
    here = it->end;
  }
  if (here < range.end) gaps.push_back({here, range.end});
  return gaps;
}

std::size_t ByteRanges::size_bytes() const noexcept {
  return std::transform_reduce(ranges_.begin(), ranges_.end(), std::size_t{0}, std::plus{},
                               [](ByteRange r) { return r.size(); });
}

void ByteRanges::validate() const {
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    if (ranges_[i].begin >= ranges_[i].end) throw std::logic_error("ByteRanges: empty or inverted range");
    if (i > 0 && ranges_[i - 1].end >= ranges_[i].begin)
      throw std::logic_error("ByteRanges: ranges overlap, touch or are unsorted");
  }
}

}  // namespace unimem
