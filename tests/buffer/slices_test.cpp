#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"

#include <algorithm>
#include <optional>

namespace unimem::testing {
namespace {

using ::testing::Each;

using Slices = BufferTest;

TEST_F(Slices, SliceAndBufferSeeEachOthersWrites) {
  auto buffer = synchronized();
  auto slice = buffer.slice(20, 10);
  EXPECT_EQ(slice.size(), 10U);
  EXPECT_EQ(slice.offset_bytes(), 80U);
  std::ranges::fill(slice.host(), 7U);
  EXPECT_EQ(buffer.state(), BufferState::host_dirty) << "the buffer's state follows";
  EXPECT_EQ(slice.state(), BufferState::host_dirty);
  auto expected = counting(100);
  std::fill_n(expected.begin() + 20, 10, 7U);
  EXPECT_EQ(buffer.to_vector(), expected);
  buffer.host(25, 1)[0] = 70;
  expected[25] = 70;
  EXPECT_EQ(slice.at(5), 70U);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400 + 40, 2, 0, 0})) << "the slice alone was brought over again";
  EXPECT_EQ(sim.transfers().host_to_device_bytes, 440U);
}

TEST_F(Slices, ASliceSharesItsBuffersMemory) {
  auto buffer = synchronized();
  auto const slice = buffer.slice(20, 10);
  EXPECT_EQ(slice.host_view().data(), buffer.host_view().data() + 20);
  auto const whole = buffer.device_view();
  auto const part = slice.device_view();
  EXPECT_EQ(part.data(), whole.data() + 20);
  EXPECT_EQ(part.size(), 10U);
  EXPECT_EQ(moved(sim.transfers()), (Moved{400, 1, 0, 0}));
}

TEST_F(Slices, SlicesOfSlicesAddTheirOffsets) {
  auto buffer = synchronized();
  auto inner = buffer.slice(10, 50).slice(5, 20).slice(3, 4);
  EXPECT_EQ(inner.offset_bytes(), 18U * 4);
  EXPECT_EQ(inner.to_vector(), counting(4, 18));
  EXPECT_EQ(buffer.slice(90).slice(4).to_vector(), counting(6, 94)) << "to the end";
  inner.fill(1);
  inner.sync_to_host();
  auto expected = counting(100);
  std::fill_n(expected.begin() + 18, 4, 1U);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400, 1, 16, 1})) << "filled on the device, brought back alone";
}

TEST_F(Slices, DeviceAccessMovesTheSlicesBytesAlone) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  auto slice = buffer.slice(40, 20);
  set(sim.default_queue(), slice.slice(0, 5), 9).wait();
  EXPECT_EQ(moved(sim.transfers()), Moved{}) << "what is overwritten is not brought in";
  add(sim.default_queue(), slice, 1).wait();
  EXPECT_EQ(moved(sim.transfers()), (Moved{60, 1, 0, 0})) << "what it lacked";
  EXPECT_EQ(buffer.state(), BufferState::mixed) << "what the host wrote around it has not been seen by the device";
  auto expected = counting(100);
  std::fill_n(expected.begin() + 40, 5, 10U);
  for (std::size_t i = 45; i < 60; ++i) ++expected[i];
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(moved(sim.transfers()), (Moved{60, 1, 80, 1}));
  EXPECT_EQ(moved(buffer.statistics()), moved(sim.transfers()));
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{60 + 400, 2, 80, 1}))
      << "the two ends, and what lies between them for less than another command";
}

TEST_F(Slices, WrittenOnTwoSidesMergeExactly) {
  auto buffer = synchronized();
  auto left = buffer.slice(0, 30), right = buffer.slice(30);
  set(sim.default_queue(), right, 5);
  left.fill(4, 10, 5);
  left.copy_from(std::vector<std::uint32_t>(5, 3), 0);
  EXPECT_EQ(buffer.state(), BufferState::mixed);
  buffer.synchronize();
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  auto expected = counting(100);
  std::fill_n(expected.begin(), 5, 3U);
  std::fill_n(expected.begin() + 10, 5, 4U);
  std::fill_n(expected.begin() + 30, 70, 5U);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400 + 20, 2, 360, 1}))
      << "the fifteen elements between the device's two were cheaper than another command";
  EXPECT_EQ(moved(sim.transfers()), moved(buffer.statistics()));
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

TEST_F(Slices, ASliceOutlivesItsBufferWithBothSides) {
  std::optional<BufferSlice<std::uint32_t>> slice;
  {
    auto buffer = synchronized();
    set(sim.default_queue(), buffer.slice(50, 10), 6);
    slice = buffer.slice(45, 10);
  }
  auto expected = counting(10, 45);
  std::fill_n(expected.begin() + 5, 5, 6U);
  EXPECT_EQ(slice->to_vector(), expected);
  EXPECT_EQ(moved(slice->statistics()), (Moved{400, 1, 20, 1})) << "what the device wrote of the slice came back";
  slice->fill(8);
  EXPECT_THAT(slice->host_view(), Each(8U));
  EXPECT_GT(manager.pool(sim, Location::device).statistics().active_bytes, 0U);
  slice.reset();
  EXPECT_EQ(manager.pool(sim, Location::device).statistics().active_bytes, 0U) << "and then the memory goes";
}

