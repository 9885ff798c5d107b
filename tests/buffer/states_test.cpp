#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"

#include <algorithm>

namespace unimem::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

class States : public BufferTest {};

TEST_F(States, AnAllocatedStrictBufferCanBeCloned) {
  auto options = on_sim();
  options.strict = true;
  UnifiedBuffer<std::uint32_t> buffer(10, options);
  buffer.allocate();
  buffer.copy_from(counting(10));
  buffer.sync_to_device();
  auto copy = buffer.clone();
  EXPECT_EQ(copy.to_vector(), counting(10));
  EXPECT_EQ(device_bytes(copy, sim), counting(10));
}

TEST_F(States, AFreshBufferHasNoMemory) {
  UnifiedBuffer<float> const buffer(1000, on_sim());
  EXPECT_EQ(buffer.state(), BufferState::uninitialized);
  EXPECT_FALSE(buffer.is_allocated());
  EXPECT_EQ(sim.memory_info().free_bytes, sim.memory_info().total_bytes);
}

TEST_F(States, TheFourLineProbeReadsFive) {
  UnifiedBuffer<std::uint32_t> buffer(1, on_sim());
  buffer.allocate();
  buffer.host()[0] = 5;
  EXPECT_THAT(device_bytes(buffer, sim), ElementsAreArray({5U}));
}

TEST_F(States, AFreshHostIsHostOnlyUntilWritten) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  std::ignore = buffer.host_view();
  EXPECT_EQ(buffer.state(), BufferState::host_only);
  std::ignore = buffer.host();
  EXPECT_EQ(buffer.state(), BufferState::host_dirty);
  EXPECT_EQ(moved(buffer.statistics()), Moved{});
}

TEST_F(States, HostDirtyBecomesSynchronizedWithExactlyOneUpload) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  EXPECT_EQ(buffer.state(), BufferState::host_dirty);
  EXPECT_THAT(device_bytes(buffer, sim), ElementsAreArray(counting(100)));
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  std::ignore = buffer.device_view();
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400, 1, 0, 0}));
  EXPECT_EQ(sim.transfers().host_to_device_bytes, 400U);
}

TEST_F(States, AFreshDeviceViewIsDeviceOnly) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  std::ignore = buffer.device_view();
  EXPECT_EQ(buffer.state(), BufferState::device_only);
  EXPECT_EQ(moved(buffer.statistics()), Moved{});
}

TEST_F(States, AMutableDeviceLeaseMakesTheDeviceDirty) {
  UnifiedBuffer<std::uint32_t> buffer(4, on_sim());
  buffer.copy_from(counting(4));
  {
    auto lease = buffer.device();
    EXPECT_EQ(buffer.state(), BufferState::device_dirty);
    lease.data()[2] = 77;  // a simulated device's memory has host addresses
  }
  EXPECT_THAT(buffer.host_view(), ElementsAreArray({0U, 1U, 77U, 3U}));
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  std::ignore = buffer.host_view();
  EXPECT_EQ(moved(buffer.statistics()), (Moved{16, 1, 16, 1}));
}

TEST_F(States, OverwritingADeviceBringsNothingIn) {
  UnifiedBuffer<std::uint32_t> buffer(4, on_sim());
  buffer.copy_from(counting(4));
  {
    auto lease = buffer.device_overwrite();
    std::fill_n(lease.data(), 4, 9U);
  }
  EXPECT_THAT(buffer.host_view(), Each(9U));
  EXPECT_EQ(moved(buffer.statistics()), (Moved{0, 0, 16, 1}));
}

TEST_F(States, DisjointWritesOnBothSidesMergeExactly) {
  auto buffer = synchronized();
  {
    auto const lease = buffer.device_view();
    std::ranges::fill(buffer.host(0, 40), 1U);
    auto queue = sim.create_queue();
    auto const twos = std::vector<std::uint32_t>(10, 2U);
    queue.upload(lease.native().window(200, 40), twos.data(), 40).wait();
  }
  buffer.mark_device_dirty(50, 10);
  EXPECT_EQ(buffer.state(), BufferState::mixed);
  buffer.synchronize();
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  auto expected = counting(100);
  std::fill_n(expected.begin(), 40, 1U);
  std::fill_n(expected.begin() + 50, 10, 2U);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400 + 160, 2, 40, 1}));
}

TEST_F(States, AllocatingBothSidesSynchronizesWithoutACopy) {
  UnifiedBuffer<std::uint32_t> buffer(10, on_sim());
  EXPECT_EQ(&buffer.allocate(), &buffer);
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  EXPECT_TRUE(buffer.is_allocated());
  EXPECT_EQ(moved(buffer.statistics()), Moved{});
  buffer.free();
  EXPECT_EQ(buffer.state(), BufferState::uninitialized);
  buffer.allocate(true, false);
  EXPECT_EQ(buffer.state(), BufferState::host_only);
  buffer.free().free();
  buffer.allocate(false, true);
  EXPECT_EQ(buffer.state(), BufferState::device_only);
}

