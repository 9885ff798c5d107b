#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <utility>

namespace unimem::testing {
namespace {

using ::testing::Each;

/// The same promises on a driver whose memory has no addresses: everything goes through its queues.
class OnOpenCl : public BufferTest {
 protected:
  [[nodiscard]] BufferOptions on_opencl() {
    auto options = on_sim();
    options.device = &opencl;
    return options;
  }

  /// Writes to device memory as a user's own OpenCL code would.
  static void poke(Queue& queue, DeviceMemory memory, std::size_t index, std::uint32_t value) {
    queue.upload(memory.window(index * 4, 4), &value, 4).wait();
  }

  Device& opencl = device("opencl:0");
};

TEST_F(OnOpenCl, WritesReachTheOtherSideWithOneCopyEach) {
  UnifiedBuffer<std::uint32_t> buffer(1000, on_opencl());
  buffer.copy_from(counting(1000));
  EXPECT_EQ(device_bytes(buffer, opencl), counting(1000));
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  {
    auto const lease = buffer.device();
    EXPECT_EQ(lease.data(), nullptr);
    EXPECT_NE(lease.native().object, 0U);
    poke(opencl.default_queue(), lease.native(), 7, 70);
  }
  EXPECT_EQ(buffer.state(), BufferState::device_dirty);
  auto expected = counting(1000);
  expected[7] = 70;
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{4000, 1, 4000, 1}));
}

TEST_F(OnOpenCl, AnEditMovesOnlyItself) {
  UnifiedBuffer<std::uint32_t> buffer(100'000, on_opencl());
  buffer.copy_from(counting(100'000));
  buffer.sync_to_device();
  std::ranges::fill(buffer.host(5'000, 100), 1U);
  buffer.sync_to_device();
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400'400, 2, 0, 0}));
  auto expected = counting(100'000);
  std::fill_n(expected.begin() + 5'000, 100, 1U);
  EXPECT_EQ(device_bytes(buffer, opencl), expected);
}

TEST_F(OnOpenCl, MixedSidesMerge) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_opencl());
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  {
    auto const lease = buffer.device_view();
    buffer.at(3) = 30;
    poke(opencl.default_queue(), lease.native(), 60, 600);
  }
  buffer.mark_device_dirty(60, 1);
  EXPECT_EQ(buffer.state(), BufferState::mixed);
  buffer.synchronize();
  auto expected = counting(100);
  expected[3] = 30;
  expected[60] = 600;
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, opencl), expected);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{404, 2, 4, 1}));
}

TEST_F(OnOpenCl, FillingACurrentDeviceMovesNothing) {
  UnifiedBuffer<double> buffer(1000, on_opencl());
  buffer.fill(1.0);
  buffer.sync_to_device();
  buffer.fill(2.5);
  EXPECT_EQ(buffer.statistics().host_to_device_copies, 1U);
  EXPECT_THAT(buffer.to_vector(), Each(2.5));
}

TEST_F(OnOpenCl, BuffersTravelBetweenDifferentBackends) {
  UnifiedBuffer<std::uint32_t> buffer(1000, on_opencl());
  buffer.copy_from(counting(1000));
  {
    auto const lease = buffer.device();
    poke(opencl.default_queue(), lease.native(), 0, 9);
  }
  auto expected = counting(1000);
  expected[0] = 9;
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(buffer.statistics().device_to_device_bytes, 4000U);
  {
    auto const lease = buffer.device(sim);
    lease.data()[1] = 8;
  }
  expected[1] = 8;
  EXPECT_EQ(device_bytes(buffer, opencl), expected);
}

TEST_F(OnOpenCl, LargeCopiesAreStagedWhereThatIsAskedFor) {
  auto& staging = device("opencl:0,staging=1MiB");
  EXPECT_EQ(opencl.staging_threshold(), std::nullopt);
  auto options = on_opencl();
  options.device = &staging;
  constexpr std::size_t count = (std::size_t{9} << 20) / 4 + 3;  // two chunks and a tail
  UnifiedBuffer<std::uint32_t> buffer(count, options);
  buffer.copy_from(counting(count));
  buffer.sync_to_device();
  EXPECT_EQ(moved(staging.transfers()), (Moved{count * 4, 3, 0, 0}));
  auto expected = counting(count);
  for (auto const at : {std::size_t{0}, count / 2, count - 1}) {
    auto const lease = buffer.device();
    poke(staging.default_queue(), lease.native(), at, 7);
    expected[at] = 7;
  }
  EXPECT_TRUE(buffer.to_vector() == expected);
  EXPECT_TRUE(device_bytes(buffer, staging) == expected);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{count * 4, 1, count * 4, 1}));
  EXPECT_EQ(buffer.statistics().staged_copies, 2U);
  EXPECT_EQ(manager.pool(device("cpu"), Location::pinned).statistics().active_bytes, 0U);
}

