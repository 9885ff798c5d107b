#include "buffer/buffer_fixture.hpp"

#include "core/sizes.hpp"

#include <algorithm>

namespace unimem::testing {
namespace {

class SmallWrites : public BufferTest {
 protected:
  static constexpr std::size_t page = 4 * KiB, count = 1000;

  Device& large = make_sim({.memory_bytes = 2 * GiB});
};

TEST_F(SmallWrites, AThousandScatteredPagesOfAGigabyteMoveExactlyThemselves) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "half a minute under ThreadSanitizer, for what one thread does";
#endif
  auto options = on_sim();
  options.device = &large;
  UnifiedBuffer<std::byte> buffer(GiB, options);
  std::ignore = buffer.host_view();
  buffer.sync_to_device();
  ASSERT_EQ(moved(large.transfers()), (Moved{GiB, 1, 0, 0}));
  constexpr auto stride = GiB / count / page * page;
  for (std::size_t i = 0; i < count; ++i) {
    std::ranges::fill(buffer.host(i * stride, page), static_cast<std::byte>(i % 251));
  }
  buffer.sync_to_device();
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{GiB + count * page, 1 + count, 0, 0})) << "those 4 MiB";
  EXPECT_EQ(moved(large.transfers()), moved(buffer.statistics()));
  auto const lease = std::as_const(buffer).device_view();
  auto queue = large.create_queue();
  std::vector<std::byte> seen(page);
  for (std::size_t i = 0; i < count; ++i) {
    queue.download(seen.data(), lease.native().window(i * stride, page), page).wait();
    ASSERT_TRUE(std::ranges::all_of(seen, [&](std::byte b) { return b == static_cast<std::byte>(i % 251); })) << i;
    ASSERT_TRUE(std::ranges::equal(seen, buffer.host_view(i * stride, page))) << i;
  }
}

TEST_F(SmallWrites, AThousandAdjacentPagesMoveOnce) {
  auto options = on_sim();
  options.device = &large;
  UnifiedBuffer<std::byte> buffer(GiB, options);
  // A device's rubbish is the data until somebody writes, so that nothing but the pages has to move.
  std::ignore = buffer.device_view();
  // Not in their order: neighbours are neighbours whoever came first.
  constexpr std::size_t begin = 123 * page;
  for (std::size_t i = 0; i < count; ++i) {
    auto const at = i * 7 % count;
    std::ranges::fill(buffer.host_overwrite(begin + at * page, page), static_cast<std::byte>(at % 251));
  }
  buffer.sync_to_device();
  EXPECT_EQ(moved(buffer.statistics()), (Moved{count * page, 1, 0, 0}));
  EXPECT_EQ(moved(large.transfers()), moved(buffer.statistics()));
  auto window = buffer.slice(begin, count * page);
  std::vector<std::byte> seen(count * page);
  auto const lease = window.device_view();
  auto queue = large.create_queue();
  queue.download(seen.data(), lease.native(), seen.size()).wait();
  for (std::size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], static_cast<std::byte>(i / page % 251));
}

/// Simulated devices say what a command costs, so where it pays to merge is exact: 10 us at 8 GB/s are 80,000 bytes.
TEST_F(SmallWrites, AGapIsCopiedAlongWhereThatIsCheaperThanAnotherCommand) {
  struct Case {
    std::size_t gap, copies;
  };
  for (auto const& [gap, copies] : {Case{0, 1}, Case{page, 1}, Case{76 * KiB, 1}, Case{80 * KiB, 2}}) {
    SCOPED_TRACE(gap);
    UnifiedBuffer<std::byte> buffer(1024 * KiB, on_sim());
    buffer.fill(std::byte{1});
    buffer.sync_to_device();
    auto const before = buffer.statistics();
    std::ranges::fill(buffer.host(0, page), std::byte{2});
    std::ranges::fill(buffer.host(page + gap, page), std::byte{3});
    buffer.sync_to_device();
    auto const after = buffer.statistics();
    EXPECT_EQ(after.host_to_device_copies - before.host_to_device_copies, copies);
    EXPECT_EQ(after.host_to_device_bytes - before.host_to_device_bytes, 2 * page + (copies == 1 ? gap : 0));
    std::vector<std::byte> expected(1024 * KiB, std::byte{1});
    std::fill_n(expected.begin(), page, std::byte{2});
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(page + gap), page, std::byte{3});
    EXPECT_EQ(device_bytes(buffer, sim), expected);
    EXPECT_TRUE(std::ranges::equal(buffer.host_view(), expected));
  }
}

TEST_F(SmallWrites, AGapThatTheDeviceHasNewerIsNeverCopiedAlong) {
  auto buffer = synchronized();
  std::ranges::fill(buffer.host(10, 1), 1000U);
  std::ranges::fill(buffer.host(12, 1), 1200U);
  set(sim.default_queue(), buffer.slice(11, 1), 1100);
  buffer.sync_to_device();
  EXPECT_EQ(moved(buffer.statistics()), (Moved{408, 3, 0, 0}));
  auto expected = counting(100);
  expected[10] = 1000;
  expected[11] = 1100;
  expected[12] = 1200;
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(buffer.to_vector(), expected);
}

TEST_F(SmallWrites, ManySmallWritesOnADeviceComeHomeAsFewCopiesToo) {
  UnifiedBuffer<std::uint32_t> buffer(10'000, on_sim());
  buffer.copy_from(counting(10'000));
  buffer.sync_to_device();
  auto expected = counting(10'000);
  for (std::size_t i = 0; i < 100; ++i) {
    set(sim.default_queue(), buffer.slice(i * 10, 5), 7);
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(i * 10), 5, 7U);
  }
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{40'000, 1, 995 * 4, 1}));
  EXPECT_EQ(moved(sim.transfers()), moved(buffer.statistics()));
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

}  // namespace
}  // namespace unimem::testing
