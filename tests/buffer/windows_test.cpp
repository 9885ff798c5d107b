#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/sim.hpp>

#include "buffer/windows_of_buffers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

// A device that has no room for all of a buffer gets windows of it: memory for the parts that are used.

namespace unimem::testing {
namespace {

TEST_F(WindowsOfBuffers, SliceOfWhatDoesNotFitIsUsed) {
  auto buffer = counting();
  add(buffer, 1000, 50'000, 7);
  EXPECT_EQ(buffer.statistics().host_to_device_bytes, 4U * 50'000);
  EXPECT_LE(on_device(), 4U * 50'000 + 64 * KiB);
  auto const values = buffer.to_vector();
  for (std::uint32_t i = 0; i < words; ++i) ASSERT_EQ(values[i], i >= 1000 && i < 51'000 ? i + 7 : i) << i;
  EXPECT_EQ(buffer.statistics().device_to_host_bytes, 4U * 50'000);
}

TEST_F(WindowsOfBuffers, PassOverSlicesMovesEachByteOnceEachWay) {
  auto buffer = counting();
  constexpr std::size_t slice = words / 16;
  for (std::size_t from = 0; from < words; from += slice) add(buffer, from, slice, 1);
  auto const values = buffer.to_vector();
  for (std::uint32_t i = 0; i < words; ++i) ASSERT_EQ(values[i], i + 1);
  EXPECT_EQ(buffer.statistics().host_to_device_bytes, 4 * words);
  EXPECT_EQ(buffer.statistics().device_to_host_bytes, 4 * words);
  EXPECT_LE(on_device(), limit);
}

TEST_F(WindowsOfBuffers, WholeCopyIsTakenWhereItFits) {
  manager.set_limit(sim, 8 * MiB);
  auto buffer = counting();
  add(buffer, 0, 10, 1);
  EXPECT_GE(on_device(), 4 * words);
  add(buffer, words / 2, 10, 1);
  EXPECT_EQ(buffer.statistics().host_to_device_bytes, 80U);
}

TEST_F(WindowsOfBuffers, NewBufferKeepsWhatWindowsWrite) {
  auto buffer = make();
  run({{&buffer.core(), bytes(500'000, 1000), Intent::write}}, [](std::span<const HostArgument> arguments) {
    auto* const values = static_cast<std::uint32_t*>(arguments[0].data);
    for (std::uint32_t i = 0; i < 1000; ++i) values[i] = i;
  });
  EXPECT_EQ(buffer.statistics().host_to_device_bytes, 0U);
  auto const values = buffer.to_vector();
  for (std::uint32_t i = 0; i < 1000; ++i) ASSERT_EQ(values[500'000 + i], i);
}

TEST_F(WindowsOfBuffers, OverlappingSlicesSeeEachOthersWrites) {
  auto buffer = counting();
  add(buffer, 0, 100'000, 1);
  add(buffer, 50'000, 100'000, 1);
  add(buffer, 0, 100'000, 1);
  auto const values = buffer.to_vector();
  for (std::uint32_t i = 0; i < 200'000; ++i) {
    auto const times = i < 50'000 ? 2U : i < 100'000 ? 3U : i < 150'000 ? 1U : 0U;
    ASSERT_EQ(values[i], i + times) << i;
  }
  EXPECT_EQ(buffer.statistics().host_to_device_bytes, 4U * 150'000) << "what a window has comes from there";
}

TEST_F(WindowsOfBuffers, LeasedWindowStaysAndTheRestGoes) {
  auto buffer = counting();
  auto const leased = buffer.slice(0, words / 8).device_view(sim);
  for (std::size_t from = words / 8; from < words; from += words / 8) add(buffer, from, words / 8, 1);
  EXPECT_EQ(*reinterpret_cast<std::uint32_t const*>(leased.data()), 0U);
  EXPECT_EQ(buffer.statistics().host_to_device_bytes, 4 * words) << "the leased slice came once";
}

TEST_F(WindowsOfBuffers, LeasesThatPinAllRefuseWithoutLoss) {
  auto buffer = counting();
  auto const one = buffer.slice(0, words / 4).device_view(sim);
  auto const other = buffer.slice(words / 4, words / 4).device_view(sim);
  EXPECT_THROW(add(buffer, words / 2, words / 4, 1), OutOfMemory);
  auto const values = buffer.to_vector();
  for (std::uint32_t i = 0; i < words; ++i) ASSERT_EQ(values[i], i);
}

TEST_F(WindowsOfBuffers, ASliceLargerThanTheDeviceIsRefused) {
  auto buffer = counting();
  EXPECT_THROW(add(buffer, 0, words / 2 + 1, 1), OutOfMemory);
  EXPECT_EQ(buffer.state(), BufferState::host_dirty);
}

TEST_F(WindowsOfBuffers, WholeUseComesFromWindows) {
  auto buffer = counting();
  add(buffer, 0, words / 8, 1);
  manager.set_limit(sim, 16 * MiB);
  add(buffer, 0, words, 1);
  EXPECT_EQ(buffer.statistics().host_to_device_bytes, 4 * words);
  EXPECT_EQ(buffer.statistics().device_to_host_bytes, 0U);
  EXPECT_EQ(buffer.to_vector()[1], 3U);
  EXPECT_EQ(on_device(), 4 * words) << "the window is superseded";
}

TEST_F(WindowsOfBuffers, WholeUseWithoutRoomForBothSavesTheWindowsFirst) {
  auto buffer = counting();
  add(buffer, 0, words / 4, 1);
  add(buffer, words / 4, words / 4, 1);
  manager.set_limit(sim, 4 * MiB);
  add(buffer, 0, words, 1);
  auto const values = buffer.to_vector();
  for (std::uint32_t i = 0; i < words; ++i) ASSERT_EQ(values[i], i < words / 2 ? i + 2 : i + 1);
}

TEST_F(WindowsOfBuffers, SmallSlicesShareAWindow) {
  auto buffer = counting();
  for (std::size_t row = 0; row < 100; ++row) add(buffer, row * 100, 100, 1);
  EXPECT_LE(on_device(), 64 * KiB);
}

TEST_F(WindowsOfBuffers, ResizeKeepsWhatWindowsHold) {
  auto buffer = counting();
  add(buffer, 1000, 50'000, 1);
  buffer.resize(40'000);
  auto const values = buffer.to_vector();
  for (std::uint32_t i = 0; i < 40'000; ++i) ASSERT_EQ(values[i], i >= 1000 ? i + 1 : i);
  add(buffer, 39'000, 1000, 1);
  EXPECT_EQ(buffer.to_vector().back(), 39'999U + 2);
}

TEST_F(WindowsOfBuffers, ReleaseGivesAllWindows) {
  auto buffer = counting();
  add(buffer, 0, 50'000, 1);
  add(buffer, 60'000, 50'000, 1);
  buffer.release_device();
  EXPECT_EQ(on_device(), 0U);
  EXPECT_EQ(buffer.to_vector()[60'000], 60'001U);
}

TEST_F(WindowsOfBuffers, FreeAndDiscardLeaveABufferThatWorks) {
  auto buffer = counting();
  add(buffer, 0, 50'000, 1);
  buffer.discard();
  run({{&buffer.core(), bytes(10, 10), Intent::write}},
      [](std::span<const HostArgument> arguments) { static_cast<std::uint32_t*>(arguments[0].data)[0] = 9; });
  EXPECT_EQ(buffer.to_vector()[10], 9U);
  buffer.free();
  EXPECT_EQ(on_device(), 0U);
  run({{&buffer.core(), bytes(500'000, 10), Intent::write}},
      [](std::span<const HostArgument> arguments) { static_cast<std::uint32_t*>(arguments[0].data)[0] = 8; });
  EXPECT_EQ(buffer.to_vector()[500'000], 8U);
}

TEST_F(WindowsOfBuffers, SynchronizeBringsWindowsUpToDate) {
  auto buffer = counting();
  add(buffer, 0, 50'000, 1);
  buffer.host()[5] = 99;
  buffer.synchronize();
  EXPECT_LE(on_device(), 4U * 50'000 + 64 * KiB) << "no whole copy was asked for";
  add(buffer, 5, 1, 1);
  EXPECT_EQ(buffer.to_vector()[5], 100U);
}

TEST_F(WindowsOfBuffers, FailedWorkInAWindowRestoresTheLastGoodCopy) {
  auto buffer = counting();
  add(buffer, 0, 50'000, 1);
  EXPECT_EQ(buffer.to_vector()[0], 1U);
  EXPECT_THROW(run({{&buffer.core(), bytes(0, 50'000), Intent::read_write}},
                   [](std::span<const HostArgument>) { throw std::runtime_error("gone wrong"); }),
               std::runtime_error);
  EXPECT_THROW(static_cast<void>(buffer.host_view()), std::runtime_error);
  EXPECT_EQ(buffer.to_vector()[0], 1U);
}

TEST_F(WindowsOfBuffers, CopiesBetweenBuffersWorkOnWindows) {
  auto one = counting();
  auto other = counting();
  add(one, 100'000, 50'000, 1);
  copy(one.slice(100'000, 50'000), other.slice(200'000, 50'000));
  auto const values = other.to_vector();
  for (std::uint32_t i = 0; i < 50'000; ++i) ASSERT_EQ(values[200'000 + i], 100'000 + i + 1);
  EXPECT_EQ(values[199'999], 199'999U);
}

TEST_F(WindowsOfBuffers, ADriverWithLessThanIsKnownGetsWindows) {
  MemoryManager other;  // what it has taken this one does not know of
  auto const taken = other.acquire(sim, Location::device, 61 * MiB);
  manager.set_limit(sim, 64 * MiB);
  auto buffer = counting();
  add(buffer, 1000, 1000, 1);
  EXPECT_EQ(buffer.to_vector()[1000], 1001U);
  EXPECT_LE(on_device(), MiB);
}

TEST_F(WindowsOfBuffers, ALostDeviceTakesOnlyWhatItsWindowsAloneHad) {
  auto buffer = counting();
  add(buffer, 1000, 50'000, 1);
  auto const seen = buffer.slice(1000, 25'000).to_vector();
  EXPECT_EQ(seen.front(), 1001U);
  set_sim_faults(sim, {.lose_after = 1});
  EXPECT_EQ(buffer.slice(0, 26'000).to_vector()[25'999], 26'000U);
  EXPECT_EQ(buffer.slice(51'000, 1000).to_vector()[0], 51'000U);
  EXPECT_THROW(std::ignore = buffer.slice(26'000, 25'000).to_vector(), Error);
  EXPECT_THROW(std::ignore = buffer.slice(26'000, 25'000).to_vector(), DataLost) << "by now it is known";
  set_sim_faults(sim, {});
  EXPECT_EQ(buffer.slice(26'000, 25'000).to_vector()[0], 26'001U);
}

TEST_F(WindowsOfBuffers, AFailedSaveLeavesTheWindow) {
  auto buffer = counting();
  constexpr std::size_t slice = words / 8;
  for (std::size_t i = 0; i < 4; ++i) add(buffer, i * slice, slice, 1);
  set_sim_faults(sim, {.fail_download = 1});
  try {
    add(buffer, 4 * slice, slice, 1);
  } catch (Error const&) {  // another window may have been saved instead
  }
  set_sim_faults(sim, {});
  auto const values = buffer.to_vector();
  for (std::uint32_t i = 0; i < 4 * slice; ++i) ASSERT_EQ(values[i], i + 1) << i;
}

/// The smaller window goes for the larger one's sake while that is saved: then all that it had is to be saved, too.
TEST_F(WindowsOfBuffers, AWindowIsSavedWithWhatASupersededOneHad) {
  auto& slow = make_sim({.memory_bytes = 64 * MiB, .latency = std::chrono::milliseconds(2)});
  manager.set_limit(slow, limit);
  auto options = BufferOptions{};
  options.manager = &manager;
  options.device = &slow;
  Buffer buffer(words, options);
  {
    auto const view = buffer.host();
    std::iota(view.begin(), view.end(), 0U);
  }
  constexpr std::size_t slice = words / 16;
  auto const use = [&](std::size_t from, std::size_t count, Intent intent, auto const& body) {
    run(
        {{&buffer.core(), bytes(from, count), intent}},
        [&](std::span<const HostArgument> arguments) { body(static_cast<std::uint32_t*>(arguments[0].data)); }, slow);
  };
  use(0, slice, Intent::read_write, [](std::uint32_t* values) { values[0] = 1000; });
  buffer.core().prefetch(slow, nullptr, bytes(0, slice)).wait();  // it is expected to be used soon
  use(0, 4 * slice, Intent::read, [](std::uint32_t const* values) { EXPECT_EQ(values[0], 1000U); });
  std::atomic<bool> submitted{false};  // while work is pending the smaller one does not go
  auto const work = start(
      {{&buffer.core(), bytes(3 * slice, slice / 2), Intent::read_write}},
      [&](std::span<const HostArgument> arguments) {
        submitted.wait(false);
        static_cast<std::uint32_t*>(arguments[0].data)[0] = 2000;
      },
      slow);
  submitted = true;
  submitted.notify_all();
  work.wait();
  EXPECT_EQ(manager.pool(slow, Location::device).bytes_in_use(), 4 * 5 * slice) << "both windows are there";
  EXPECT_EQ(buffer.core().evict({&slow, Location::device}, {}), 4 * 4 * slice) << "the larger one goes";
  auto const values = buffer.to_vector();
  for (std::uint32_t i = 0; i < words; ++i) ASSERT_EQ(values[i], i == 0 ? 1000 : i == 3 * slice ? 2000 : i) << i;
}

/// Users of two windows that have bytes in common would not see each other's writes there, as in one memory they do.
TEST_F(WindowsOfBuffers, NoWriteGoesPastALease) {
  auto buffer = counting();
  auto leased = buffer.slice(0, 100'000), across = buffer.slice(60'000, 100'000);
  std::optional lease(leased.device());
  auto const refused = [](auto const& write) {
    try {
      write();
      ADD_FAILURE() << "bytes are written in two memories";
    } catch (InvalidArgument const& error) {
      EXPECT_EQ(error.argument, "range");
      EXPECT_EQ(error.value, "bytes [240000, 640000)");
      EXPECT_THAT(error.what(), ::testing::HasSubstr("[0, 400000) of buffer 'rows'"));
    }
  };
  refused([&] { static_cast<void>(across.device()); });
  refused([&] { add(buffer, 60'000, 100'000, 1); });
  refused([&] { across.mark_device_dirty(); });
  EXPECT_EQ(across.device_view().data()[50'000], 110'000U) << "a read goes anywhere";
  add(buffer, 50'000, 50'000, 1);
  EXPECT_EQ(lease->data()[50'000], 50'001U) << "what lies within the lease is one memory with it";
  add(buffer, 100'000, 60'000, 1);
  lease->data()[70'000] = 77;
  buffer.mark_device_dirty(70'000, 1);
  EXPECT_EQ(across.device_view().data()[10'000], 77U);
  lease.reset();
  add(buffer, 60'000, 100'000, 1);
  auto const values = buffer.to_vector();
  for (std::uint32_t i = 0; i < words; ++i) {
    auto const once = i >= 50'000 && i < 160'000 ? 1U : 0U, again = i >= 60'000 && i < 160'000 ? 1U : 0U;
    ASSERT_EQ(values[i], i == 70'000 ? 78 : i + once + again) << i;
  }
}

/// Where the bytes are current in another copy on the device, and where the lease alone is behind.
TEST_F(WindowsOfBuffers, ASyncBringsLeasedWindowsUpToDateWhateverElseIs) {
  auto buffer = counting();
  auto part = buffer.slice(words / 4, 1'000);
  auto const lease = part.device_view(sim);
  auto const shown = [&] {
    sim.synchronize();
    return std::as_const(lease).data()[0];
  };
  manager.set_limit(sim, 64 * MiB);
  buffer.host()[words / 4] = 7;
  buffer.sync_to_device(sim);
  EXPECT_EQ(shown(), 7U);
  buffer.host()[words / 4] = 8;
  run({{&buffer.core(), bytes(0, words), Intent::read}}, [](auto) {});
  buffer.core().fetch(bytes(0, 1)).wait();  // which finds that all of it is current on the device
  part.sync_to_device(sim);
  EXPECT_EQ(shown(), 8U);
  buffer.host()[words / 4] = 9;
  run({{&buffer.core(), bytes(0, words), Intent::read}}, [](auto) {});
  part.prefetch(sim).wait();
  EXPECT_EQ(shown(), 9U);
  buffer.core().validate();
}

TEST_F(WindowsOfBuffers, AWriteThatTwoLeasesHaveSaysSo) {
  auto buffer = counting();
  auto part = buffer.slice(words / 4, 1'000), more = buffer.slice(words / 8, words / 4);
  auto const lease = part.device(sim);
  std::optional reader(more.device_view(sim));
  lease.data()[0] = 42;
  try {
    part.mark_device_dirty(sim, 0, 1);
    ADD_FAILURE() << "the reader would not see it";
  } catch (InvalidArgument const& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("must be outside bytes [524288, 1572864) of buffer 'rows', which "
                                                   "another lease on"));
  }
  reader.reset();
  part.mark_device_dirty(sim, 0, 1);
  EXPECT_EQ(buffer.to_vector()[words / 4], 42U);
}

TEST_F(WindowsOfBuffers, AddressesAreAlignedAsInTheWholeBuffer) {
  auto buffer = counting();
  auto const alignment = sim.info().alignment;
  ASSERT_GT(alignment, sizeof(std::uint64_t));
  // In cells, of their own size, and in what another one has left.
  for (ByteRange const range : {ByteRange{1, 20}, {3 * MiB + 5, 3 * MiB + 9}, {777, 300'001}, {MiB + 13, 2 * MiB}}) {
    for (auto const used : {range, ByteRange{range.begin + 3, range.end}}) {
      run({{&buffer.core(), used, Intent::read}}, [&](std::span<const HostArgument> arguments) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arguments[0].data) % alignment, used.begin % alignment)
            << used.begin << " of " << range.begin << " to " << range.end;
      });
    }
  }
  EXPECT_LE(on_device(), limit) << "there was no room for all of it";
}

TEST_F(WindowsOfBuffers, LaterSlicesOfAnotherSizeKeepEveryByte) {
  auto buffer = counting();
  std::vector<std::uint32_t> expected(words);
  std::iota(expected.begin(), expected.end(), 0U);
  std::uint32_t random = 1;
  auto const below = [&](std::size_t most) {
    random = random * 1664525 + 1013904223;
    return static_cast<std::size_t>(random >> 8U) % most;
  };
  for (int step = 0; step < 400; ++step) {
    auto const from = below(words), count = 1 + below(std::min<std::size_t>(words - from, words / 4));
    add(buffer, from, count, 1);
    for (std::size_t i = from; i < from + count; ++i) ++expected[i];
    if (step % 16 == 0) {
      auto const at = below(words);
      ASSERT_EQ(buffer.host_view()[at], expected[at]) << "step " << step;
    }
    buffer.core().validate();
  }
  EXPECT_EQ(buffer.to_vector(), expected);
}

}  // namespace
}  // namespace unimem::testing