TEST_F(States, ReleasingACleanDeviceCopyLeavesHostOnly) {
  UnifiedBuffer<std::uint32_t> buffer(10, on_sim());
  buffer.copy_from(counting(10));
  buffer.sync_to_device();
  buffer.release_device();
  EXPECT_EQ(buffer.state(), BufferState::host_only);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{40, 1, 0, 0}));
}

TEST_F(States, ReleasingASoleCopySavesItFirst) {
  UnifiedBuffer<std::uint32_t> buffer(10, on_sim());
  buffer.copy_from(counting(10));
  {
    auto const lease = buffer.device();
  }
  buffer.release_device(sim);
  EXPECT_EQ(buffer.state(), BufferState::host_only);
  EXPECT_EQ(buffer.to_vector(), counting(10));
  buffer.release_host();
  EXPECT_EQ(buffer.state(), BufferState::device_only);
  EXPECT_EQ(buffer.to_vector(), counting(10));
}

TEST_F(States, DiscardForgetsWithoutCopying) {
  UnifiedBuffer<std::uint32_t> buffer(10, on_sim());
  buffer.copy_from(counting(10));
  buffer.discard();
  EXPECT_EQ(buffer.state(), BufferState::uninitialized);
  std::ignore = buffer.device_view();
  EXPECT_EQ(moved(buffer.statistics()), Moved{});
}

TEST_F(States, StrictBuffersWaitForAllocate) {
  auto options = on_sim("strict");
  options.strict = true;
  UnifiedBuffer<std::uint32_t> buffer(10, options);
  EXPECT_THROW(std::ignore = buffer.host(), BufferNotAllocated);
  EXPECT_THROW(std::ignore = buffer.device(), BufferNotAllocated);
  EXPECT_THROW(buffer.fill(1), BufferNotAllocated);
  EXPECT_THROW(buffer.copy_from(counting(10)), BufferNotAllocated);
  EXPECT_EQ(buffer.state(), BufferState::uninitialized);
  buffer.allocate().fill(3);
  EXPECT_THAT(buffer.host_view(), Each(3U));
}

TEST_F(States, UnallocatedBuffersRefuseSyncsAndMarks) {
  UnifiedBuffer<std::uint32_t> buffer(10, on_sim("empty"));
  EXPECT_THROW(buffer.sync_to_device(), BufferNotAllocated);
  EXPECT_THROW(buffer.sync_to_host(), BufferNotAllocated);
  EXPECT_THROW(buffer.synchronize(), BufferNotAllocated);
  EXPECT_THROW(buffer.mark_host_dirty(), BufferNotAllocated);
  try {
    buffer.mark_device_dirty();
    FAIL() << "mark_device_dirty did not throw";
  } catch (BufferNotAllocated const& error) {
    EXPECT_EQ(error.operation, "mark_device_dirty");
    EXPECT_THAT(error.what(), HasSubstr("buffer 'empty'"));
  }
}

TEST_F(States, ZeroElementsAreLegalEverywhere) {
  UnifiedBuffer<std::uint32_t> buffer(0, on_sim());
  EXPECT_EQ(buffer.state(), BufferState::uninitialized);
  EXPECT_TRUE(buffer.host().empty());
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  EXPECT_TRUE(buffer.device().empty());
  buffer.fill(7).copy_from(std::vector<std::uint32_t>{});
  buffer.mark_device_dirty();
  buffer.mark_host_dirty();
  buffer.synchronize();
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  EXPECT_TRUE(buffer.to_vector().empty());
  EXPECT_EQ(moved(buffer.statistics()), Moved{});
  EXPECT_EQ(sim.memory_info().free_bytes, sim.memory_info().total_bytes);
}

TEST_F(States, CpuBuffersChangeStatesWithoutCopies) {
  auto options = on_sim();
  options.device = &device("cpu");
  UnifiedBuffer<std::uint32_t> buffer(10, options);
  buffer.copy_from(counting(10));
  EXPECT_EQ(buffer.state(), BufferState::host_dirty);
  {
    auto const lease = buffer.device_view();
    EXPECT_EQ(buffer.state(), BufferState::synchronized);
    EXPECT_EQ(lease.data(), buffer.host_view().data());
  }
  {
    auto const lease = buffer.device();
    lease.data()[0] = 42;
  }
  EXPECT_EQ(buffer.state(), BufferState::device_dirty);
  EXPECT_EQ(buffer.host_view()[0], 42U);
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  EXPECT_EQ(moved(buffer.statistics()), Moved{});
  {
    UnifiedBuffer<std::uint32_t> fresh(10, options);
    std::ignore = fresh.device_view();
    EXPECT_EQ(fresh.state(), BufferState::device_only);
  }
}

