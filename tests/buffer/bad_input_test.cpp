#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "device/gate.hpp"

#include <functional>
#include <limits>
#include <optional>
#include <vector>

namespace unimem::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr auto largest = std::numeric_limits<std::size_t>::max();

class BadInput : public BufferTest {
 protected:
  [[nodiscard]] UnifiedBuffer<std::uint32_t> synchronized() { return BufferTest::synchronized(100, "field"); }

  /// As it was: the state, the bytes on both sides, and nothing moved.
  void expect_untouched(UnifiedBuffer<std::uint32_t>& buffer) {
    EXPECT_EQ(buffer.state(), BufferState::synchronized);
    EXPECT_EQ(moved(buffer.statistics()), (Moved{400, 1, 0, 0}));
    EXPECT_EQ(buffer.to_vector(), counting(100));
    EXPECT_EQ(device_bytes(buffer, sim), counting(100));
    EXPECT_EQ(buffer.statistics().conflicting_marks, 0U);
    buffer.core().validate();
  }
};

/// A device that the next command finds gone is told so only by one.
void lose(Device& device) {
  set_sim_faults(device, {.lose_after = 1});
  std::byte nothing{};
  auto const memory = device.allocate(1, Location::device);
  EXPECT_THROW(device.default_queue().upload(memory, &nothing, 1).wait(), DeviceError);
  device.release(memory, Location::device);
  ASSERT_TRUE(device.is_lost());
}

template <class Elements>
void expect_windows_checked(Elements& elements, std::size_t size) {
  struct Window {
    std::size_t offset, count;
  };
  for (auto const& [offset, count] :
       {Window{0, size + 1}, Window{size, 1}, Window{size + 1, 0}, Window{size + 1, all}, Window{5, largest - 1},
        Window{largest - 1, 2}, Window{largest, 1}, Window{largest / 4 + 2, 1}, Window{static_cast<std::size_t>(-1), 0},
        Window{0, static_cast<std::size_t>(-2)}, Window{std::size_t{1} << 62, std::size_t{1} << 62}}) {
    SCOPED_TRACE(::testing::Message() << offset << ", " << count);
    EXPECT_THROW(std::ignore = elements.host(offset, count), InvalidArgument);
    EXPECT_THROW(std::ignore = elements.host_view(offset, count), InvalidArgument);
    EXPECT_THROW(std::ignore = elements.host_overwrite(offset, count), InvalidArgument);
    EXPECT_THROW(std::ignore = elements.map(MapMode::discard, offset, count), InvalidArgument);
    EXPECT_THROW(std::ignore = elements.slice(offset, count), InvalidArgument);
    EXPECT_THROW(elements.fill(7, offset, count), InvalidArgument);
    EXPECT_THROW(std::ignore = elements.fill_async(7, offset, count), InvalidArgument);
    EXPECT_THROW(elements.mark_host_dirty(offset, count), InvalidArgument);
    EXPECT_THROW(elements.mark_device_dirty(offset, count), InvalidArgument);
  }
  std::vector<std::uint32_t> data(2, 7U);
  for (auto const offset : {size - 1, size, size + 1, largest - 1, largest}) {
    SCOPED_TRACE(offset);
    EXPECT_THROW(elements.copy_from(data, offset), SizeMismatch);
    EXPECT_THROW(elements.copy_to(data, offset), SizeMismatch);
    EXPECT_THROW(std::ignore = elements.copy_from_async(data, offset), SizeMismatch);
    EXPECT_THROW(std::ignore = elements.copy_to_async(data, offset), SizeMismatch);
  }
  EXPECT_THAT(data, Each(7U));
  for (auto const index : {size, largest, static_cast<std::size_t>(-1)}) {
    EXPECT_THROW(std::ignore = elements.at(index), InvalidArgument);
  }
}

