#pragma once

#include <unimem/core/export.hpp>

#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace unimem {

/// A half-open interval of bytes, `[begin, end)`. Empty when `begin == end`; never inverted.
struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;

  [[nodiscard]] constexpr std::size_t size() const noexcept { return end - begin; }
  [[nodiscard]] constexpr bool empty() const noexcept { return begin == end; }
  [[nodiscard]] constexpr bool contains(ByteRange other) const noexcept {
    return begin <= other.begin && other.end <= end;
  }
  /// Whether the two have a byte in common.
  [[nodiscard]] constexpr bool meets(ByteRange other) const noexcept {
    return begin < other.end && other.begin < end && !empty() && !other.empty();
  }

  friend constexpr bool operator==(ByteRange, ByteRange) = default;
};

/// A set of bytes, kept as sorted ranges that neither overlap nor touch.
///
/// Coherence asks two questions of it all day: "is all of this here?" and "what of this is missing?". A buffer's set is
/// nearly always empty, whole, or a handful of edits: one range lies in the set itself, several in a sorted vector. So
/// a whole-buffer answer costs one comparison, an edit a binary search. A tree would win only beyond thousands of
/// ranges, and by then the transfer plan has merged them.
///
/// Not thread-safe; its owner locks. Every mutation has the strong exception guarantee.
class UNIMEM_API ByteRanges {
 public:
  ByteRanges() = default;

  /// The set holding exactly `range`.
  explicit ByteRanges(ByteRange range) { add(range); }

  /// Adds every byte of `range`, merging with what it overlaps or touches. O(log n + ranges merged).
  void add(ByteRange range);

  /// Removes every byte of `range`, splitting a range it cuts through. O(log n + ranges touched).
  void remove(ByteRange range);

  /// Adds every byte of `other`. O(n + m).
  void add(ByteRanges const& other);

  /// Removes every byte of `other`. O(n log m + ranges left).
  void remove(ByteRanges const& other);

  void clear() noexcept {
    only_ = {};
    several_.clear();
  }

  /// Makes room, so that the next `edits` additions or removals of a single range cannot throw.
  void reserve(std::size_t edits);

  /// Whether every byte of `range` is in the set; true for an empty range. O(log n).
  [[nodiscard]] bool contains(ByteRange range) const noexcept {
    if (several_.empty()) return only_.contains(range) || range.empty();
    return one_contains(range);
  }

  /// Whether any byte of `range` is in the set. O(log n).
  [[nodiscard]] bool intersects(ByteRange range) const noexcept {
    if (several_.empty()) return only_.meets(range);
    return one_intersects(range);
  }

  /// Whether the two sets have a byte in common. O(n log m), n being the shorter.
  [[nodiscard]] bool intersects(ByteRanges const& other) const noexcept;

  /// The bytes that are in both sets. O(n log m + ranges found), n being the shorter.
  [[nodiscard]] ByteRanges intersection(ByteRanges const& other) const;

  /// The range that holds the byte at `offset`, or else the next one after it. O(log n).
  [[nodiscard]] std::optional<ByteRange> find(std::size_t offset) const noexcept {
    if (!several_.empty()) return one_found(offset);
    return offset < only_.end ? std::optional{only_} : std::nullopt;
  }

  /// The bytes of `range` that are not in the set, in order: what a reader still has to fetch.
  [[nodiscard]] std::vector<ByteRange> missing(ByteRange range) const;

  /// The number of bytes in the set. O(n).
  [[nodiscard]] std::size_t size_bytes() const noexcept;

  [[nodiscard]] bool empty() const noexcept { return several_.empty() && only_.empty(); }

  /// The ranges in ascending order. Valid until the next mutation.
  [[nodiscard]] std::span<const ByteRange> ranges() const& noexcept {
    if (several_.empty()) return {&only_, only_.empty() ? 0U : 1U};
    return several_;
  }
  /// Of a temporary set, the ranges themselves: `for (auto range : made().ranges())` looks at what is there.
  [[nodiscard]] std::vector<ByteRange> ranges() && {
    if (!only_.empty()) several_.push_back(only_);
    return std::move(several_);
  }

  /// Throws std::logic_error unless the ranges are sorted, non-empty and apart. For tests and debug builds.
  void validate() const;

  friend bool operator==(ByteRanges const&, ByteRanges const&) = default;

 private:
  /// Of one range, which `range` does not touch, and of several.
  void add_apart(ByteRange range);
  void add_to_several(ByteRange range);
  [[nodiscard]] bool one_contains(ByteRange range) const noexcept;
  [[nodiscard]] bool one_intersects(ByteRange range) const noexcept;
  [[nodiscard]] std::optional<ByteRange> one_found(std::size_t offset) const noexcept;
  /// Of several there may be one or none left.
  void settle() noexcept;

  ByteRange only_{};                ///< if there is one; else empty, at 0
  std::vector<ByteRange> several_;  ///< if there are more, all of them
};

}  // namespace unimem
