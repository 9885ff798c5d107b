#include <unimem/core/byte_ranges.hpp>

#include "random_cases.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <bitset>
#include <optional>
#include <ostream>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace unimem {

static std::ostream& operator<<(std::ostream& out, ByteRange range) {
  return out << '[' << range.begin << ", " << range.end << ')';
}

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ByteRanges, MergesWhatTouches) {
  ByteRanges set;
  set.add({0, 10});
  set.add({20, 30});
  EXPECT_THAT(set.ranges(), ElementsAre(ByteRange{0, 10}, ByteRange{20, 30}));
  set.add({10, 20});
  EXPECT_THAT(set.ranges(), ElementsAre(ByteRange{0, 30}));
}

TEST(ByteRanges, RemovingTheMiddleLeavesBothEnds) {
  ByteRanges set{{0, 100}};
  set.remove({40, 60});
  EXPECT_THAT(set.ranges(), ElementsAre(ByteRange{0, 40}, ByteRange{60, 100}));
}

TEST(ByteRanges, MissingIsExactlyWhatAReaderMustFetch) {
  ByteRanges set{{10, 20}};
  set.add({30, 40});
  EXPECT_THAT(set.missing({0, 50}), ElementsAre(ByteRange{0, 10}, ByteRange{20, 30}, ByteRange{40, 50}));
  EXPECT_THAT(set.missing({12, 18}), IsEmpty());
  EXPECT_THAT(set.missing({15, 35}), ElementsAre(ByteRange{20, 30}));
}

TEST(ByteRanges, AnEmptyRangeIsContainedAndChangesNothing) {
  ByteRanges set{{5, 6}};
  set.add({3, 3});
  set.remove({5, 5});
  EXPECT_TRUE(set.contains({100, 100}));
  EXPECT_FALSE(set.intersects({5, 5}));
  EXPECT_THAT(set.ranges(), ElementsAre(ByteRange{5, 6}));
}

TEST(ByteRanges, SetsAreUnitedSubtractedAndIntersected) {
  ByteRanges left{{0, 10}};
  left.add({20, 30});
  ByteRanges right{{5, 20}};
  right.add({25, 27});

  EXPECT_TRUE(left.intersects(right));
  EXPECT_THAT(left.intersection(right).ranges(), ElementsAre(ByteRange{5, 10}, ByteRange{25, 27}));
  EXPECT_EQ(left.intersection(right), right.intersection(left));

  ByteRanges difference = left;
  difference.remove(right);
  EXPECT_THAT(difference.ranges(), ElementsAre(ByteRange{0, 5}, ByteRange{20, 25}, ByteRange{27, 30}));
  EXPECT_FALSE(difference.intersects(right));

  ByteRanges both = left;
  both.add(right);
  EXPECT_THAT(both.ranges(), ElementsAre(ByteRange{0, 30}));
}

TEST(ByteRanges, FindsTheRangeAtOrAfterAByte) {
  ByteRanges set{{10, 20}};
  set.add({30, 40});
  EXPECT_EQ(set.find(0), (ByteRange{10, 20}));
  EXPECT_EQ(set.find(19), (ByteRange{10, 20}));
  EXPECT_EQ(set.find(20), (ByteRange{30, 40}));
  EXPECT_EQ(set.find(40), std::nullopt);
}

TEST(ByteRanges, ReservedEditsDoNotMoveTheRanges) {
  ByteRanges set{{0, 100}};
  set.add({400, 500});
  set.reserve(2);
  auto const* const before = set.ranges().data();
  set.remove({10, 20});
  set.add({200, 300});
  EXPECT_EQ(set.ranges().data(), before);
  EXPECT_THAT(set.ranges(),
              ElementsAre(ByteRange{0, 10}, ByteRange{20, 100}, ByteRange{200, 300}, ByteRange{400, 500}));
}

// A view of a set that is gone by the time it is looked at cannot be had.
static_assert(std::is_same_v<decltype(std::declval<ByteRanges const&>().ranges()), std::span<const ByteRange>>);
static_assert(std::is_same_v<decltype(std::declval<ByteRanges>().ranges()), std::vector<ByteRange>>);

TEST(ByteRanges, OfATemporaryGiveTheirRangesAway) {
  auto const made = [] {
    ByteRanges set{{0, 10}};
    set.add({20, 30});
    return set;
  };
  std::vector<ByteRange> seen;
  for (auto const range : made().ranges()) seen.push_back(range);
  EXPECT_THAT(seen, ElementsAre(ByteRange{0, 10}, ByteRange{20, 30}));
}

// Random operations against the obvious model, one bit a byte.

rc::Gen<std::size_t> below(std::size_t limit) {
  return rc::gen::resize(rc::kNominalSize, rc::gen::inRange<std::size_t>(0, limit));
}

template <std::size_t size>
std::bitset<size> bits_of(std::span<ByteRange const> ranges) {
  std::bitset<size> bits;
  for (auto const range : ranges)
    for (auto i = range.begin; i < range.end; ++i) bits[i] = true;
  return bits;
}

TEST(ByteRangesModel, AgreesWithOneBitPerByte) {
  constexpr std::size_t size = 96;
  auto const from_to = [](auto one, auto other) { return ByteRange{std::min(one, other), std::max(one, other)}; };
  auto const any_range = rc::gen::apply(from_to, below(size + 1), below(size + 1));
  auto const edits = rc::gen::resize(200, rc::gen::container<std::vector<std::pair<bool, ByteRange>>>(
                                              rc::gen::pair(rc::gen::arbitrary<bool>(), any_range)));
  testing::expect_in_random_cases(800, [&] {
    ByteRanges set;
    std::bitset<size> model;
    for (auto const& [adds, range] : *edits) {
      auto const bits = bits_of<size>(ByteRanges{range}.ranges());
      adds ? set.add(range) : set.remove(range);
      model = adds ? model | bits : model & ~bits;

      set.validate();
      RC_ASSERT(set.size_bytes() == model.count());
      RC_ASSERT(bits_of<size>(set.missing({0, size})) == ~model);
      RC_ASSERT(set.contains(range) == (bits & ~model).none());
      RC_ASSERT(set.intersects(range) == (bits & model).any());
    }
  });
}

TEST(ByteRangesModel, CombinesSetsAsOneBitPerByteDoes) {
  constexpr std::size_t size = 64;
  auto const few_from = [=](auto begin, auto count) { return ByteRange{begin, std::min(size, begin + count)}; };
  auto const any_range = rc::gen::apply(few_from, below(size), below(12));
  auto const few = rc::gen::resize(7, rc::gen::container<std::vector<ByteRange>>(any_range));
  auto const set_of = [](std::vector<ByteRange> const& ranges) {
    ByteRanges set;
    for (auto const range : ranges) set.add(range);
    return set;
  };
  testing::expect_in_random_cases(20'000, [&] {
    auto const left = set_of(*few), right = set_of(*few);
    auto united = left, reduced = left;
    united.add(right);
    reduced.remove(right);
    auto shared = left.intersection(right);
    for (auto const* set : {&united, &reduced, &shared}) set->validate();
    auto const in_left = bits_of<size>(left.ranges()), in_right = bits_of<size>(right.ranges());
    RC_ASSERT(bits_of<size>(united.ranges()) == (in_left | in_right));
    RC_ASSERT(bits_of<size>(reduced.ranges()) == (in_left & ~in_right));
    RC_ASSERT(bits_of<size>(shared.ranges()) == (in_left & in_right));
    RC_ASSERT(left.intersects(right) == !shared.empty());
  });
}

}  // namespace
}  // namespace unimem