TEST_F(BadInput, EveryBufferOperationRefusesWindowsThatEscape) {
  auto buffer = synchronized();
  expect_windows_checked(buffer, 100);
  expect_untouched(buffer);
}

TEST_F(BadInput, EverySliceOperationRefusesWindowsThatEscape) {
  auto buffer = synchronized();
  auto slice = buffer.slice(20, 30);
  expect_windows_checked(slice, 30);
  auto inner = slice.slice(29, 1);
  expect_windows_checked(inner, 1);
  expect_untouched(buffer);
}

TEST_F(BadInput, TheRefusalNamesTheValueAndTheLimit) {
  auto buffer = synchronized();
  try {
    std::ignore = buffer.slice(90, 20);
    FAIL() << "ten elements beyond the end";
  } catch (InvalidArgument const& error) {
    EXPECT_THAT(error.what(), HasSubstr("20"));
    EXPECT_THAT(error.what(), HasSubstr("10"));
  }
}

TEST_F(BadInput, RefusedWindowsOfAFreshBufferAllocateNothing) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  EXPECT_THROW(std::ignore = buffer.host(101, 1), InvalidArgument);
  EXPECT_THROW(buffer.fill(1, 50, 51), InvalidArgument);
  EXPECT_THROW(std::ignore = buffer.slice(101), InvalidArgument);
  EXPECT_THROW(std::ignore = buffer.map(MapMode::write, 1, 100), InvalidArgument);
  EXPECT_FALSE(buffer.is_allocated());
  EXPECT_EQ(buffer.state(), BufferState::uninitialized);
}

template <class Handle>
void expect_empty_handle(Handle& handle) {
  EXPECT_THROW(std::ignore = handle.host(), InvalidArgument);
  EXPECT_THROW(std::ignore = handle.host_view(), InvalidArgument);
  EXPECT_THROW(std::ignore = handle.host_overwrite(), InvalidArgument);
  EXPECT_THROW(std::ignore = handle.device(), InvalidArgument);
  EXPECT_THROW(std::ignore = handle.device_view(), InvalidArgument);
  EXPECT_THROW(std::ignore = handle.device_overwrite(), InvalidArgument);
  EXPECT_THROW(std::ignore = handle.map(MapMode::read), InvalidArgument);
  EXPECT_THROW(std::ignore = handle.slice(0), InvalidArgument);
  EXPECT_THROW(std::ignore = handle.template as<float>(), InvalidArgument);
  EXPECT_THROW(std::ignore = handle.at(0), InvalidArgument);
  EXPECT_THROW(std::ignore = handle.to_vector(), InvalidArgument);
  EXPECT_THROW(std::ignore = handle.prefetch(), InvalidArgument);
  EXPECT_THROW(handle.fill(1), InvalidArgument);
  EXPECT_THROW(handle.copy_from(std::vector<std::uint32_t>{}), InvalidArgument);
  EXPECT_THROW(handle.sync_to_device(), InvalidArgument);
  EXPECT_THROW(handle.sync_to_host(), InvalidArgument);
  EXPECT_THROW(handle.synchronize(), InvalidArgument);
  EXPECT_THROW(std::ignore = handle.synchronize_async(), InvalidArgument);
  EXPECT_THROW(handle.mark_host_dirty(), InvalidArgument);
  EXPECT_THROW(handle.mark_device_dirty(), InvalidArgument);
}

/// What `make` says of the count it is given, or nothing if it takes it.
template <class Make>
std::string refusal(Make const& make) {
  try {
    make();
    return {};
  } catch (InvalidArgument const& error) {
    return error.argument + " " + error.requirement;
  }
}

