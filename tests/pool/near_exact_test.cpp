#include "pool/near_exact.hpp"

#include <unimem/pool/statistics.hpp>

#include "core/sizes.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <random>
#include <set>

namespace unimem {
namespace {

using detail::block_capacity;
using detail::largest_fit;

constexpr std::size_t most = std::numeric_limits<std::size_t>::max();

TEST(NearExact, CapacityGrowsWithTheRequest) {
  std::size_t previous = 0;
  for (std::size_t bytes = 1; bytes <= 8 * MiB; ++bytes) {
    auto const capacity = block_capacity(bytes);
    ASSERT_GE(capacity, bytes);
    ASSERT_GE(capacity, previous) << "at " << bytes;
    previous = capacity;
  }
}

TEST(NearExact, AtMostASixteenthIsAdded) {
  for (std::size_t bytes = detail::smallest_block; bytes <= 2 * MiB; ++bytes) {
    ASSERT_LE(block_capacity(bytes) - bytes, bytes / 16) << "at " << bytes;
  }
}

TEST(NearExact, ACapacityIsItsOwnClass) {
  for (std::size_t bytes = 1; bytes <= 2 * MiB; bytes += 7) {
    ASSERT_EQ(block_capacity(block_capacity(bytes)), block_capacity(bytes));
  }
}

TEST(NearExact, SixteenClassesPerDoubling) {
  for (std::size_t from = 512; from < detail::exact_from; from *= 2) {
    std::set<std::size_t> classes;
    for (std::size_t bytes = from + 1; bytes <= 2 * from; ++bytes) classes.insert(block_capacity(bytes));
    EXPECT_EQ(classes.size(), 16U) << "above " << from;
    EXPECT_EQ(*classes.rbegin(), 2 * from) << "powers of two are classes";
  }
}

TEST(NearExact, LargeBlocksAreExactlyWhatIsNeeded) {
  for (auto const bytes : {detail::exact_from, detail::exact_from + 1, 61 * MiB + 3, most / 2, most - 1, most}) {
    EXPECT_EQ(block_capacity(bytes), bytes);
  }
}

TEST(NearExact, AFitNeverWraps) {
  EXPECT_EQ(largest_fit(1), 1 + 4 * KiB);
  EXPECT_EQ(largest_fit(32 * KiB), 36 * KiB);
  EXPECT_EQ(largest_fit(64 * MiB), 72 * MiB);
  EXPECT_EQ(largest_fit(most), most);
  EXPECT_EQ(largest_fit(most - 4096), most);
}

TEST(NearExact, ABlockOfItsOwnClassAlwaysFits) {
  std::mt19937_64 random{7};
  for (int i = 0; i < 100'000; ++i) {
    auto const bytes = 1 + (random() >> (random() % 63 + 1));
    ASSERT_LE(block_capacity(bytes), largest_fit(bytes)) << "at " << bytes;
  }
}

TEST(SizeClass, FollowsTheDocumentedTable) {
  EXPECT_EQ(size_class(0), 0U);
  EXPECT_EQ(size_class(1), 0U);
  EXPECT_EQ(size_class(4 * KiB), 0U);
  EXPECT_EQ(size_class(4 * KiB + 1), 1U);
  EXPECT_EQ(size_class(8 * KiB), 1U);
  EXPECT_EQ(size_class(MiB), 8U);
  EXPECT_EQ(size_class(2048 * MiB), 19U);
  EXPECT_EQ(size_class(2048 * MiB + 1), 20U);
  EXPECT_EQ(size_class(4096 * MiB), 20U);
  EXPECT_EQ(size_class(4096 * MiB + 1), 20U);
  EXPECT_EQ(size_class(most), 20U);
}

TEST(SizeClass, EachLimitIsItsClassesLastSize) {
  for (std::size_t index = 0; index + 1 < size_class_count; ++index) {
    EXPECT_EQ(size_class(size_class_limit(index)), index);
    EXPECT_EQ(size_class(size_class_limit(index) + 1), index + 1);
  }
  EXPECT_EQ(size_class_limit(size_class_count - 1), most);
}

TEST(SizeClass, NeverFallsAsSizesGrow) {
  std::size_t previous = 0;
  for (std::size_t bytes = 0; bytes <= 2 * MiB; ++bytes) {
    ASSERT_GE(size_class(bytes), previous);
    previous = size_class(bytes);
  }
}

TEST(PoolStatistics, TheDocumentedExampleHitsNinetyPercent) {
  PoolStatistics statistics;
  statistics.pool_hits = 9471;
  statistics.pool_misses = 1052;
  statistics.total_allocations = 10523;
  EXPECT_NEAR(statistics.hit_rate() * 100, 90.0, 0.05);
  EXPECT_EQ(PoolStatistics{}.hit_rate(), 0.0);
}

TEST(PoolFragmentation, IsWhatTheLargestBlockLacks) {
  EXPECT_DOUBLE_EQ((PoolFragmentation{25, 100}.fragmentation_ratio()), 0.75);
  EXPECT_EQ((PoolFragmentation{100, 100}.fragmentation_ratio()), 0.0);
  EXPECT_EQ(PoolFragmentation{}.fragmentation_ratio(), 0.0);
}

}  // namespace
}  // namespace unimem
