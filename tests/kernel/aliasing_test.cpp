#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/launch.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace unimem {
namespace {

using ::testing::Each;

/// One launch whose operands are the same bytes, in part or all of them: the kernel sees what was there before it, and
/// what it leaves is what counts. On the cpu, where nothing is copied, and on a simulated device, where bytes are.
class Aliases : public ::testing::TestWithParam<char const*> {
 protected:
  using Values = std::vector<std::uint32_t>;

  [[nodiscard]] UnifiedBuffer<std::uint32_t> counting() {
    BufferOptions options;
    options.manager = &manager;
    options.device = &on;
    UnifiedBuffer<std::uint32_t> buffer(100, options);
    auto const values = buffer.host();
    std::iota(values.begin(), values.end(), 0U);
    return buffer;
  }
  [[nodiscard]] static Values counted(std::uint32_t first = 0) {
    Values values(100);
    std::iota(values.begin(), values.end(), first);
    return values;
  }
  [[nodiscard]] Values on_device(UnifiedBuffer<std::uint32_t>& buffer) {
    auto const lease = buffer.device_view();
    Values values(buffer.size());
    auto queue = on.create_queue();
    queue.download(values.data(), lease.native(), buffer.size_bytes()).wait();
    return values;
  }
  void expect_moved(UnifiedBuffer<std::uint32_t> const& buffer, std::uint64_t up, std::uint64_t up_copies,
                    std::uint64_t down, std::uint64_t down_copies) {
    auto const counts = buffer.statistics();
    bool const shared = on.shares_storage_with_host();
    EXPECT_EQ(counts.host_to_device_bytes, shared ? 0 : up);
    EXPECT_EQ(counts.host_to_device_copies, shared ? 0 : up_copies);
    EXPECT_EQ(counts.device_to_host_bytes, shared ? 0 : down);
    EXPECT_EQ(counts.device_to_host_copies, shared ? 0 : down_copies);
    if (shared) return;
    EXPECT_EQ(on.transfers().host_to_device_bytes, up) << "and so says the device";
    EXPECT_EQ(on.transfers().device_to_host_bytes, down);
  }