TEST_F(BadInput, ConstructorAndResizeShareOneSizeLimit) {
  constexpr auto most_bytes = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());
  auto const compared = [&]<class T>(T, std::size_t count) {
    SCOPED_TRACE(::testing::Message() << count << " elements of " << sizeof(T) << " bytes");
    UnifiedBuffer<T> buffer(1, on_sim());
    auto const by_constructor = refusal([&] { std::ignore = UnifiedBuffer<T>(count, on_sim()); });
    auto const by_resize = refusal([&] { buffer.resize(count); });
    EXPECT_EQ(by_constructor, by_resize);
    EXPECT_EQ(by_constructor.empty(), count <= most_bytes / sizeof(T));
    EXPECT_EQ(buffer.size(), by_resize.empty() ? count : 1U);
  };
  for (auto const count : {most_bytes - 1, most_bytes, most_bytes + 1, all}) compared(std::uint8_t{}, count);
  for (auto const count : {most_bytes / 8, most_bytes / 8 + 1, all / 8, all / 8 + 1, all})
    compared(std::uint64_t{}, count);
}

TEST_F(BadInput, EveryOperationRefusesAMovedFromBuffer) {
  auto buffer = synchronized();
  auto taken = std::move(buffer);
  expect_empty_handle(buffer);
  EXPECT_THROW(std::ignore = buffer.clone(), InvalidArgument);
  EXPECT_THROW(buffer.resize(5), InvalidArgument);
  EXPECT_THROW(buffer.free(), InvalidArgument);
  EXPECT_THROW(copy(taken, buffer), Error);
  EXPECT_THROW(copy(buffer, taken), Error);
  EXPECT_EQ(buffer.size(), 0U) << "asking what it has gives nothing";
  EXPECT_EQ(buffer.state(), BufferState::uninitialized);
  EXPECT_FALSE(buffer.is_allocated());
  EXPECT_FALSE(buffer.valid_on(sim));
  expect_untouched(taken);
  buffer = UnifiedBuffer<std::uint32_t>(5, on_sim());
  buffer.fill(1);
  EXPECT_THAT(buffer.to_vector(), Each(1U)) << "it may be assigned to";
}

TEST_F(BadInput, ASliceOfNothingAtAllSaysSo) {
  BufferSlice<std::uint32_t> slice;
  EXPECT_EQ(slice.size(), 0U);
  expect_empty_handle(slice);
  EXPECT_THROW(std::ignore = slice.state(), InvalidArgument);
  auto buffer = synchronized();
  auto moved_from = buffer.slice(0, 10);
  auto const taken = std::move(moved_from);
  expect_empty_handle(moved_from);
  EXPECT_EQ(taken.to_vector(), counting(10));
  slice = buffer.slice(3, 2);
  EXPECT_EQ(slice.to_vector(), counting(2, 3));
  expect_untouched(buffer);
}

TEST_F(BadInput, UnallocatedSlicesRefuseMarksAndSyncs) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim("bare"));
  auto slice = buffer.slice(10, 10);
  for (auto const& operation : std::vector<std::function<void()>>{
           [&] { slice.mark_host_dirty(); }, [&] { slice.mark_device_dirty(); }, [&] { slice.sync_to_device(); },
           [&] { slice.sync_to_host(); }, [&] { slice.synchronize(); },
           [&] { std::ignore = slice.sync_to_device_async(); }, [&] { std::ignore = slice.sync_to_host_async(); },
           [&] { std::ignore = slice.synchronize_async(); }}) {
    try {
      operation();
      ADD_FAILURE() << "there is nothing to mark or to sync";
    } catch (BufferNotAllocated const& error) {
      EXPECT_EQ(error.buffer, "buffer 'bare'");
    }
  }
  EXPECT_FALSE(buffer.is_allocated());
}

