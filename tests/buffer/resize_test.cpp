#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "device/gate.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

namespace unimem::testing {
namespace {

using ::testing::IsEmpty;

class Resizes : public BufferTest {};

TEST_F(Resizes, GrowingKeepsHostDataWithoutTouchingADevice) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  EXPECT_EQ(&buffer.resize(300), &buffer);
  EXPECT_EQ(buffer.size(), 300U);
  EXPECT_EQ(buffer.size_bytes(), 1200U);
  EXPECT_EQ(buffer.state(), BufferState::host_only);
  EXPECT_EQ(buffer.slice(0, 100).to_vector(), counting(100));
  EXPECT_EQ(moved(sim.transfers()), Moved{});
  buffer.copy_from(counting(200, 100), 100);
  EXPECT_EQ(device_bytes(buffer, sim), counting(300));
  EXPECT_EQ(moved(buffer.statistics()), (Moved{1200, 1, 0, 0}));
}

TEST_F(Resizes, SoleDeviceDataStaysOnTheDevice) {
  for (std::size_t const size : {60U, 300U}) {
    UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
    buffer.copy_from(counting(100));
    add(sim.default_queue(), buffer.slice(0), 1000).wait();
    auto const before = sim.transfers();
    buffer.resize(size);
    EXPECT_EQ(buffer.state(), BufferState::device_only);
    EXPECT_EQ(moved(sim.transfers()), moved(before));
    auto const kept = std::min<std::size_t>(size, 100);
    EXPECT_EQ(sim.transfers().device_to_device_bytes - before.device_to_device_bytes, kept * 4);
    EXPECT_EQ(buffer.slice(0, kept).to_vector(), counting(kept, 1000));
    auto front = buffer.slice(0, kept);
    auto const lease = front.device_view();
    EXPECT_EQ(lease.data()[kept - 1], 1000 + kept - 1);
    buffer.core().validate();
  }
}

TEST_F(Resizes, ShrinkingKeepsTheFront) {
  auto buffer = synchronized();
  buffer.resize(10);
  EXPECT_EQ(buffer.to_vector(), counting(10));
  EXPECT_EQ(device_bytes(buffer, sim), counting(10));
  EXPECT_EQ(moved(buffer.statistics()).down, 0U);
  buffer.core().validate();
}

TEST_F(Resizes, MixedDataIsBroughtTogether) {
  auto buffer = synchronized();
  set(sim.default_queue(), buffer.slice(50, 50), 7);
  std::ranges::fill(buffer.host(0, 10), 3U);
  ASSERT_EQ(buffer.state(), BufferState::mixed);
  buffer.resize(80);
  auto expected = counting(80);
  std::fill_n(expected.begin(), 10, 3U);
  std::fill(expected.begin() + 50, expected.end(), 7U);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400, 1, 120, 1})) << "only what is kept crosses";
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

TEST_F(Resizes, AFreshBufferJustChangesItsSize) {
  UnifiedBuffer<std::uint32_t> buffer({4, 5}, on_sim());
  buffer.resize(7);
  EXPECT_THAT(buffer.shape(), ::testing::ElementsAre(7));
  EXPECT_FALSE(buffer.is_allocated());
  EXPECT_EQ(buffer.state(), BufferState::uninitialized);
  buffer.copy_from(counting(7));
  EXPECT_EQ(device_bytes(buffer, sim), counting(7));
}

TEST_F(Resizes, NothingIsReleasedFromItsDevice) {
  UnifiedBuffer<std::uint32_t> buffer(0, on_sim());
  buffer.prefetch().wait();
  buffer.release_device();
  buffer.resize(3);
  buffer.fill(5);
  EXPECT_EQ(buffer.to_vector(), std::vector<std::uint32_t>(3, 5));
}

TEST_F(Resizes, ToNothingAndBackIsEmptyOfData) {
  UnifiedBuffer<std::uint32_t> buffer(10, on_sim());
  buffer.copy_from(counting(10));
  buffer.sync_to_device();
  buffer.resize(0);
  EXPECT_TRUE(buffer.to_vector().empty());
  EXPECT_EQ(manager.pool(sim, Location::device).statistics().active_bytes, 0U);
  buffer.resize(5);
  buffer.fill(3);
  EXPECT_EQ(device_bytes(buffer, sim), std::vector<std::uint32_t>(5, 3U));
  buffer.core().validate();
}

