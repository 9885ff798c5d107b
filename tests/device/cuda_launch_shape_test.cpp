#include "device/cuda/launch_shape.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>

namespace unimem::detail::cuda {
namespace {

constexpr Occupancy big_gpu{1024, 264};

using Shape = LaunchShape;

TEST(PortableShape, ARowIsCoveredByRowBlocks) {
  EXPECT_EQ(portable_shape({1'000'000}, big_gpu), (Shape{{977, 1, 1}, {1024, 1, 1}, 0}));
  EXPECT_EQ(portable_shape({1}, big_gpu), (Shape{{1, 1, 1}, {64, 1, 1}, 0}));
}

TEST(PortableShape, AShortRowIsSpreadOverAllMultiprocessors) {
  EXPECT_EQ(portable_shape({264 * 100}, big_gpu), (Shape{{207, 1, 1}, {128, 1, 1}, 0}));
  EXPECT_EQ(portable_shape({2'000}, big_gpu), (Shape{{32, 1, 1}, {64, 1, 1}, 0}));
}

TEST(PortableShape, FullRowsAreDealtRowByRow) {
  EXPECT_EQ(portable_shape({2000, 300, 4}, {256, 264}), (Shape{{32, 300, 4}, {64, 1, 1}, 0}));
  EXPECT_EQ(portable_shape({1 << 20, 65'535, 65'535}, {256, 1}), (Shape{{4096, 65'535, 65'535}, {256, 1, 1}, 0}));
}

TEST(PortableShape, NarrowRangesAreDealtAsOneColumn) {
  auto const shape = portable_shape({3, 1'000'000}, big_gpu);
  EXPECT_EQ(shape, (Shape{{11'719, 1, 1}, {1, 256, 1}, 256 * 24}));
}

TEST(PortableShape, NoRangeIsTooLargeForAGrid) {
  constexpr unsigned most_blocks = 0x7FFF'FFFF;
  for (Range const range : {Range{std::size_t{1} << 50}, Range{1024, 65'536, 1}, Range{1024, 1, 65'536},
                            Range{1, std::size_t{1} << 40, 1}, Range{SIZE_MAX}}) {
    auto const shape = portable_shape(range, big_gpu);
    EXPECT_EQ(shape.block[0], 1U);
    EXPECT_EQ(shape.block[1], 256U);
    EXPECT_EQ(shape.grid[0], std::min<std::size_t>((range.items() - 1) / 256 + 1, most_blocks));
    EXPECT_EQ(shape.grid[1], 1U);
  }
}

TEST(PortableShape, EveryItemHasAThread) {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    std::minstd_rand random{seed + 1};
    auto const size = [&] { return std::size_t{1} + random() % (std::size_t{1} << random() % 20); };
    Range const range{size(), random() % 2 != 0 ? size() : 1, random() % 2 != 0 ? size() : 1};
    Occupancy const occupancy{32 * (1 + static_cast<unsigned>(random() % 32)),
                              1 + static_cast<unsigned>(random() % 500)};
    auto const shape = portable_shape(range, occupancy);
    auto const& [grid, block, shared_bytes] = shape;
    ASSERT_LE(std::size_t{block[0]} * block[1] * block[2], occupancy.block);
    ASSERT_EQ(block[2], 1U);
    if (block[1] == 1) {
      ASSERT_GE(std::size_t{grid[0]} * block[0], range.x);
      ASSERT_LT(std::size_t{grid[0] - 1} * block[0], range.x);
      ASSERT_EQ(grid[1], range.y);
      ASSERT_EQ(grid[2], range.z);
      ASSERT_EQ(shared_bytes, 0U);
    } else {
      ASSERT_EQ(block[0], 1U);
      ASSERT_EQ(shared_bytes, block[1] * 24);
    }
  }
}

TEST(PortableShape, ABlockOfOneThreadIsARow) {
  EXPECT_EQ(portable_shape({5}, {1, 1}), (Shape{{5, 1, 1}, {1, 1, 1}, 0}));
  EXPECT_EQ(portable_shape({1, 7, 1}, {2, 1}), (Shape{{4, 1, 1}, {1, 2, 1}, 48}));
}

TEST(PlainShape, AGridCoversTheRangeInItsDimensions) {
  EXPECT_EQ(plain_shape({1'000'000}, big_gpu), (Shape{{977, 1, 1}, {1024, 1, 1}, 0}));
  EXPECT_EQ(plain_shape({1000, 500}, {256, 264}), (Shape{{4, 500, 1}, {256, 1, 1}, 0}));
  EXPECT_EQ(plain_shape({20, 500}, {256, 264}), (Shape{{1, 63, 1}, {32, 8, 1}, 0}));
  EXPECT_EQ(plain_shape({3, 3, 1000}, {1024, 264}), (Shape{{1, 1, 16}, {4, 4, 64}, 0}));
}

TEST(GroupShape, ABlockIsAGroup) {
  EXPECT_EQ(group_shape(Range{1024, 512}.group({16, 8})), (Shape{{64, 64, 1}, {16, 8, 1}, 0}));
  EXPECT_EQ(group_shape(Range{4, 4, 4}.group({1, 2, 4})), (Shape{{4, 2, 1}, {1, 2, 4}, 0}));
  EXPECT_EQ(group_shape(Range{1, 65'536}.group({1, 1})), std::nullopt);
  EXPECT_NE(group_shape(Range{1, 65'536}.group({1, 2})), std::nullopt);
}

TEST(GroupShape, ABlockHasLimitsInEachDimension) {
  EXPECT_TRUE(can_be_block({1024}, 1024));
  EXPECT_TRUE(can_be_block({4, 4, 64}, 1024));
  EXPECT_FALSE(can_be_block({1025}, 2048));
  EXPECT_FALSE(can_be_block({1, 1025}, 2048));
  EXPECT_FALSE(can_be_block({1, 1, 65}, 1024));
  EXPECT_FALSE(can_be_block({32, 17}, 512)) << "of the kernel";
}

TEST(PlainShape, ARangeBeyondAnyGridHasNone) {
  EXPECT_EQ(plain_shape({1024, 65'535 * 2, 1}, {256, 1}), std::nullopt);
  EXPECT_NE(plain_shape({1024, 65'535, 1}, {256, 1}), std::nullopt);
  EXPECT_EQ(plain_shape({std::size_t{1} << 50}, {256, 1}), std::nullopt);
}

}  // namespace
}  // namespace unimem::detail::cuda