TEST_F(BadInput, StrictBuffersRefuseEveryAccessBeforeAllocate) {
  auto options = on_sim("strict");
  options.strict = true;
  UnifiedBuffer<std::uint32_t> buffer(10, options), to(10, on_sim());
  EXPECT_THROW(std::ignore = buffer.map(MapMode::write), BufferNotAllocated);
  auto const slice = buffer.slice(0, 5);
  EXPECT_THROW(std::ignore = slice.host_view(), BufferNotAllocated);
  EXPECT_THROW(std::ignore = buffer.prefetch(), BufferNotAllocated);
  EXPECT_THROW(std::ignore = buffer.fill_async(1), BufferNotAllocated);
  EXPECT_THROW(copy(buffer, to), BufferNotAllocated);
  EXPECT_THROW(copy(to, buffer), BufferNotAllocated);
  EXPECT_FALSE(buffer.is_allocated());
  EXPECT_FALSE(to.is_allocated());
}

TEST_F(BadInput, TheConflictOfOverlappingSlicesNamesBothWriters) {
  auto buffer = synchronized();
  auto left = buffer.slice(0, 60), right = buffer.slice(40, 60);
  std::ranges::fill(left.host(), 5U);
  try {
    right.mark_device_dirty();
    FAIL() << "elements 40 to 59 have two writers";
  } catch (CoherenceConflict const& error) {
    EXPECT_EQ(error.buffer, "buffer 'field'");
    EXPECT_EQ(error.earlier.place, "host");
    EXPECT_EQ(error.earlier.begin, 0U);
    EXPECT_EQ(error.earlier.end, 240U);
    EXPECT_EQ(error.later.place, sim.id());
    EXPECT_EQ(error.later.begin, 160U);
    EXPECT_EQ(error.later.end, 400U);
  }
  EXPECT_EQ(buffer.state(), BufferState::host_dirty) << "the first writer's bytes stand";
  auto expected = counting(100);
  std::fill_n(expected.begin(), 60, 5U);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(buffer.statistics().conflicting_marks, 0U);
}

TEST_F(BadInput, DeviceLossBeforeACopySparesTheHost) {
  auto buffer = synchronized();
  buffer.copy_from(counting(100, 50));
  set_sim_faults(sim, {.lose_after = 1});
  for (int tries = 0; tries < 3; ++tries) {
    try {
      buffer.sync_to_device();
      FAIL() << "the device is gone";
    } catch (DeviceError const& error) {
      EXPECT_EQ(error.code_name, "DEVICE_LOST");
    }
    EXPECT_EQ(buffer.state(), BufferState::host_dirty);
  }
  EXPECT_EQ(buffer.to_vector(), counting(100, 50));
  EXPECT_EQ(device_bytes(buffer, other), counting(100, 50)) << "another device serves as well";
  buffer.core().validate();
}

TEST_F(BadInput, DeviceLossAmidSeveralCopiesSparesTheHost) {
  UnifiedBuffer<std::byte> buffer(1 << 20, on_sim());
  buffer.fill(std::byte{1});
  buffer.sync_to_device();
  for (std::size_t i = 0; i < 4; ++i) std::ranges::fill(buffer.host(i << 18, 100 + i), std::byte{2});  // no rectangle
  set_sim_faults(sim, {.lose_after = 3});
  EXPECT_THROW(buffer.sync_to_device(), DeviceError);
  EXPECT_EQ(sim.transfers().host_to_device_copies, 3U) << "the first, and two of the four";
  std::vector<std::byte> expected(1 << 20, std::byte{1});
  for (std::size_t i = 0; i < 4; ++i) {
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(i << 18), 100 + i, std::byte{2});
  }
  EXPECT_EQ(buffer.to_vector(), expected);
  set_sim_faults(sim, {});
  buffer.sync_to_device();
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  buffer.core().validate();
}

TEST_F(BadInput, DeviceLossAfterACopySparesTheHost) {
  auto buffer = synchronized();
  lose(sim);
  EXPECT_EQ(buffer.to_vector(), counting(100)) << "the host has it all";
  buffer.fill(3, 0, 10);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400, 1, 0, 0})) << "and is where filling goes on";
  auto expected = counting(100);
  std::fill_n(expected.begin(), 10, 3U);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, other), expected);
  EXPECT_THROW(buffer.sync_to_device(sim), DeviceError);
  EXPECT_EQ(buffer.to_vector(), expected);
}

