#include "buffer/buffer_fixture.hpp"
#include "core/sanitizers.hpp"

#include "core/sizes.hpp"

#include <algorithm>

namespace unimem::testing {
namespace {

class SmallWrites : public BufferTest {
 protected:
  static constexpr std::size_t page = 4 * KiB, count = 1000;

  Device& large = make_sim({.memory_bytes = 2 * GiB});
};

TEST_F(SmallWrites, AThousandScatteredPagesMoveExactlyThemselves) {
  if (detail::under_thread_sanitizer) GTEST_SKIP() << "half a minute under ThreadSanitizer, for what one thread does";
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
TEST_F(SmallWrites, AGapCheaperThanACommandIsCopied) {
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
    std::ranges::fill(buffer.host(page + gap, page / 2), std::byte{3});  // another length, or the two were rows
    buffer.sync_to_device();
    auto const after = buffer.statistics();
    EXPECT_EQ(after.host_to_device_copies - before.host_to_device_copies, copies);
    EXPECT_EQ(after.host_to_device_bytes - before.host_to_device_bytes, page + page / 2 + (copies == 1 ? gap : 0));
    std::vector<std::byte> expected(1024 * KiB, std::byte{1});
    std::fill_n(expected.begin(), page, std::byte{2});
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(page + gap), page / 2, std::byte{3});
    EXPECT_EQ(device_bytes(buffer, sim), expected);
    EXPECT_TRUE(std::ranges::equal(buffer.host_view(), expected));
  }
}

TEST_F(SmallWrites, AGapNewerOnTheDeviceStays) {
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

TEST_F(SmallWrites, ManyDeviceWritesComeHomeInFewCopies) {
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

TEST_F(SmallWrites, RowsOfARectangleAreOneCommand) {
  auto buffer = synchronized(200'000);
  auto expected = counting(200'000);
  set_sim_faults(sim, {.fail_upload = 2});
  for (std::uint32_t row = 0; row < 200; ++row) {
    for (auto const i : {0U, 1U}) buffer.host(row * 1000 + 7, 2)[i] = expected[row * 1000 + 7 + i] = 7'000'000U + row;
  }
  buffer.sync_to_device();
  EXPECT_EQ(moved(buffer.statistics()), (Moved{800'000 + 200 * 8, 1 + 200, 0, 0}));
  EXPECT_EQ(moved(sim.transfers()), moved(buffer.statistics()));
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  buffer.host(0, 1)[0] = 1;
  EXPECT_THROW(buffer.sync_to_device(), DeviceError) << "the second command";
  set_sim_faults(sim, {});
}

TEST_F(SmallWrites, DeviceWrittenRowsComeHomeAsOneCommand) {
  auto buffer = synchronized(200'000);
  auto expected = counting(200'000);
  for (std::size_t row = 0; row < 200; ++row) {
    set(sim.default_queue(), buffer.slice(row * 1000 + 7, 1), 7);
    expected[row * 1000 + 7] = 7;
  }
  set_sim_faults(sim, {.fail_download = 2});
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{800'000, 1, 200 * 4, 200}));
  set_sim_faults(sim, {});
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

/// A row costs 100 ns besides its bytes, as 800 bytes do.
TEST_F(SmallWrites, RowsAreJoinedWhereTheGapsCostLess) {
  for (std::size_t const pitch : {200U, 220U}) {  // elements
    auto buffer = synchronized(200 * pitch);
    auto expected = counting(200 * pitch);
    for (std::size_t row = 0; row < 200; ++row) buffer.host(row * pitch, 1)[0] = expected[row * pitch] = 1;
    buffer.sync_to_device();
    auto const bytes = pitch == 200 ? (199 * pitch + 1) * 4 : 200 * 4;
    EXPECT_EQ(moved(buffer.statistics()), (Moved{800 * pitch + bytes, pitch == 200 ? 2U : 201U, 0, 0}));
    EXPECT_EQ(device_bytes(buffer, sim), expected);
  }
}

/// Two columns, near each other: what lies between them goes along.
TEST_F(SmallWrites, RowsMayHaveSmallGapsOfTheirOwn) {
  auto buffer = synchronized(200'000);
  auto expected = counting(200'000);
  for (std::size_t row = 0; row < 200; ++row) {
    for (auto const column : {7U, 100U}) buffer.host(row * 1000 + column, 1)[0] = expected[row * 1000 + column] = 1;
  }
  buffer.sync_to_device();
  EXPECT_EQ(moved(buffer.statistics()), (Moved{800'000 + 200 * 94 * 4, 1 + 200, 0, 0}));
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

/// Two rectangles, and the row between them.
TEST_F(SmallWrites, AnIrregularRegionIsSplitIntoRectangles) {
  auto buffer = synchronized(200'000);
  auto expected = counting(200'000);
  for (std::size_t row = 0; row < 200; ++row) buffer.host(row * 1000, 1)[0] = expected[row * 1000] = 1;
  std::ranges::fill(buffer.host(100'000, 1000), 2U);
  std::fill_n(expected.begin() + 100'000, 1000, 2U);
  set_sim_faults(sim, {.fail_upload = 4});
  buffer.sync_to_device();
  // Rows 0 to 99; row 100 with the first element of the next; rows 102 to 199.
  EXPECT_EQ(moved(buffer.statistics()), (Moved{800'000 + (100 + 1001 + 98) * 4, 1 + 100 + 1 + 98, 0, 0}));
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  buffer.host(0, 1)[0] = 1;
  EXPECT_THROW(buffer.sync_to_device(), DeviceError) << "the fourth command";
  set_sim_faults(sim, {});
}

TEST_F(SmallWrites, RowsLeaveNewerDeviceBytesBetweenThemAlone) {
  auto buffer = synchronized(200'000);
  auto expected = counting(200'000);
  for (std::size_t row = 0; row < 200; ++row) {
    buffer.host(row * 1000, 1)[0] = expected[row * 1000] = 1;
    set(sim.default_queue(), buffer.slice(row * 1000 + 500, 1), 2);
    expected[row * 1000 + 500] = 2;
  }
  buffer.sync_to_device();
  EXPECT_EQ(moved(buffer.statistics()), (Moved{800'000 + 200 * 4, 1 + 200, 0, 0}));
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(buffer.to_vector(), expected);
}

}  // namespace
}  // namespace unimem::testing