TEST_F(Resizes, ToTheSameSizeKeepEveryAddress) {
  UnifiedBuffer<std::uint32_t> buffer(10, on_sim());
  buffer.copy_from(counting(10));
  buffer.sync_to_device();
  auto const* const address = buffer.host_view().data();
  buffer.resize(10);
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  EXPECT_EQ(buffer.host_view().data(), address);
  EXPECT_EQ(moved(sim.transfers()), (Moved{40, 1, 0, 0}));
}

TEST_F(Resizes, ThatAreRefusedChangeNothing) {
  UnifiedBuffer<std::uint32_t> buffer(10, on_sim());
  buffer.copy_from(counting(10));
  {
    auto const lease = buffer.device_view();
    EXPECT_THROW(buffer.resize(20), InvalidArgument);
    EXPECT_EQ(lease.data()[9], 9U);
  }
  EXPECT_THROW(buffer.resize(std::size_t{1} << 62), InvalidArgument);
  EXPECT_THROW(buffer.resize(static_cast<std::size_t>(-1)), InvalidArgument);
  EXPECT_EQ(buffer.size(), 10U);
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  EXPECT_EQ(buffer.to_vector(), counting(10));
  EXPECT_EQ(device_bytes(buffer, sim), counting(10));

  std::uint32_t memory[4] = {1, 2, 3, 4};
  auto wrapped = manager.wrap(memory, 4, Location::host, Ownership::borrow());
  EXPECT_THROW(wrapped.resize(8), UnsupportedOperation);
  EXPECT_EQ(wrapped.to_vector(), (std::vector<std::uint32_t>{1, 2, 3, 4}));
}

TEST_F(Resizes, WithoutMemoryLeaveTheBufferAsItWas) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  add(sim.default_queue(), buffer.slice(0), 1).wait();
  EXPECT_THROW(buffer.resize(std::size_t{32} << 20), OutOfMemory) << "128 MiB on a device of 64";
  EXPECT_EQ(buffer.size(), 100U);
  EXPECT_EQ(buffer.state(), BufferState::device_dirty);
  EXPECT_EQ(buffer.to_vector(), counting(100, 1));
  EXPECT_EQ(device_bytes(buffer, sim), counting(100, 1));
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400, 1, 400, 1}));
}

TEST_F(Resizes, WaitForPendingWorkAndKeepItsResult) {
  auto queue = sim.create_queue();
  auto buffer = synchronized();
  std::optional<Gate> gate{queue};
  auto const written = add(queue, buffer.slice(0), 5);
  EXPECT_FALSE(written.ready());
  gate.reset();
  buffer.resize(50);
  EXPECT_TRUE(written.ready());
  EXPECT_EQ(buffer.to_vector(), counting(50, 5));
  EXPECT_EQ(device_bytes(buffer, sim), counting(50, 5));
}

TEST_F(Resizes, ASliceThatNoLongerFitsIsRefused) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  auto front = buffer.slice(0, 10), back = buffer.slice(90, 10);
  buffer.resize(50);
  EXPECT_EQ(front.to_vector(), counting(10));
  try {
    std::ignore = back.host_view();
    FAIL() << "bytes beyond the buffer were handed out";
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.argument, "slice");
    EXPECT_EQ(error.value, "bytes [360, 400)");
    EXPECT_THAT(error.requirement, ::testing::HasSubstr("200"));
  }
  EXPECT_THROW(std::ignore = back.device(), InvalidArgument);
  EXPECT_THROW(back.fill(1), InvalidArgument);
  EXPECT_THROW(back.mark_host_dirty(), InvalidArgument);
  EXPECT_THROW(std::ignore = back.map(MapMode::write), InvalidArgument);
  EXPECT_THROW(std::ignore = back.slice(0, 1), InvalidArgument);
  EXPECT_THROW(copy(back, front), InvalidArgument);
  EXPECT_EQ(buffer.to_vector(), counting(50));
  buffer.resize(100);
  EXPECT_EQ(back.size(), 10U);
  back.fill(4);
  EXPECT_EQ(buffer.at(99), 4U) << "and works once the buffer has grown back";
}

