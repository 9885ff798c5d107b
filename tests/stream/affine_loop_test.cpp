#include "stream/affine_loop.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

namespace unimem::detail {
namespace {

TEST(AffineLoop, RoundsToEvenLikeTheLibrary) {
  SCOPED_TRACE("seed 3");
  std::mt19937_64 random{3};
  std::vector<double> numbers{0.0,
                              -0.0,
                              0.5,
                              -0.5,
                              1.5,
                              -1.5,
                              2.5,
                              -2.5,
                              0.49999999999999994,
                              4503599627370495.5,
                              -4503599627370495.5,
                              4503599627370496.0,
                              4503599627370497.0,
                              9007199254740993.0,
                              HUGE_VAL,
                              -HUGE_VAL,
                              5e-324,
                              1e308};
  for (int i = 0; i < 100'000; ++i) {
    auto const bits = random();
    double any = 0;
    std::memcpy(&any, &bits, sizeof any);
    numbers.push_back(any);
    numbers.push_back(static_cast<double>(static_cast<std::int32_t>(bits)) / 2);
    numbers.push_back(static_cast<double>(static_cast<std::int64_t>(bits)) / 1024);
  }
  for (auto const x : numbers) {
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(round_to_even(x)));
    } else {
      ASSERT_EQ(round_to_even(x), std::nearbyint(x)) << x;
    }
  }
}

TEST(AffineLoop, IntegersSaturateExactlyAtTheirLimits) {
  EXPECT_EQ(affine_value<std::uint8_t>(1, 254.5, 0.0), 254);
  EXPECT_EQ(affine_value<std::uint8_t>(1, 255.5, 0.0), 255);
  EXPECT_EQ(affine_value<std::uint8_t>(1, -0.5, 0.0), 0);
  EXPECT_EQ(affine_value<std::uint8_t>(255, 1e300, 1e300), 255);
  EXPECT_EQ(affine_value<std::int8_t>(1, -128.5, 0.0), -128);
  EXPECT_EQ(affine_value<std::int8_t>(1, -129.0, 0.0), -128);
  EXPECT_EQ(affine_value<std::int8_t>(1, 127.5, 0.0), 127);
  EXPECT_EQ(affine_value<std::int64_t>(1, 9223372036854775807.0, 0.0), INT64_MAX);
  EXPECT_EQ(affine_value<std::int64_t>(1, 9223372036854774784.0, 0.0), 9223372036854774784);
  EXPECT_EQ(affine_value<std::int64_t>(1, -9223372036854775808.0, 0.0), INT64_MIN);
  EXPECT_EQ(affine_value<std::uint64_t>(1, 18446744073709551616.0, 0.0), UINT64_MAX);
  EXPECT_EQ(affine_value<std::uint64_t>(1, 18446744073709549568.0, 0.0), 18446744073709549568U);
  EXPECT_EQ(affine_value<std::uint64_t>(1, -1.0, 0.0), 0U);
}

TEST(AffineLoop, LargeIntegersEnterAsTheNearestDouble) {
  EXPECT_EQ(affine_value<std::int64_t>(9007199254740993, 1.0, 0.0), 9007199254740992);
  EXPECT_EQ(affine_value<std::uint64_t>(UINT64_MAX, 1.0, 0.0), UINT64_MAX);
  EXPECT_EQ(affine_value<std::uint64_t>(UINT64_MAX, 0.5, 0.0), 9223372036854775808U);
}

TEST(AffineLoop, ProductAndSumAreRoundedEach) {
  // A fused multiply-add would keep what the product's rounding drops.
  double const x = 1.0 + std::ldexp(1.0, -30);
  EXPECT_EQ(affine_value(x, x, -1.0 - std::ldexp(1.0, -29)), 0.0);
  EXPECT_TRUE(std::isnan(affine_value(std::nanf(""), 2.0, 1.0)));
  EXPECT_EQ(affine_value(1.0F, 1e300, 0.0), HUGE_VALF);
}

}  // namespace
}  // namespace unimem::detail
