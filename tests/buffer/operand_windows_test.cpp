#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/sim.hpp>

#include "buffer/windows_of_buffers.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

// How the operands of one operation share windows, and a device that has room for them and for little more.

namespace unimem::testing {
namespace {

class WindowsOfOperands : public WindowsOfBuffers {
 protected:
  static constexpr std::size_t unit = limit / 4 / 16;  // elements: a sixteenth of the memory
  [[nodiscard]] Buffer counting_units(std::size_t units) {
    Buffer buffer(units * unit, {.manager = &manager, .device = &sim});
    auto const view = buffer.host();
    std::iota(view.begin(), view.end(), 0U);
    return buffer;
  }
  [[nodiscard]] static Operand units(Buffer& buffer, std::size_t from, std::size_t count, Intent intent) {
    return {&buffer.core(), bytes(from * unit, count * unit), intent};
  }
  /// Adds the first elements of the operands before the last one to the first of that.
  void sum_up(std::vector<Operand> const& operands) { sum_up(operands, sim); }
  static void sum_up(std::vector<Operand> const& operands, Device& on) {
    auto const body = [](std::span<const HostArgument> arguments) {
      auto& sum = *static_cast<std::uint32_t*>(arguments.back().data);
      for (auto const& one : arguments.first(arguments.size() - 1)) sum += *static_cast<std::uint32_t const*>(one.data);
    };
    run(operands, body, on);
  }
  /// Work on the first unit that fails for want of memory of its own.
  void start_and_lack_memory(Buffer& buffer) {
    auto const body = [&](std::span<const HostArgument>) {
      throw OutOfMemory({.where = std::string(sim.id()) + " device",
                         .limit = limit,
                         .device_free = limit,
                         .holders = {},
                         .reason = "on purpose"});
    };
    static_cast<void>(start({units(buffer, 0, 1, Intent::read_write)}, body, sim).wait_for_error());
  }
};

TEST_F(WindowsOfOperands, OverlappingOperandsWorkInOneWindow) {
  auto buffer = counting();
  run({{&buffer.core(), bytes(0, 1000), Intent::read_write}, {&buffer.core(), bytes(500, 1000), Intent::read_write}},
      [](std::span<const HostArgument> arguments) {
        EXPECT_EQ(static_cast<std::byte*>(arguments[0].data) + 2000, arguments[1].data);
        static_cast<std::uint32_t*>(arguments[0].data)[500] = 77;
        static_cast<std::uint32_t*>(arguments[1].data)[1] = 78;
      });
  auto const values = buffer.to_vector();
  EXPECT_EQ(values[500], 77U);
  EXPECT_EQ(values[501], 78U);
  EXPECT_EQ(values[499], 499U);
}

TEST_F(WindowsOfOperands, SlicesOfTwoBuffersShareTheDevice) {
  auto one = counting();
  auto other = counting();
  for (std::size_t from = 0; from < words; from += words / 8) {
    run({{&one.core(), bytes(from, words / 8), Intent::read},
         {&other.core(), bytes(from, words / 8), Intent::read_write}},
        [](std::span<const HostArgument> arguments) {
          auto const* const source = static_cast<std::uint32_t const*>(arguments[0].data);
          auto* const target = static_cast<std::uint32_t*>(arguments[1].data);
          for (std::size_t i = 0; i < words / 8; ++i) target[i] += source[i];
        });
  }
  auto const values = other.to_vector();
  for (std::uint32_t i = 0; i < words; ++i) ASSERT_EQ(values[i], 2 * i);
}

TEST_F(WindowsOfOperands, AWholeCopyUsedInPartMakesRoomInTheEnd) {
  manager.set_limit(sim, 5 * MiB);
  auto one = counting();
  add(one, 0, 1000, 1);  // all of it fits
  auto other = counting();
  run({{&one.core(), bytes(0, 1000), Intent::read_write}, {&other.core(), bytes(0, words / 2), Intent::read_write}},
      [](std::span<const HostArgument> arguments) {
        static_cast<std::uint32_t*>(arguments[0].data)[0] += 5;
        static_cast<std::uint32_t*>(arguments[1].data)[0] += 6;
      });
  EXPECT_EQ(one.to_vector()[0], 6U);
  EXPECT_EQ(other.to_vector()[0], 6U);
}

/// Each would push the other out without end.
TEST_F(WindowsOfOperands, TwoCopiesThatTheDriverHasNoRoomForBecomeWindows) {
  MemoryManager other;
  auto const taken = other.acquire(sim, Location::device, 58 * MiB);
  manager.set_limit(sim, 64 * MiB);
  auto one = counting(), two = counting();
  run({{&one.core(), bytes(1000, 1000), Intent::read_write}, {&two.core(), bytes(2000, 1000), Intent::read_write}},
      [](std::span<const HostArgument> arguments) {
        for (auto const& argument : arguments) ++*static_cast<std::uint32_t*>(argument.data);
      });
  EXPECT_EQ(one.to_vector()[1000], 1001U);
  EXPECT_EQ(two.to_vector()[2000], 2001U);
}

TEST_F(WindowsOfOperands, OperandsThatAreTogetherAllOfABufferStay) {
  manager.set_limit(sim, 8 * MiB);
  auto const taken = manager.acquire(sim, Location::device, MiB);
  auto one = counting(), two = counting();
  std::vector<Operand> operands;
  for (auto* const buffer : {&one, &two}) {
    operands.push_back({&buffer->core(), bytes(0, words - 1), Intent::read_write});
    operands.push_back({&buffer->core(), bytes(1, words - 1), Intent::read_write});
  }
  EXPECT_THROW(run(operands, [](std::span<const HostArgument>) {}), OutOfMemory);
  EXPECT_EQ(one.to_vector()[words - 1], words - 1);
  EXPECT_EQ(two.to_vector()[words - 1], words - 1);
}

TEST_F(WindowsOfOperands, AnEmptyOperandBesideAllOfABufferNeedsNothingMore) {
  manager.set_limit(sim, 4 * MiB);
  auto other = counting();
  for (std::size_t const at : {std::size_t{0}, words / 2, words}) {
    add(other, 0, words, 1);  // there is no room left
    auto buffer = counting();
    run({{&buffer.core(), bytes(0, words), Intent::read_write}, {&buffer.core(), bytes(at, 0), Intent::read}},
        [](std::span<const HostArgument> arguments) { ++*static_cast<std::uint32_t*>(arguments[0].data); });
    EXPECT_EQ(buffer.to_vector()[0], 1U);
  }
}

TEST_F(WindowsOfOperands, OperandsKeepTheirWindowsWhileRoomIsMade) {
  auto buffer = counting();
  constexpr std::size_t slice = words / 8;
  for (std::size_t i = 0; i < 4; ++i) add(buffer, i * slice, slice, 1);
  auto const before = buffer.statistics().host_to_device_bytes;
  run({{&buffer.core(), bytes(0, slice), Intent::read_write},
       {&buffer.core(), bytes(slice, slice), Intent::read_write},
       {&buffer.core(), bytes(2 * slice, slice), Intent::read_write},
       {&buffer.core(), bytes(6 * slice, slice), Intent::read_write}},
      [](std::span<const HostArgument> arguments) {
        for (auto const& one : arguments) ++*static_cast<std::uint32_t*>(one.data);
      });
  EXPECT_EQ(buffer.statistics().host_to_device_bytes - before, 4 * slice) << "of the one that had no window";
  EXPECT_EQ(buffer.to_vector()[2 * slice], 2 * slice + 2);
}

TEST_F(WindowsOfOperands, ALargeWindowUsedInPartMakesRoomInTheEnd) {
  auto buffer = counting_units(20);
  add(buffer, 0, 15 * unit, 1);
  for (int times = 0; times < 2; ++times) {
    sum_up({{&buffer.core(), bytes(100, 10), Intent::read}, units(buffer, 16, 2, Intent::read_write)});
  }
  EXPECT_EQ(buffer.to_vector()[16 * unit], 16 * unit + 2 * 101);
  EXPECT_EQ(buffer.to_vector()[15 * unit - 1], 15 * unit);
}

TEST_F(WindowsOfOperands, ALargeWindowIsWaitedForWhileWorkReadsIt) {
  auto buffer = counting_units(20);
  auto other = sim.create_queue();
  std::atomic<bool> goes_on{false};
  auto const reads = start(
      {units(buffer, 0, 15, Intent::read)}, [&](std::span<const HostArgument>) { goes_on.wait(false); }, sim, other);
  std::jthread const releases([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    goes_on = true;
    goes_on.notify_all();
  });
  sum_up({{&buffer.core(), bytes(100, 10), Intent::read}, units(buffer, 16, 2, Intent::read_write)});
  EXPECT_EQ(buffer.to_vector()[16 * unit], 16 * unit + 100);
  EXPECT_TRUE(reads.ready());
}

TEST_F(WindowsOfOperands, ALeasedWindowUsedInPartStays) {
  auto buffer = counting_units(20);
  auto const lease = buffer.core().lease(sim, nullptr, bytes(0, 15 * unit), Intent::read, false);
  auto const two = [&] {
    sum_up({{&buffer.core(), bytes(100, 10), Intent::read}, units(buffer, 16, 2, Intent::read_write)});
  };
  EXPECT_THROW(two(), OutOfMemory);
  EXPECT_EQ(on_device(), 4 * 15 * unit);
  EXPECT_EQ(buffer.to_vector()[16 * unit], 16 * unit);
}

TEST_F(WindowsOfOperands, APartReadBesideAllOfItNeedsNothingMore) {
  auto one = counting_units(12), other = counting_units(20);
  auto const before = one.statistics().host_to_device_bytes;
  sum_up({units(one, 6, 6, Intent::read), units(one, 0, 12, Intent::read), units(other, 0, 1, Intent::read_write)});
  EXPECT_EQ(one.statistics().host_to_device_bytes - before, 4 * 12 * unit) << "each byte once";
  EXPECT_EQ(other.to_vector()[0], 6 * unit);
}

TEST_F(WindowsOfOperands, ReadsThatOverlapShareAWindowWhereThereIsNoRoomForTwo) {
  auto one = counting_units(20), other = counting_units(20);
  for (std::size_t const count : {std::size_t{0}, std::size_t{1}}) {
    auto const last = count == 0 ? Intent::write : Intent::read_write;
    run({units(one, 0, 9, Intent::read), units(one, 3, 9, Intent::read), units(other, 0, count, last)},
        [](std::span<const HostArgument> arguments) {
          EXPECT_EQ(static_cast<std::uint32_t const*>(arguments[0].data)[5 * unit], 5 * unit);
          EXPECT_EQ(static_cast<std::uint32_t const*>(arguments[1].data)[5 * unit], 8 * unit);
        });
  }
}

/// A block from the cache is given whole to what needs a little less, which may be there before the operation.
TEST_F(WindowsOfOperands, ABlockThatIsTooLargeIsNotInTheWay) {
  auto& small = make_sim({.memory_bytes = 100 * 4 * unit});
  BufferOptions const options{.manager = &manager, .device = &small};
  for (bool const there_before : {false, true}) {
    {
      Buffer old(97 * unit, options);
      old.fill(1);
      old.sync_to_device();
    }
    Buffer one(91 * unit, options), other(200 * unit, options);
    one.fill(2);
    other.fill(3);
    if (there_before) one.sync_to_device();
    sum_up({units(one, 0, 91, Intent::read_write), units(other, 1, 8, Intent::read_write)}, small);
    EXPECT_EQ(other.to_vector()[unit], 5U);
    manager.cleanup();
  }
}

TEST_F(WindowsOfOperands, WhatWouldNotFitEmptyTakesNothingBack) {
  auto one = counting_units(20), other = counting_units(20);
  add(one, 0, 10 * unit, 1);
  auto const too_much = [&] { sum_up({units(one, 0, 10, Intent::read), units(other, 0, 7, Intent::read_write)}); };
  EXPECT_THROW(too_much(), OutOfMemory);
  auto const before = one.statistics().host_to_device_bytes;
  add(one, 0, 10 * unit, 1);
  EXPECT_EQ(one.statistics().host_to_device_bytes, before) << "its window is still there";
}

TEST_F(WindowsOfOperands, SmallAndEmptyOperandsTakeWhatTheyNeedBeforeAnOperationIsRefused) {
  auto one = counting_units(14), other = counting_units(100), third = counting_units(100);
  for (std::size_t const count : {std::size_t{1}, std::size_t{0}}) {
    run({units(one, 0, 14, Intent::read_write),
         {&other.core(), bytes(7 * unit, count), Intent::read},
         {&other.core(), bytes(50 * unit, count), Intent::read},
         {&third.core(), bytes(60 * unit, count), Intent::read}},
        [](std::span<const HostArgument> arguments) { ++*static_cast<std::uint32_t*>(arguments[0].data); });
  }
  EXPECT_EQ(one.to_vector()[0], 2U);
  EXPECT_GE(on_device(), 4 * 14 * unit);
}

TEST_F(WindowsOfOperands, AnEvictedBlockThatIsTooLargeIsNotInTheWay) {
  auto& small = make_sim({.memory_bytes = 32 * 4 * unit});
  BufferOptions const options{.manager = &manager, .device = &small};
  for (std::size_t const others : {20U, 21U, 22U, 23U}) {
    Buffer c(others * unit, options), one(40 * unit, options), other(40 * unit, options);
    c.fill(1);
    one.fill(2);
    other.fill(3);
    c.sync_to_device();
    sum_up({units(one, 0, 14, Intent::read), units(one, 6, 14, Intent::read), units(other, 0, 12, Intent::read_write)},
           small);
    EXPECT_EQ(other.to_vector()[0], 7U) << others;
  }
}

TEST_F(WindowsOfOperands, WhatTwoManagersHaveNoRoomForTakesNothingBack) {
  auto& small = make_sim({.memory_bytes = MiB});
  MemoryManager second;
  BufferOptions const here{.manager = &manager, .device = &small}, there{.manager = &second, .device = &small};
  Buffer one(150'000, here), other(150'000, there);
  one.fill(1);
  other.fill(2);
  one.sync_to_device();
  EXPECT_THROW(
      sum_up({{&one.core(), bytes(0, 150'000), Intent::read}, {&other.core(), bytes(0, 150'000), Intent::read_write}},
             small),
      OutOfMemory);
  auto const before = one.statistics().host_to_device_bytes;
  one.sync_to_device();
  EXPECT_EQ(one.statistics().host_to_device_bytes, before) << "its copy is still there";
}

TEST_F(WindowsOfOperands, ACopyThatHasNoRoomBesideItsSourceGoesByTheHost) {
  auto one = counting_units(14), other = counting_units(40);
  add(one, 0, 14 * unit, 1);
  auto target = other.slice(20 * unit, 10 * unit);
  copy(one.slice(0, 10 * unit), target);
  EXPECT_EQ(other.to_vector()[20 * unit], 1U);
  EXPECT_EQ(other.to_vector()[30 * unit - 1], 10 * unit);
}

TEST_F(WindowsOfOperands, AFailureOfEarlierWorkIsToldThoughItIsForWantOfMemory) {
  auto one = counting_units(4), other = counting_units(4);
  start_and_lack_memory(one);
  auto const both = [&] { sum_up({units(one, 0, 1, Intent::read), units(other, 0, 1, Intent::read_write)}); };
  EXPECT_THROW(both(), OutOfMemory);
}

TEST_F(WindowsOfOperands, ACopyTellsAFailureOfEarlierWorkThoughItIsForWantOfMemory) {
  auto one = counting_units(4), other = counting_units(4);
  add(one, 0, 4 * unit, 1);
  add(other, 0, 4 * unit, 1);
  start_and_lack_memory(other);
  auto target = other.slice(0, unit);
  EXPECT_THROW(copy(one.slice(0, unit), target), OutOfMemory);
  copy(one.slice(0, unit), target);
  EXPECT_EQ(other.to_vector()[unit - 1], unit);
}

/// It may have begun: it is not begun again.
TEST_F(WindowsOfOperands, WorkThatIsRefusedMemoryItselfIsSubmittedOnce) {
  auto one = counting_units(4), other = counting_units(4);
  int times = 0;
  auto const submit = [&](std::span<const DeviceMemory>, std::span<const Event>) -> Event {
    ++times;
    static_cast<void>(manager.acquire(sim, Location::device, 64 * MiB));
    return {};
  };
  std::vector<Operand> const operands{units(one, 0, 1, Intent::read), units(other, 0, 1, Intent::read_write)};
  EXPECT_THROW(use_on_device(sim.default_queue(), operands, submit), OutOfMemory);
  EXPECT_EQ(times, 1);
}

}  // namespace
}  // namespace unimem::testing
