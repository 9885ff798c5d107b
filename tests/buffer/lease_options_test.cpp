#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <thread>

namespace unimem::testing {
namespace {

/// What work may take of its operands' memory while it runs, and what becomes of that memory then.
class LeaseOptions : public BufferTest {
 protected:
  /// Of work that has run.
  [[nodiscard]] LeaseOption option_of_work_on(UnifiedBuffer<std::uint32_t>& buffer, Intent intent) {
    Operand const operand{&buffer.core(), {0, buffer.size_bytes()}, intent};
    auto& queue = sim.default_queue();
    LeaseOption option;
    use_on_device(queue, {&operand, 1}, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
      option = buffer.core().lease_option(sim, operand.range, memory.front());
      used = memory.front();
      for (auto const need : needs) queue.wait(need);
      return queue.record();
    }).wait();
    return option;
  }

  [[nodiscard]] std::size_t active() { return manager.pool(sim, Location::device).statistics().active_bytes; }

  DeviceMemory used;
};

TEST_F(LeaseOptions, HoldNothingUntilTheyAreTaken) {
  auto buffer = synchronized();
  auto const option = option_of_work_on(buffer, Intent::read_write);
  buffer.sync_to_host();
  auto const before = active();
  {
    auto lease = option.take();
    EXPECT_EQ(lease.memory(), used);
    EXPECT_THROW(buffer.release_device(), InvalidArgument);
    buffer.free();
    EXPECT_EQ(active(), before) << "it is the lease's now";
  }
  sim.synchronize();
  EXPECT_EQ(active(), 0U);
  EXPECT_EQ(option.take().memory(), DeviceMemory{}) << "what is gone is nobody's";
  EXPECT_EQ(LeaseOption{}.take().memory(), DeviceMemory{});
}

TEST_F(LeaseOptions, HeldMemoryIsEvictedAfterTheWorkEnds) {
  manager.set_limit(sim, std::size_t{64} << 10);
  auto buffer = synchronized(16'000), next = UnifiedBuffer<std::uint32_t>(16'000, on_sim());
  next.copy_from(counting(16'000, 7));
  auto const option = option_of_work_on(buffer, Intent::read);
  std::optional<WorkHold> hold{option.hold()};
  std::thread crowd{[&] { next.sync_to_device(sim); }};
  while (manager.statistics().waits == 0) std::this_thread::yield();
  EXPECT_EQ(manager.statistics().reclaims, 0U);
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  hold.reset();
  crowd.join();
  EXPECT_EQ(manager.statistics().reclaims, 1U);
  EXPECT_EQ(buffer.state(), BufferState::host_only);
  EXPECT_EQ(device_bytes(next, sim), counting(16'000, 7));
}

TEST_F(LeaseOptions, HeldMemoryOutlivesTheBuffersCopy) {
  auto buffer = synchronized();
  auto const option = option_of_work_on(buffer, Intent::read);
  auto const before = active();
  {
    auto const hold = option.hold();
    buffer.release_device();
    EXPECT_EQ(active(), before);
    EXPECT_FALSE(option.gone());
  }
  EXPECT_TRUE(option.gone());
  sim.synchronize();
  EXPECT_EQ(active(), 0U);
}

}  // namespace
}  // namespace unimem::testing
