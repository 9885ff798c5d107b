#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/kernel.hpp>
#include <unimem/stream/stream_file.hpp>

#include "stream/scratch_folder.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

// Kernels of the user's that accumulate over a stream.

namespace unimem {
namespace {

class Reducing : public ::testing::TestWithParam<char const*> {
 protected:
  static constexpr std::size_t lanes = 100;

  void SetUp() override {
    options.device = &device(GetParam());
    options.chunk_bytes = 40'000;
  }

  /// Each lane's sum of value × place, and its number of chunks.
  [[nodiscard]] static Kernel weighted() {
    return Kernel("weighted")
        .host([](WorkItem item, std::span<const std::uint32_t> in, std::span<std::uint64_t> sums, std::uint64_t count,
                 std::uint64_t many, std::uint64_t first) {
          for (auto i = item.x; i < count; i += many) sums[item.x] += in[i] * (first + i);
        });
  }
  [[nodiscard]] static std::uint64_t total_of(StreamResult const& result) {
    auto const& reduced = std::get<ReductionResult>(result.result);
    EXPECT_EQ(reduced.element, ElementType::u64);
    EXPECT_EQ(reduced.values.size(), lanes);
    std::uint64_t total = 0;
    for (auto const& value : reduced.values) total += std::get<std::uint64_t>(value);
    return total;
  }

  ScratchFolder folder;
  StreamOptions options;
};

TEST_P(Reducing, AccumulatesOverAllChunks) {
  std::vector<std::uint32_t> numbers(250'003);
  std::uint64_t expected = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<std::uint32_t>(i * 2'654'435'761U);
    expected += std::uint64_t{numbers[i]} * i;
  }
  auto const path = folder.write("in", numbers);
  auto const kernel = reducing(weighted(), ElementType::u64, lanes, ElementType::u32);
  auto const result = stream_file(path, kernel, options);
  EXPECT_EQ(total_of(result), expected);
  EXPECT_EQ(result.chunks, 26U);
  EXPECT_EQ(result.host_to_device_bytes, options.device->shares_storage_with_host() ? 0 : numbers.size() * 4);
  options.chunk_bytes = 4;
  options.buffers = 1;
  auto const few = folder.write("few", std::vector<std::uint32_t>{3, 5, 7});
  EXPECT_EQ(total_of(stream_file(few, kernel, options)), 0 * 3 + 1 * 5 + 2 * 7U);
}

TEST_P(Reducing, OfNothingIsZero) {
  auto const kernel = reducing(weighted(), ElementType::u64, lanes, ElementType::u32);
  EXPECT_EQ(total_of(stream_file(folder.write("in", std::string_view()), kernel, options)), 0U);
}

TEST_P(Reducing, ItsMemoryCountsAgainstTheLimit) {
  auto const path = folder.write("in", std::vector<std::uint32_t>(100'000, 1));
  auto const kernel = reducing(weighted(), ElementType::u64, lanes, ElementType::u32);
  options.memory_limit = 40'000 + lanes * 8;
  if (!options.device->shares_storage_with_host()) {
    auto const result = stream_file(path, kernel, options);
    EXPECT_EQ(result.buffers, 1U);
    EXPECT_EQ(total_of(result), 99'999 * std::uint64_t{100'000} / 2);
  }
  options.memory_limit -= 1;
  EXPECT_THROW(stream_file(path, kernel, options), OutOfMemory);
}

TEST_P(Reducing, RefusesWhatItCannotDo) {
  EXPECT_THROW(static_cast<void>(reducing(weighted(), ElementType::u64, 0)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(reducing(weighted(), ElementType::u64, most_reduced + 1)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(reducing(Kernel("none"), ElementType::u64, 1)), InvalidArgument);
  auto const path = folder.write("in", std::vector<std::uint32_t>(100, 1));
  auto const other = reducing(weighted(), ElementType::f64, lanes, ElementType::u32);
  EXPECT_THROW(stream_file(path, other, options), KernelError);
  options.output = folder / "out";
  EXPECT_THROW(stream_file(path, reducing(weighted(), ElementType::u64, lanes), options), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Devices, Reducing, ::testing::Values("cpu", "sim"),
                         [](auto const& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace unimem
