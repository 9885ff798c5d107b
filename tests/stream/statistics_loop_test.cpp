#include "stream/statistics_loop.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace unimem::detail {
namespace {

template <class T>
Moments moments(std::vector<T> const& elements) {
  return moments_of(std::span<const T>(elements));
}
template <class T>
Extremes<T> extremes(std::vector<T> const& elements) {
  return extremes_of(std::span<const T>(elements));
}

TEST(StatisticsLoop, TheWidestStripsOfNarrowIntegersStayExact) {
  // Half at each end: the largest sum of squares, and a spread whose parts do not fit 64 bits on their own.
  std::vector<std::uint16_t> wide(65'536, 65'535);
  EXPECT_EQ(moments(wide).mean, 65'535.0);
  EXPECT_EQ(moments(wide).squares, 0.0);
  for (std::size_t i = 0; i < wide.size() / 2; ++i) wide[i] = 0;
  EXPECT_EQ(moments(wide).mean, 32'767.5);
  EXPECT_EQ(moments(wide).squares, 65'536 * 32'767.5 * 32'767.5);

  std::vector<std::int8_t> narrow(131'072, -128);
  EXPECT_EQ(moments(narrow).mean, -128.0);
  EXPECT_EQ(moments(narrow).squares, 0.0);
}

TEST(StatisticsLoop, ALargeOffsetCostsNoDigits) {
  std::vector<double> elements;
  for (int i = 0; i < 10'007; ++i) elements.push_back(1e15 + i % 3);
  auto const [mean, squares] = moments(elements);
  EXPECT_NEAR(mean - 1e15, 1.0, 0.126);  // a double's neighbours are an eighth apart there
  EXPECT_NEAR(squares / 10'007, 2.0 / 3.0, 1e-3);
}

TEST(StatisticsLoop, InfinitiesGiveWhatNumPyGives) {
  constexpr auto infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(moments(std::vector{1.0, infinity, 3.0}).mean, infinity);
  EXPECT_TRUE(std::isnan(moments(std::vector{1.0, infinity, 3.0}).squares));
  EXPECT_TRUE(std::isnan(moments(std::vector{-infinity, infinity}).mean));
}

TEST(StatisticsLoop, ExtremesAreFoundInEveryLaneAndTail) {
  for (std::size_t size = 1; size < 40; ++size) {
    for (std::size_t at = 0; at < size; ++at) {
      std::vector<std::int32_t> elements(size, 5);
      elements[at] = -7;
      EXPECT_EQ(extremes(elements).min, -7);
      EXPECT_EQ(extremes(elements).max, size == 1 ? -7 : 5);
      elements[at] = 9;
      EXPECT_EQ(extremes(elements).max, 9);
      std::vector<float> with_nan(size, 5.0F);
      with_nan[at] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_TRUE(std::isnan(extremes(with_nan).min));
      EXPECT_TRUE(std::isnan(extremes(with_nan).max));
    }
  }
}

}  // namespace
}  // namespace unimem::detail
