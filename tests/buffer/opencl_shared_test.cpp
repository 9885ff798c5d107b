#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "device/gate.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <utility>

namespace unimem::testing {
namespace {

using ::testing::Each;

/// A device that shares its memory with the host: a buffer on it has one copy, which is the device's own.
class SharedByOpenCl : public BufferTest {
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

  Device& opencl = device("opencl:0");
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

TEST_F(SharedByOpenCl, OnlyDevicesWithOwnMemoryGetCopies) {
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

TEST_F(SharedByOpenCl, HostReadsAwaitMarkedWorkOfBothDevices) {
  auto& cpu = device("cpu");
  UnifiedBuffer<std::uint32_t> buffer(1000, on_shared());
  buffer.fill(1);
  auto const memory = buffer.device(cpu).native();
  auto queue = cpu.create_queue();
  std::optional<Gate> gate{queue};
  constexpr std::array seven{std::byte{7}, std::byte{0}, std::byte{0}, std::byte{0}};
  queue.fill(memory.window(0, 2000), seven);
  buffer.mark_device_dirty(cpu, 0, 500);
  buffer.mark_device_dirty(*shared, 500, 500);  // the second of those that may be at work
  std::jthread const opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{100});
    gate.reset();
  });
  EXPECT_THAT(buffer.host_view(0, 500), Each(7U)) << "read before it was there";
  EXPECT_THAT(buffer.host_view(500, 500), Each(1U));
}

TEST_F(SharedByOpenCl, ForeignMemoryIsCopiedToTheDevice) {
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

TEST_F(SharedByOpenCl, LimitsFromOutsideHoldUnderAnyDeviceOptions) {
  ::setenv("UNIMEM_LIMITS", "opencl:0/unified=1MiB", 1);
  MemoryManager limited;
  auto& pool = limited.pool(*shared, Location::unified);
  ::unsetenv("UNIMEM_LIMITS");
  EXPECT_EQ(pool.max_bytes(), 1U << 20);
  EXPECT_THROW(std::ignore = pool.acquire(2U << 20), OutOfMemory);
}

}  // namespace
}  // namespace unimem::testing