  Device& on = std::string_view(GetParam()) == "cpu" ? device("cpu") : make_sim({.memory_bytes = 1 << 20});
  MemoryManager manager;
  Kernel next = Kernel("next").host(
      [](WorkItem i, std::span<const std::uint32_t> from, std::span<std::uint32_t> to) { to[i.x] = from[i.x] + 1; });
  Kernel add = Kernel("add").host([](WorkItem i, std::span<const std::uint32_t> a, std::span<const std::uint32_t> b,
                                     std::span<std::uint32_t> sum) { sum[i.x] = a[i.x] + b[i.x]; });
};

TEST_P(Aliases, ABufferMayBeReadAndOverwritten) {
  auto x = counting();
  launch(next, Range{100}, read(x), write(x)).wait();
  EXPECT_EQ(x.state(), BufferState::device_dirty);
  EXPECT_EQ(x.to_vector(), counted(1)) << "what is overwritten was read before, so it was brought in";
  expect_moved(x, 400, 1, 400, 1);
  EXPECT_EQ(on_device(x), counted(1));
}

TEST_P(Aliases, TheirOrderDoesNotMatter) {
  auto x = counting();
  auto const next_first =
      Kernel("next_first").host([](WorkItem i, std::span<std::uint32_t> to, std::span<const std::uint32_t> from) {
        to[i.x] = from[i.x] + 1;
      });
  launch(next_first, Range{100}, write(x), read(x));
  EXPECT_EQ(x.to_vector(), counted(1));
  expect_moved(x, 400, 1, 400, 1);
}

TEST_P(Aliases, ASliceReadTwiceIsCopiedOnce) {
  auto x = counting();
  launch(add, Range{100}, read(x), read(x), write(x));
  Values expected = counted();
  for (auto& value : expected) value *= 2;
  EXPECT_EQ(x.to_vector(), expected);
  expect_moved(x, 400, 1, 400, 1);
}

TEST_P(Aliases, OverlappingSlicesAreCopiedOnce) {
  auto x = counting();
  BufferOptions options;
  options.manager = &manager;
  options.device = &on;
  UnifiedBuffer<std::uint32_t> sum(60, options);
  launch(add, Range{60}, read(x.slice(0, 60)), read(x.slice(40, 60)), write(sum)).wait();
  expect_moved(x, 400, 2, 0, 0);
  auto const result = sum.to_vector();
  for (std::uint32_t i = 0; i < 60; ++i) ASSERT_EQ(result[i], i + (40 + i));
  EXPECT_EQ(x.to_vector(), counted());
}

TEST_P(Aliases, DisjointSlicesAreReadAndWritten) {
  auto x = counting();
  launch(next, Range{50}, read(x.slice(0, 50)), write(x.slice(50, 50))).wait();
  expect_moved(x, 200, 1, 0, 0);
  Values expected = counted();
  std::iota(expected.begin() + 50, expected.end(), 1U);
  EXPECT_EQ(x.to_vector(), expected);
  expect_moved(x, 200, 1, 200, 1);
  EXPECT_EQ(on_device(x), expected);
}

TEST_P(Aliases, OverlappingReadsSeeTheOldBytes) {
  auto x = counting();
  // From the back to the front, as one item: each element is read before it is overwritten.
  auto const shift =
      Kernel("shift").host([](WorkItem, std::span<const std::uint32_t> from, std::span<std::uint32_t> to) {
        for (auto i = from.size(); i-- > 0;) to[i] = from[i];
      });
  launch(shift, Range{1}, read(x.slice(0, 60)), write(x.slice(20, 60))).wait();
  expect_moved(x, 240, 1, 0, 0);
  Values expected = counted();
  std::iota(expected.begin() + 20, expected.begin() + 80, 0U);
  EXPECT_EQ(x.to_vector(), expected);
  EXPECT_EQ(on_device(x), expected);
}

TEST_P(Aliases, TwoSlicesThatOverlapMayBothBeWritten) {
  auto x = counting();
  auto const both = Kernel("both").host([](WorkItem, std::span<std::uint32_t> a, std::span<std::uint32_t> b) {
    for (auto& value : a) value = 1;
    for (auto& value : b) value = 2;
  });
  launch(both, Range{1}, write(x.slice(0, 60)), write(x.slice(40, 60))).wait();
  expect_moved(x, 0, 0, 0, 0);
  Values expected(100, 2U);
  std::fill_n(expected.begin(), 40, 1U);
  EXPECT_EQ(x.to_vector(), expected);
  expect_moved(x, 0, 0, 400, 1);
  EXPECT_EQ(on_device(x), expected);
}

TEST_P(Aliases, AViewOfAnotherTypeIsAnAlias) {
  auto x = counting();
  auto const halves =
      Kernel("halves").host([](WorkItem i, std::span<const std::uint64_t> from, std::span<std::uint32_t> to) {
        to[2 * i.x] = static_cast<std::uint32_t>(from[i.x] >> 32);
      });
  launch(halves, Range{50}, read(x.as<std::uint64_t>()), readwrite(x));
  Values expected = counted();
  for (std::size_t i = 0; i < 100; i += 2) expected[i] = expected[i + 1];
  EXPECT_EQ(x.to_vector(), expected);
  expect_moved(x, 400, 1, 400, 1);
}

TEST_P(Aliases, LaterLaunchesFollowEveryAlias) {
  auto x = counting();
  auto first = on.create_queue(), second = on.create_queue();
  Values expected = counted();
  for (int round = 0; round < 20; ++round) {
    launch(first, next, Range{60}, read(x.slice(0, 60)), write(x.slice(0, 60)));
    launch(second, next, Range{60}, read(x.slice(40, 60)), write(x.slice(40, 60)));
    for (std::size_t i = 0; i < 60; ++i) ++expected[i];
    for (std::size_t i = 40; i < 100; ++i) ++expected[i];
  }
  EXPECT_EQ(x.to_vector(), expected);
  EXPECT_EQ(on_device(x), expected);
}

TEST_P(Aliases, AFailureRollsBackEveryAlias) {
  if (on.shares_storage_with_host()) GTEST_SKIP() << "one memory: there is no other copy";
  auto x = counting();
  x.sync_to_device();
  auto const broken = Kernel("broken").host([](WorkItem, std::span<std::uint32_t> a, std::span<std::uint32_t> b) {
    a[0] = b[0] = 99;
    throw std::runtime_error("half-way");
  });
  auto const event = launch(broken, Range{1}, write(x.slice(0, 60)), readwrite(x.slice(40, 60)));
  EXPECT_THROW(event.wait(), std::runtime_error);
  EXPECT_THROW(std::ignore = x.host_view(), std::runtime_error);
  EXPECT_EQ(x.to_vector(), counted());
  EXPECT_EQ(on_device(x), counted());
  x.core().validate();
}

INSTANTIATE_TEST_SUITE_P(Devices, Aliases, ::testing::Values("cpu", "sim"),
                         [](auto const& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace unimem
