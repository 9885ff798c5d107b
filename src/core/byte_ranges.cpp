#include <unimem/core/byte_ranges.hpp>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace unimem {
namespace {

/// The first range that ends after `offset`: the only one that can hold it.
template <class Ranges>
auto ending_after(Ranges& ranges, std::size_t offset) noexcept {
  if (ranges.empty() || ranges.back().end <= offset) return ranges.end();
  return std::ranges::partition_point(ranges, [=](ByteRange r) { return r.end <= offset; });
}

}  // namespace

void ByteRanges::settle() noexcept {
  if (several_.size() > 1) return;
  if (!several_.empty()) only_ = several_.front();
  several_.clear();
}

void ByteRanges::add(ByteRange range) {
  if (range.empty()) return;
  if (!several_.empty()) return add_to_several(range);
  // Touching counts as overlapping here, or two adjacent writes would cost two transfers for ever.
  if (only_.empty()) {
    only_ = range;
  } else if (range.begin <= only_.end && only_.begin <= range.end) {
    only_ = {std::min(only_.begin, range.begin), std::max(only_.end, range.end)};
  } else {
    add_apart(range);
  }
}

void ByteRanges::add_apart(ByteRange range) {
  several_.reserve(2);
  several_ = {only_, range};
  if (range.begin < only_.begin) std::swap(several_[0], several_[1]);
  only_ = {};
}

void ByteRanges::add_to_several(ByteRange range) {
  if (several_.back().end < range.begin) {  // as a set is made, from its beginning to its end
    several_.push_back(range);
    return;
  }
  auto const first = std::ranges::partition_point(several_, [=](ByteRange r) { return r.end < range.begin; });
  auto const last = std::partition_point(first, several_.end(), [=](ByteRange r) { return r.begin <= range.end; });
  if (first == last) {
    several_.insert(first, range);
    return;
  }
  *first = {std::min(first->begin, range.begin), std::max(std::prev(last)->end, range.end)};
  several_.erase(std::next(first), last);
  settle();
}

void ByteRanges::remove(ByteRange range) {
  if (range.empty() || !intersects(range)) return;
  if (several_.empty()) {
    ByteRange const head{only_.begin, std::max(only_.begin, range.begin)},
        tail{std::min(only_.end, range.end), only_.end};
    if (!head.empty() && !tail.empty()) {
      several_.reserve(2);
      several_ = {head, tail};
      only_ = {};
    } else {
      only_ = !head.empty() ? head : !tail.empty() ? tail : ByteRange{};
    }
    return;
  }
  auto const first = ending_after(several_, range.begin);
  if (first->begin < range.begin && range.end < first->end) {
    // Cut through the middle. Insert before shrinking: the insertion may throw, the shrinking cannot.
    ByteRange const tail{range.end, first->end};
    auto const at = several_.insert(std::next(first), tail);
    std::prev(at)->end = range.begin;
    return;
  }
  auto last = std::partition_point(first, several_.end(), [=](ByteRange r) { return r.begin < range.end; });
  auto erase_from = first;
  if (first->begin < range.begin) {
    first->end = range.begin;
    ++erase_from;
  }
  if (erase_from != last && std::prev(last)->end > range.end) {
    --last;
    last->begin = range.end;
  }
  several_.erase(erase_from, last);
  settle();
}

void ByteRanges::add(ByteRanges const& other) {
  if (other.several_.empty()) return add(other.only_);
  std::vector<ByteRange> both;
  auto const mine = ranges();
  both.reserve(mine.size() + other.several_.size());
  std::ranges::merge(mine, other.several_, std::back_inserter(both), {}, &ByteRange::begin, &ByteRange::begin);
  std::size_t kept = 0;
  for (auto const range : both) {
    if (kept > 0 && range.begin <= both[kept - 1].end) {
      both[kept - 1].end = std::max(both[kept - 1].end, range.end);
    } else {
      both[kept++] = range;
    }
  }
  both.resize(kept);
  only_ = {};
  several_ = std::move(both);
  settle();
}

void ByteRanges::remove(ByteRanges const& other) {
  if (other.several_.empty()) return remove(other.only_);
  std::vector<ByteRange> rest;
  for (auto const range : ranges()) {
    auto const left = other.missing(range);
    rest.insert(rest.end(), left.begin(), left.end());
  }
  only_ = {};
  several_ = std::move(rest);
  settle();
}

void ByteRanges::reserve(std::size_t edits) {
  // An edit makes one range more at most. Doubling, because exact steps would copy the vector at every edit.
  auto const needed = ranges().size() + edits;
  if (needed > std::max<std::size_t>(1, several_.capacity())) {
    several_.reserve(std::max(needed, 2 * several_.capacity()));
  }
}

bool ByteRanges::one_contains(ByteRange range) const noexcept {
  if (range.empty()) return true;
  auto const it = ending_after(several_, range.begin);
  return it != several_.end() && it->begin <= range.begin && range.end <= it->end;
}

bool ByteRanges::one_intersects(ByteRange range) const noexcept {
  if (range.empty()) return false;
  auto const it = ending_after(several_, range.begin);
  return it != several_.end() && it->begin < range.end;
}

bool ByteRanges::intersects(ByteRanges const& other) const noexcept {
  if (several_.size() > other.several_.size()) return other.intersects(*this);
  return std::ranges::any_of(ranges(), [&](ByteRange r) { return other.intersects(r); });
}

ByteRanges ByteRanges::intersection(ByteRanges const& other) const {
  if (several_.size() > other.several_.size()) return other.intersection(*this);
  // What is found stays sorted and apart: a gap of one set or the other lies between any two pieces.
  ByteRanges shared;
  auto const theirs = other.ranges();
  for (auto const range : ranges()) {
    for (auto it = ending_after(theirs, range.begin); it != theirs.end() && it->begin < range.end; ++it)
      shared.add({std::max(it->begin, range.begin), std::min(it->end, range.end)});
  }
  return shared;
}

std::optional<ByteRange> ByteRanges::one_found(std::size_t offset) const noexcept {
  auto const it = ending_after(several_, offset);
  if (it == several_.end()) return {};
  return *it;
}

std::vector<ByteRange> ByteRanges::missing(ByteRange range) const {
  std::vector<ByteRange> gaps;
  auto here = range.begin;
  auto const all = ranges();
  for (auto it = ending_after(all, range.begin); here < range.end && it != all.end() && it->begin < range.end; ++it) {
    if (here < it->begin) gaps.push_back({here, it->begin});
    here = it->end;
  }
  if (here < range.end) gaps.push_back({here, range.end});
  return gaps;
}

std::size_t ByteRanges::size_bytes() const noexcept {
  auto const all = ranges();
  return std::transform_reduce(all.begin(), all.end(), std::size_t{0}, std::plus{},
                               [](ByteRange r) { return r.size(); });
}

void ByteRanges::validate() const {
  auto const all = ranges();
  if (only_.begin > only_.end || several_.size() == 1) throw std::logic_error("ByteRanges: one range out of its place");
  if (!only_.empty() && !several_.empty()) throw std::logic_error("ByteRanges: one range beside several");
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].begin >= all[i].end) throw std::logic_error("ByteRanges: empty or inverted range");
    if (i > 0 && all[i - 1].end >= all[i].begin)
      throw std::logic_error("ByteRanges: ranges overlap, touch or are unsorted");
  }
}

}  // namespace unimem