TEST_F(Slices, ASliceFollowsABufferThatMoves) {
  auto buffer = synchronized();
  auto slice = buffer.slice(1, 2);
  auto moved_to = std::move(buffer);
  moved_to.fill(9);
  EXPECT_THAT(slice.to_vector(), Each(9U));
  slice.fill(10);
  EXPECT_EQ(moved_to.at(2), 10U);
  EXPECT_EQ(moved_to.at(3), 9U);
}

TEST_F(Slices, ASliceOfAFreedBufferStaysUsable) {
  auto buffer = synchronized();
  auto slice = buffer.slice(20, 10);
  buffer.free();
  EXPECT_EQ(slice.state(), BufferState::uninitialized);
  EXPECT_THROW(slice.mark_host_dirty(), BufferNotAllocated);
  EXPECT_THROW(slice.sync_to_device(), BufferNotAllocated);
  slice.copy_from(counting(10, 500));
  EXPECT_EQ(buffer.slice(20, 10).to_vector(), counting(10, 500));
  EXPECT_EQ(slice.to_vector(), counting(10, 500));
}

TEST_F(Slices, AnEmptySliceIsLegalEverywhere) {
  auto buffer = synchronized();
  for (std::size_t const at : {0U, 50U, 100U}) {
    SCOPED_TRACE(at);
    auto slice = buffer.slice(at, 0);
    EXPECT_TRUE(slice.empty());
    EXPECT_TRUE(slice.host().empty());
    EXPECT_TRUE(slice.device().empty());
    slice.fill(3).copy_from(std::vector<std::uint32_t>{});
    slice.mark_host_dirty();
    slice.mark_device_dirty();
    slice.synchronize();
    slice.map(MapMode::write).unmap();
    copy(slice, buffer.slice(10, 0));
    EXPECT_TRUE(slice.to_vector().empty());
    EXPECT_EQ(buffer.state(), BufferState::synchronized) << "nothing was written";
  }
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400, 1, 0, 0}));
  EXPECT_EQ(buffer.to_vector(), counting(100));
}

TEST_F(Slices, CopiesBetweenSlicesLeaveEverythingAroundThemAlone) {
  for (bool const on_device : {false, true}) {
    SCOPED_TRACE(on_device);
    auto from = synchronized(), to = synchronized();
    from.fill(1);
    to.fill(2);
    if (!on_device) {
      from.sync_to_host();
      to.sync_to_host();
    }
    auto const before = moved(sim.transfers());
    copy(from.slice(10, 20), to.slice(70, 20));
    EXPECT_EQ(moved(sim.transfers()), before) << "on the host, or within the device";
    std::vector<std::uint32_t> expected(100, 2U);
    std::fill_n(expected.begin() + 70, 20, 1U);
    EXPECT_EQ(to.to_vector(), expected);
    EXPECT_EQ(device_bytes(to, sim), expected);
    EXPECT_THAT(from.to_vector(), Each(1U));
    EXPECT_THROW(copy(from.slice(0, 20), to.slice(0, 21)), SizeMismatch);
    EXPECT_EQ(to.to_vector(), expected);
  }
}

TEST_F(Slices, CopiesWithinABufferMayOverlap) {
  for (bool const on_device : {false, true}) {
    for (auto const& [source, target] : {std::pair{10U, 30U}, {30U, 10U}, {10U, 11U}, {11U, 10U}, {10U, 10U}}) {
      SCOPED_TRACE(::testing::Message() << on_device << ": " << source << " to " << target);
      auto buffer = synchronized();
      auto expected = counting(100);
      if (on_device) {
        add(sim.default_queue(), buffer.slice(0), 1000);
        for (auto& element : expected) element += 1000;
      }
      auto const before = moved(sim.transfers());
      copy(buffer.slice(source, 50), buffer.slice(target, 50));
      EXPECT_EQ(moved(sim.transfers()), before) << "where the data is";
      auto const window = std::vector(expected.begin() + source, expected.begin() + source + 50);
      std::ranges::copy(window, expected.begin() + target);
      EXPECT_EQ(buffer.to_vector(), expected);
      EXPECT_EQ(device_bytes(buffer, sim), expected);
      buffer.core().validate();
    }
  }
}

TEST_F(Slices, OperationsCountFromTheSlicesFirstElement) {
  auto buffer = synchronized();
  auto slice = buffer.slice(30, 10);
  slice.copy_from(counting(4, 200), 2);
  slice.fill(5, 8, 2);
  slice.at(0) = 77;
  slice.host_overwrite(1, 1)[0] = 78;
  auto expected = counting(100);
  expected[30] = 77;
  expected[31] = 78;
  std::ranges::copy(counting(4, 200), expected.begin() + 32);
  std::fill_n(expected.begin() + 38, 2, 5U);
  std::vector<std::uint32_t> part(3);
  slice.copy_to(part, 1);
  EXPECT_EQ(part, (std::vector<std::uint32_t>{78, 200, 201}));
  EXPECT_THROW(slice.copy_from(counting(9)), SizeMismatch);
  EXPECT_THROW(slice.copy_to(part, 8), SizeMismatch);
  EXPECT_THROW(std::ignore = slice.at(10), InvalidArgument);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

}  // namespace
}  // namespace unimem::testing