TEST_F(BadInput, SoleBytesOfALostDeviceAreLost) {
  auto buffer = synchronized();
  set(sim.default_queue(), buffer.slice(50, 50), 9).wait();
  set_sim_faults(sim, {.lose_after = 1});
  EXPECT_THROW(std::ignore = buffer.host_view(), Error);
  try {
    std::ignore = buffer.host_view();
    FAIL() << "garbage was read";
  } catch (DataLost const& error) {
    EXPECT_EQ(error.buffer, "buffer 'field'");
    EXPECT_EQ(error.begin, 200U);
    EXPECT_EQ(error.end, 400U);
    EXPECT_THAT(error.cause, HasSubstr(std::string(sim.id())));
  }
  EXPECT_THROW(std::ignore = buffer.device_view(other), DataLost);
  EXPECT_EQ(buffer.slice(0, 50).to_vector(), counting(50)) << "the rest is there";
  buffer.slice(50, 50).copy_from(counting(50, 7));
  auto expected = counting(100);
  std::iota(expected.begin() + 50, expected.end(), 7U);
  EXPECT_EQ(buffer.to_vector(), expected) << "and so is what is written anew";
  EXPECT_EQ(device_bytes(buffer, other), expected);
  buffer.core().validate();
}

TEST_F(BadInput, CopyingFromALostSourceSparesTheTarget) {
  auto source = synchronized();
  set(sim.default_queue(), source.slice(0), 9).wait();
  auto options = on_sim("target");
  options.device = &other;
  UnifiedBuffer<std::uint32_t> target(100, options);
  target.fill(4);
  lose(sim);
  EXPECT_THROW(copy(source, target), DataLost);
  EXPECT_THAT(target.to_vector(), Each(4U));
  EXPECT_THAT(device_bytes(target, other), Each(4U));
  target.core().validate();
}

TEST_F(BadInput, LosingTheSourceMidCopySparesTheTarget) {
  auto& island = make_sim({.memory_bytes = std::size_t{64} << 20, .peer = false});
  UnifiedBuffer<std::uint32_t> source(std::size_t{3} << 20, on_sim());
  source.fill(9);
  source.sync_to_device();
  source.release_host();
  auto options = on_sim("target");
  options.device = &island;
  UnifiedBuffer<std::uint32_t> target(source.size(), options);
  target.fill(4);
  target.sync_to_device();
  set_sim_faults(sim, {.lose_after = 2});  // the second of three chunks
  auto const copied = copy_async(source, target);
  EXPECT_THROW(copied.wait(), DeviceError);
  EXPECT_THROW(std::ignore = target.host_view(), DeviceError);
  std::vector<std::uint32_t> const fours(target.size(), 4U);
  EXPECT_TRUE(target.to_vector() == fours) << "its last good copy, though a chunk had arrived";
  EXPECT_TRUE(device_bytes(target, island) == fours);
  EXPECT_THROW(std::ignore = source.host_view(), DataLost);
  target.core().validate();
  source.core().validate();
}

TEST_F(BadInput, AFailedReadSpoilsNoLaterSync) {
  auto buffer = synchronized();
  set(sim.default_queue(), buffer.slice(50, 50), 9).wait();
  set_sim_faults(sim, {.fail_download = 1});
  EXPECT_THROW(std::ignore = buffer.host_view(), DeviceError);
  std::ranges::fill(buffer.host_overwrite(40, 30), 7U);
  buffer.slice(40, 30).sync_to_device(other);
  auto expected = counting(100);
  std::fill(expected.begin() + 50, expected.end(), 9U);
  std::fill_n(expected.begin() + 40, 30, 7U);
  EXPECT_EQ(device_bytes(buffer, other), expected);
  EXPECT_EQ(buffer.to_vector(), expected);
}

}  // namespace
}  // namespace unimem::testing