TEST_F(States, TextNamesShapeAndState) {
  UnifiedBuffer<float> buffer({4, 5}, on_sim("weights"));
  EXPECT_EQ(buffer.to_string(), "UnifiedBuffer(shape=(4, 5), element=4 bytes, state=uninitialized, name=weights)");
}

TEST_F(States, ShapesAreCheckedBeforeAnythingExists) {
  EXPECT_THROW(UnifiedBuffer<float>(-1, on_sim()), InvalidArgument);
  EXPECT_THROW(UnifiedBuffer<float>({3, -2}, on_sim()), InvalidArgument);
  EXPECT_THROW(UnifiedBuffer<float>({-1}), InvalidArgument);
  EXPECT_THROW(UnifiedBuffer<float>({-1}, on_sim()), InvalidArgument);
  EXPECT_THROW(UnifiedBuffer<double>(std::size_t{1} << 62, on_sim()), InvalidArgument);
  EXPECT_THROW(UnifiedBuffer<char>(std::size_t{0} - 1, on_sim()), InvalidArgument);
  EXPECT_THROW(UnifiedBuffer<float>({std::size_t{1} << 40, std::size_t{1} << 40}, on_sim()), InvalidArgument);
  try {
    UnifiedBuffer<char> const refused({std::size_t{1} << 40, std::size_t{1} << 40}, on_sim());
    FAIL() << "2^80 elements were taken";
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.argument, "shape");
    EXPECT_EQ(error.requirement, "below 2^64 elements");
  }
  EXPECT_EQ(UnifiedBuffer<float>({std::size_t{1} << 40, std::size_t{1} << 40, std::size_t{0}}, on_sim()).size(), 0U);
  UnifiedBuffer<double> const scalar(Shape{}, on_sim());
  EXPECT_EQ(scalar.size(), 1U);
  EXPECT_TRUE(scalar.shape().empty());
}

TEST_F(States, TheLengthOfEachDimensionIsItsExtent) {
  UnifiedBuffer<float> image({4, 5, 3}, on_sim());
  EXPECT_EQ(image.rank(), 3U);
  EXPECT_EQ(image.extent(0), 4U) << "what len says in Python";
  EXPECT_EQ(image.extent(1), 5U);
  EXPECT_EQ(image.extent(2), 3U);
  EXPECT_EQ(image.size(), 60U) << "all of them";
  try {
    std::ignore = image.extent(3);
    FAIL() << "there are three";
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.argument, "dimension");
    EXPECT_EQ(error.value, "3");
    EXPECT_EQ(error.requirement, "below 3");
  }
  EXPECT_EQ(UnifiedBuffer<float>(7, on_sim()).extent(0), 7U);
  EXPECT_EQ(UnifiedBuffer<float>({0, 5}, on_sim()).extent(0), 0U);
  UnifiedBuffer<float> const braced({7}), braces{7};
  EXPECT_EQ(braced.extent(0), 7U) << "a shape of one dimension";
  EXPECT_EQ(braced.rank(), 1U);
  EXPECT_EQ(braces.extent(0), 7U);
  UnifiedBuffer<float> const scalar(Shape{}, on_sim());
  EXPECT_EQ(scalar.rank(), 0U);
  EXPECT_THROW(std::ignore = scalar.extent(0), InvalidArgument) << "a scalar has no length";
  EXPECT_EQ(image.clone().extent(1), 5U);
  image.resize(9);
  EXPECT_EQ(image.rank(), 1U);
  EXPECT_EQ(image.extent(0), 9U);
  auto const taken = std::move(image);
  EXPECT_EQ(taken.extent(0), 9U);
  EXPECT_EQ(image.extent(0), 0U) << "what was moved from has nothing";
  EXPECT_FALSE(taken.is_allocated());
}

TEST_F(States, UnderManualTrackingOnlyMarksCount) {
  auto options = on_sim();
  options.tracking = Tracking::manual;
  UnifiedBuffer<std::uint32_t> buffer(10, options);
  buffer.copy_from(counting(10));
  buffer.sync_to_device();
  buffer.host()[3] = 99;
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  buffer.mark_host_dirty(3, 1);
  EXPECT_EQ(buffer.state(), BufferState::host_dirty);
  EXPECT_EQ(device_bytes(buffer, sim)[3], 99U);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{44, 2, 0, 0}));
}

}  // namespace
}  // namespace unimem::testing
