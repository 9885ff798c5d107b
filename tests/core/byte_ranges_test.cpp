#include <unimem/core/byte_ranges.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bitset>
#include <optional>
#include <random>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace unimem {
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
  set.reserve(2);
  auto const* const before = set.ranges().data();
  set.remove({10, 20});
  set.add({200, 300});
  EXPECT_EQ(set.ranges().data(), before);
  EXPECT_THAT(set.ranges(), ElementsAre(ByteRange{0, 10}, ByteRange{20, 100}, ByteRange{200, 300}));
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

/// Random operations against the obvious model, one bit a byte.
class ByteRangesModel : public ::testing::TestWithParam<unsigned> {};

TEST_P(ByteRangesModel, AgreesWithOneBitPerByte) {
  constexpr std::size_t size = 96;
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  std::mt19937 random{GetParam()};
  ByteRanges set;
  std::bitset<size> model;

  for (int step = 0; step < 20'000; ++step) {
    auto begin = random() % (size + 1), end = random() % (size + 1);
    if (begin > end) std::swap(begin, end);
    ByteRange const range{begin, end};
    bool const adds = random() % 2 == 0;
    adds ? set.add(range) : set.remove(range);
    for (auto i = begin; i < end; ++i) model[i] = adds;

    set.validate();
    ASSERT_EQ(set.size_bytes(), model.count());
    std::bitset<size> missing;
    for (auto gap : set.missing({0, size}))
      for (auto i = gap.begin; i < gap.end; ++i) missing[i] = true;
    ASSERT_EQ(missing, ~model);
    bool all = true, any = false;
    for (auto i = begin; i < end; ++i) all &= model[i], any |= model[i];
    ASSERT_EQ(set.contains(range), all);
    ASSERT_EQ(set.intersects(range), any);
  }
}

TEST_P(ByteRangesModel, CombinesSetsAsOneBitPerByteDoes) {
  constexpr std::size_t size = 64;
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  std::mt19937 random{GetParam()};
  auto const bits_of = [](ByteRanges const& set) {
    std::bitset<size> bits;
    for (auto const range : set.ranges())
      for (auto i = range.begin; i < range.end; ++i) bits[i] = true;
    return bits;
  };
  auto const random_set = [&] {
    ByteRanges set;
    for (auto ranges = random() % 8; ranges > 0; --ranges) {
      auto const begin = random() % size;
      set.add({begin, begin + random() % std::min<std::size_t>(size - begin + 1, 12)});
    }
    return set;
  };

  for (int step = 0; step < 5'000; ++step) {
    auto const left = random_set(), right = random_set();
    auto united = left, reduced = left;
    united.add(right);
    reduced.remove(right);
    auto shared = left.intersection(right);
    for (auto const* set : {&united, &reduced, &shared}) set->validate();
    ASSERT_EQ(bits_of(united), bits_of(left) | bits_of(right));
    ASSERT_EQ(bits_of(reduced), bits_of(left) & ~bits_of(right));
    ASSERT_EQ(bits_of(shared), bits_of(left) & bits_of(right));
    ASSERT_EQ(left.intersects(right), !shared.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ByteRangesModel, ::testing::Values(1U, 2U, 3U, 2026U));

}  // namespace
}  // namespace unimem
