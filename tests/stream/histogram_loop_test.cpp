#include "stream/histogram_loop.hpp"

#include "stream/scratch_folder.hpp"

#include <gtest/gtest.h>

#include <array>

namespace unimem::detail {
namespace {

TEST(HistogramLoop, CountsAtEveryLengthAndAlignment) {
  auto const noise = mixed_bytes(5'000, 1);
  for (std::size_t begin = 0; begin < 70; begin += 3) {
    for (std::size_t count = 0; count + begin < noise.size(); count = count < 300 ? count + 1 : count * 5 / 4) {
      std::array<std::uint32_t, 256> expected{};
      for (std::size_t i = 0; i < count; ++i) ++expected[noise[begin + i]];
      std::array<std::uint32_t, 256> counts;
      counts.fill(0xCDCDCDCDU);
      count_bytes(std::span{noise}.subspan(begin, count), counts);
      ASSERT_EQ(counts, expected) << count << " bytes from " << begin;
    }
  }
}

TEST(HistogramLoop, CountsContentsOfAnyKind) {
  constexpr std::size_t size = 1'000'003;
  for (int value = 0; value < 256; ++value) {
    std::vector<std::uint8_t> const constant(size / 64, static_cast<std::uint8_t>(value));
    std::array<std::uint32_t, 256> expected{};
    expected[static_cast<std::size_t>(value)] = static_cast<std::uint32_t>(constant.size());
    std::array<std::uint32_t, 256> counts{};
    count_bytes(constant, counts);
    ASSERT_EQ(counts, expected) << value;
  }
  for (unsigned seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    auto const bytes = mixed_bytes(size, seed);
    std::array<std::uint32_t, 256> expected{};
    for (auto const byte : bytes) ++expected[byte];
    std::array<std::uint32_t, 256> counts{};
    count_bytes(bytes, counts);
    EXPECT_EQ(counts, expected);
  }
}

}  // namespace
}  // namespace unimem::detail