TEST_F(OnOpenCl, TheLimitIsOursAndAWorkingSetBeyondItRuns) {
  manager.set_limit(opencl, std::size_t{1} << 20);
  std::vector<UnifiedBuffer<std::uint32_t>> buffers;
  for (std::uint32_t i = 0; i < 8; ++i) {
    buffers.emplace_back(60'000, on_opencl());
    buffers.back().fill(i);
  }
  for (int round = 0; round < 3; ++round) {
    for (auto& buffer : buffers) {
      auto const lease = buffer.device();
      std::uint32_t first = 0;
      opencl.default_queue().download(&first, lease.native(), 4).wait();
      poke(opencl.default_queue(), lease.native(), 0, first + 1);
      EXPECT_LE(manager.pool(opencl, Location::device).statistics().reserved_bytes, std::size_t{1} << 20);
    }
  }
  for (std::uint32_t i = 0; i < 8; ++i) {
    auto expected = std::vector<std::uint32_t>(60'000, i);
    expected[0] = i + 3;
    EXPECT_EQ(buffers[i].to_vector(), expected);
  }
  UnifiedBuffer<std::uint32_t> large(300'000, on_opencl());
  large.fill(1);
  EXPECT_THROW(std::ignore = large.device(), OutOfMemory);
  EXPECT_THAT(large.to_vector(), Each(1U));
}

TEST_F(OnOpenCl, AdviceIsTakenAndChangesNothing) {
  UnifiedBuffer<std::uint32_t> buffer(1000, on_opencl());
  buffer.advise(Advice::read_mostly).advise(Advice::preferred_location).advise(Advice::accessed_by, sim);
  buffer.copy_from(counting(1000));
  buffer.sync_to_device();
  buffer.unadvise(Advice::read_mostly).advise(Advice::preferred_location, sim);
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  EXPECT_EQ(device_bytes(buffer, opencl), counting(1000));
  EXPECT_EQ(moved(buffer.statistics()), (Moved{4000, 1, 0, 0}));
  EXPECT_EQ(buffer.advice().size(), 2U);
}

TEST_F(OnOpenCl, TheTimesOfCopiesAreKnownWhereTheDriverWasAskedForThem) {
  for (bool const asked : {false, true}) {
    auto& home = asked ? device("opencl:0,profile=1") : opencl;
    auto options = on_opencl();
    options.device = &home;
    auto const before = home.transfers();
    UnifiedBuffer<std::uint32_t> buffer(100'000, options);
    buffer.copy_from(counting(100'000));
    {
      auto const lease = buffer.device();
      poke(home.default_queue(), lease.native(), 7, 70);  // a copy of the device's that is none of the buffer's
    }
    std::ignore = buffer.to_vector();
    auto const counts = buffer.statistics();
    auto const there = home.transfers().since(before);
    EXPECT_EQ(counts.device_to_host_nanoseconds, there.device_to_host_nanoseconds);
    EXPECT_LE(counts.host_to_device_nanoseconds, there.host_to_device_nanoseconds);
    if (asked && there.untimed_copies == 0) {
      EXPECT_GT(counts.host_to_device_nanoseconds, 0U);
      EXPECT_GT(counts.device_to_host_nanoseconds, 0U);
      EXPECT_EQ(counts.untimed_copies, 0U);
    } else if (!asked) {
      EXPECT_EQ(counts.host_to_device_nanoseconds + counts.device_to_host_nanoseconds, 0U);
      EXPECT_EQ(counts.untimed_copies, 2U);
    }
  }
}

/// A device that shares its memory with the host: a buffer on it has one copy, which is the device's own.
class SharedByOpenCl : public OnOpenCl {
 protected:
  void SetUp() override {
    try {
      shared = &device("opencl:0,zero_copy=1");
    } catch (UnsupportedOperation const& reason) {
      GTEST_SKIP() << reason.what();
    }
    program = shared->compile({"bump", R"(
      UNIMEM_KERNEL bump(UNIMEM_BUFFER(uint, x), uint by) { UNIMEM_DATA(uint, x)[UNIMEM_ITEM_X] += by; })",
                               nullptr});
  }

  [[nodiscard]] BufferOptions on_shared(Location location = Location::device) {
    auto options = on_sim();
    options.device = shared;
    options.location = location;
    return options;
  }

  /// Adds to every element by a kernel of the driver.
  Event bump(Queue& queue, BufferSlice<std::uint32_t> const& slice, std::uint32_t value) {
    Operand const operand{&slice.core(), slice.range(), Intent::read_write};
    return use_on_device(queue, {&operand, 1}, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
      std::array<KernelArgument, 2> arguments;
      arguments[0].memory = memory.front();
      arguments[1].kind = KernelArgument::Kind::scalar;
      std::memcpy(arguments[1].scalar.data(), &value, sizeof value);
      arguments[1].scalar_bytes = sizeof value;
      return queue.run(program, Range{slice.size()}, arguments, needs);
    });
  }

  Device* shared = nullptr;
  std::shared_ptr<Program const> program;
};

TEST_F(SharedByOpenCl, BothSidesSeeWritesWithoutACopy) {
  for (auto const location : {Location::device, Location::unified}) {
    auto const before = shared->transfers();
    UnifiedBuffer<std::uint32_t> buffer(1000, on_shared(location));
    buffer.copy_from(counting(1000));
    auto const* const address = buffer.host_view().data();
    EXPECT_EQ(buffer.device_view().data(), address);
    EXPECT_EQ(buffer.state(), BufferState::synchronized);
    for (std::uint32_t round = 0; round < 20; ++round) {
      bump(shared->default_queue(), buffer.slice(0), 1);
      EXPECT_EQ(buffer.state(), BufferState::device_dirty);
      EXPECT_EQ(buffer.at(999), 999 + 101 * round + 1);
      for (auto& element : buffer.host()) element += 100;
      EXPECT_EQ(buffer.state(), BufferState::host_dirty);
    }
    EXPECT_EQ(buffer.to_vector(), counting(1000, 20 * 101));
    EXPECT_EQ(buffer.host_view().data(), address);
    buffer.slice(10, 20).fill(5);
    bump(shared->default_queue(), buffer.slice(20, 20), 1).wait();
    auto mapping = buffer.map(MapMode::write, 30, 10);
    for (auto& element : mapping) ++element;
    mapping.unmap();
    auto expected = counting(1000, 20 * 101);
    std::fill_n(expected.begin() + 10, 20, 5U);
    for (std::size_t i = 20; i < 40; ++i) ++expected[i];
    for (std::size_t i = 30; i < 40; ++i) ++expected[i];
    EXPECT_EQ(buffer.to_vector(), expected);
    EXPECT_EQ(moved(buffer.statistics()), Moved{});
    EXPECT_EQ(moved(shared->transfers()), moved(before));
    EXPECT_GE(manager.pool(*shared, Location::unified).statistics().active_bytes, 4000U);
    buffer.core().validate();
  }
  EXPECT_EQ(manager.pool(*shared, Location::unified).statistics().active_bytes, 0U);
}

TEST_F(SharedByOpenCl, TheCpuWorksOnTheSameMemoryAndOtherDevicesGetCopies) {
  auto& cpu = device("cpu");
  UnifiedBuffer<std::uint32_t> buffer(1000, on_shared());
  buffer.copy_from(counting(1000));
  bump(shared->default_queue(), buffer.slice(0), 1);
  add(cpu.default_queue(), buffer.slice(0), 10);
  bump(shared->default_queue(), buffer.slice(0), 100);
  add(sim.default_queue(), buffer.slice(0), 1000);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{4000, 1, 0, 0})) << "to the one that has memory of its own";
  bump(shared->default_queue(), buffer.slice(0), 10'000);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{4000, 1, 4000, 1}));
  EXPECT_EQ(buffer.to_vector(), counting(1000, 11'111));
  {
    auto const lease = buffer.device(cpu);
    EXPECT_EQ(lease.data(), buffer.host_view().data());
    lease.data()[0] = 1;
  }
  {
    auto const lease = buffer.device();
    EXPECT_EQ(lease.data()[0], 1U);
  }
  EXPECT_EQ(device_bytes(buffer, opencl).front(), 1U) << "the same hardware without sharing";
  buffer.core().validate();
}

TEST_F(SharedByOpenCl, MemoryThatIsNotItsOwnIsCopiedToIt) {
  std::vector<std::uint32_t> memory = counting(1000);
  auto wrapped = manager.wrap(memory.data(), memory.size(), Location::host, Ownership::borrow());
  UnifiedBuffer<std::uint32_t> elsewhere(1000, on_sim());
  elsewhere.copy_from(counting(1000));
  for (auto* const buffer : {&wrapped, &elsewhere}) {
    bump(shared->default_queue(), buffer->slice(0), 7);
    EXPECT_EQ(buffer->to_vector(), counting(1000, 7));
    EXPECT_EQ(moved(buffer->statistics()), (Moved{4000, 1, 4000, 1}));
    buffer->core().validate();
  }
}

TEST_F(SharedByOpenCl, EveryOperationOfABufferWorks) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_shared(Location::unified));
  EXPECT_TRUE(buffer.prefetch().ready()) << "nothing to bring";
  buffer.copy_from(counting(100));
  buffer.prefetch().wait();
  buffer.sync_to_device();
  buffer.sync_to_host();
  auto [twin, copied] = buffer.clone_async();
  copied.wait();
  bump(shared->default_queue(), buffer.slice(0), 1);
  buffer.resize(200);
  bump(shared->default_queue(), buffer.slice(0, 100), 1);
  EXPECT_EQ(buffer.slice(0, 100).to_vector(), counting(100, 2));
  std::vector<std::uint32_t> out(100);
  bump(shared->default_queue(), buffer.slice(0, 100), 1);
  buffer.slice(0, 100).copy_to_async(out).wait();
  EXPECT_EQ(out, counting(100, 3));
  buffer.slice(0, 100).copy_from_async(counting(100, 50)).wait();
  buffer.slice(100, 100).fill_async(9).wait();
  bump(shared->default_queue(), buffer.slice(0), 1);
  EXPECT_EQ(buffer.slice(0, 100).to_vector(), counting(100, 51));
  EXPECT_THAT(buffer.slice(100, 100).to_vector(), Each(10U));
  copy(twin.slice(0, 50), buffer.slice(150, 50));
  EXPECT_EQ(buffer.slice(150, 50).to_vector(), counting(50));
  buffer.release_device();
  buffer.release_host();
  EXPECT_EQ(buffer.slice(150, 50).to_vector(), counting(50));
  buffer.mark_device_dirty(0, 10);
  buffer.mark_host_dirty();
  buffer.discard();
  buffer.free();
  EXPECT_FALSE(buffer.is_allocated());
  bump(shared->default_queue(), twin.slice(0), 5);
  twin = UnifiedBuffer<std::uint32_t>(10, on_shared());  // with work on it
  EXPECT_EQ(moved(buffer.statistics()), Moved{});
  shared->synchronize();
  EXPECT_EQ(manager.pool(*shared, Location::unified).statistics().active_bytes, 0U);
}

}  // namespace
}  // namespace unimem::testing