TEST_F(Resizes, AHandleThatNoLongerFitsIsRefused) {
  auto buffer = synchronized();
  UnifiedBuffer<std::uint32_t> second(Shape(100), buffer.shared_core());
  buffer.resize(60);
  EXPECT_THROW(std::ignore = std::as_const(second).host_view(0, 10), InvalidArgument);
  EXPECT_THROW(std::ignore = second.device(sim), InvalidArgument);
  EXPECT_THROW(std::ignore = second.clone(), InvalidArgument);
  EXPECT_EQ(buffer.to_vector(), counting(60));
  buffer.resize(150);
  EXPECT_EQ(second.slice(0, 60).to_vector(), counting(60));
  EXPECT_EQ(second.clone().size(), 100U);
  buffer.core().validate();
}

TEST_F(Resizes, AnOversizedHandleIsNotCopiedOntoItself) {
  auto buffer = synchronized();
  UnifiedBuffer<std::uint32_t> second(Shape(100), buffer.shared_core());
  buffer.resize(60);
  EXPECT_THROW(copy(second, second), InvalidArgument);
  EXPECT_THROW(std::ignore = second.range(), InvalidArgument);
  EXPECT_EQ(buffer.range(), (ByteRange{0, 240}));
  EXPECT_EQ(buffer.to_vector(), counting(60));
}

TEST_F(Resizes, AHandleMustMatchItsCoresSize) {
  auto const buffer = synchronized();
  for (auto const count : {0U, 99U, 101U}) {
    try {
      UnifiedBuffer<std::uint32_t> const another(Shape(count), buffer.shared_core());
      ADD_FAILURE() << count << " elements were taken for 100";
    } catch (SizeMismatch const& error) {
      EXPECT_EQ(error.expected, 400U);
      EXPECT_EQ(error.actual, std::size_t{4} * count);
    }
  }
  // So many bytes more than 64 bits hold that what is left of them would fit.
  auto const wrapped = (std::size_t{1} << 62) + 100;
  EXPECT_THROW(UnifiedBuffer<std::uint32_t>(Shape(wrapped), buffer.shared_core()), InvalidArgument);
  EXPECT_THROW(UnifiedBuffer<std::uint32_t>(Shape(0), std::shared_ptr<BufferCore>{}), InvalidArgument);
  EXPECT_EQ(UnifiedBuffer<std::uint16_t>({10, 20}, buffer.shared_core()).size(), 200U);
}

TEST_F(Resizes, ResetIsAsItWasMade) {
  UnifiedBuffer<std::uint32_t> buffer(10, on_sim());
  buffer.copy_from(counting(10));
  buffer.sync_to_device();
  set(sim.default_queue(), buffer.slice(2, 2), 1);
  std::ignore = buffer.host_view();
  EXPECT_EQ(&buffer.reset(), &buffer);
  EXPECT_EQ(buffer.state(), BufferState::uninitialized);
  EXPECT_FALSE(buffer.is_allocated());
  EXPECT_EQ(buffer.size(), 10U);
  EXPECT_EQ(moved(buffer.statistics()), Moved{});
  EXPECT_THAT(buffer.migrations(), IsEmpty());
  EXPECT_EQ(manager.pool(sim, Location::device).statistics().active_bytes, 0U);
  EXPECT_EQ(manager.pool(device("cpu"), Location::host).statistics().active_bytes, 0U);
  EXPECT_THROW(buffer.mark_host_dirty(), BufferNotAllocated);
  buffer.copy_from(counting(10, 50));
  EXPECT_EQ(device_bytes(buffer, sim), counting(10, 50));
  EXPECT_EQ(moved(buffer.statistics()), (Moved{40, 1, 0, 0}));
}

TEST_F(Resizes, PinningSurvivesAResize) {
  auto options = on_sim();
  options.pinned = true;
  UnifiedBuffer<std::uint32_t> buffer(100, options);
  buffer.copy_from(counting(100));
  auto const pinned = buffer.is_pinned();
  buffer.resize(200);
  EXPECT_EQ(buffer.is_pinned(), pinned);
  EXPECT_EQ(manager.pool(device("cpu"), Location::pinned).statistics().active_bytes != 0, pinned);
  EXPECT_EQ(buffer.slice(0, 100).to_vector(), counting(100));
}

}  // namespace
}  // namespace unimem::testing
