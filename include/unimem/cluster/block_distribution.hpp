#pragma once

#include <algorithm>
#include <cstddef>

namespace unimem::mpi {

/// Elements of a distributed array, `[begin, end)`, counted from the array's first.
struct IndexRange {
  std::size_t begin = 0;
  std::size_t end = 0;

  [[nodiscard]] constexpr std::size_t size() const noexcept { return end - begin; }
  [[nodiscard]] constexpr bool empty() const noexcept { return begin == end; }
  [[nodiscard]] constexpr bool contains(IndexRange other) const noexcept {
    return begin <= other.begin && other.end <= end;
  }
  /// What is in both; empty where nothing is.
  [[nodiscard]] constexpr IndexRange common(IndexRange other) const noexcept {
    auto const first = std::max(begin, other.begin);
    return {first, std::max(first, std::min(end, other.end))};
  }

  friend constexpr bool operator==(IndexRange, IndexRange) = default;
};

namespace detail {

/// Which rank has which elements: blocks in the order of the ranks, of which the first ones have one element more where
/// they do not come out even; and how far each sees beyond its own. Every rank computes the same.
class BlockDistribution {
 public:
  BlockDistribution(std::size_t count, int ranks, std::size_t halo) noexcept
      : count_(count), ranks_(static_cast<std::size_t>(ranks)), halo_(halo) {}

  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] int ranks() const noexcept { return static_cast<int>(ranks_); }

  [[nodiscard]] IndexRange own(int rank) const noexcept {
    auto const number = static_cast<std::size_t>(rank);
    return {begin_of(number), begin_of(number + 1)};
  }
  /// What a rank may read: its own, and so many elements on either side as the halo has, as far as there are any. A
  /// rank without elements has no sides.
  [[nodiscard]] IndexRange reach(int rank) const noexcept {
    auto const mine = own(rank);
    if (mine.empty()) return mine;
    return {mine.begin - std::min(halo_, mine.begin), mine.end + std::min(halo_, count_ - mine.end)};
  }
  /// Of a rank's own elements, the first ones that ranks before it may read, and the last ones that ranks behind it
  /// may. Where the two meet, the first are all of them.
  struct Edges {
    IndexRange first;
    IndexRange last;

    [[nodiscard]] std::size_t size() const noexcept { return first.size() + last.size(); }
    /// Where an element of them is in memory that holds the first ones, and then the last ones.
    [[nodiscard]] std::size_t offset_of(std::size_t index) const noexcept {
      return index < first.end ? index - first.begin : first.size() + (index - last.begin);
    }
  };
  [[nodiscard]] Edges edges(int rank) const noexcept {
    auto const mine = own(rank);
    auto const most = std::min(halo_, mine.size());
    IndexRange first{mine.begin, mine.begin == 0 ? 0 : mine.begin + most};
    IndexRange last{mine.end == count_ ? count_ : mine.end - most, mine.end};
    if (first.end >= last.begin && !first.empty() && !last.empty()) return {mine, {mine.end, mine.end}};
    return {first, last};
  }

 private:
  [[nodiscard]] std::size_t begin_of(std::size_t rank) const noexcept {
    return rank * (count_ / ranks_) + std::min(rank, count_ % ranks_);
  }

  std::size_t count_;
  std::size_t ranks_;
  std::size_t halo_;
};

}  // namespace detail

}  // namespace unimem::mpi
