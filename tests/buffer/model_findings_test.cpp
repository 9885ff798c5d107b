#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "buffer/gate_from_beside.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <latch>
#include <thread>
#include <utility>

namespace unimem::testing {
namespace {

using ::testing::Each;

/// What the model of the whole public face found, each by itself.
class ModelFindings : public BufferTest {
 protected:
  using Buffer = UnifiedBuffer<std::uint32_t>;
  using Slice = BufferSlice<std::uint32_t>;

  /// A kernel that sets every element.
  static Event set(Queue& queue, Slice const& slice, std::uint32_t value) {
    Operand const operand{&slice.core(), slice.range(), Intent::write};
    auto const program = setter(queue.device(), value);
    return use_on_device(queue, {&operand, 1}, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
      KernelArgument argument;
      argument.memory = memory.front();
      return queue.run(program, Range{1}, {&argument, 1}, needs);
    });
  }
  static std::shared_ptr<Program const> setter(Device& on, std::uint32_t value) {
    return on.compile({"set", "", [value](Range, std::size_t, std::size_t, std::span<const HostArgument> arguments) {
                         std::fill_n(static_cast<std::uint32_t*>(arguments[0].data), arguments[0].bytes / sizeof value,
                                     value);
                       }});
  }
  /// Keeps a queue busy for a moment, so that what comes behind is still in flight; nothing relies on how long.
  static void hold(Queue& queue) {
    queue.run(queue.device().compile({"hold", "",
                                      [](Range, std::size_t, std::size_t, std::span<const HostArgument>) {
                                        std::this_thread::sleep_for(std::chrono::milliseconds(10));
                                      }}),
              Range{1}, {});
  }
};

TEST_F(ModelFindings, AnEmptyCopyInheritsNoFailure) {
  Buffer failing(100, on_sim()), fine(100, on_sim());
  fine.fill(1);
  set(sim.default_queue(), failing.slice(0), 5).wait();
  set_sim_faults(sim, {.fail_download = 1});
  std::vector<std::uint32_t> out(100);
  EXPECT_THROW(failing.copy_to_async(out).wait(), DeviceError);
  fine.slice(0, 0).copy_from_async({}).wait();
  fine.slice(0, 0).copy_to_async({}).wait();
  EXPECT_THAT(fine.to_vector(), Each(1U));
}

TEST_F(ModelFindings, AHostChangeBehindAFailureStays) {
  Buffer buffer(100, on_sim());
  buffer.copy_from(counting(100));
  set_sim_faults(sim, {.fail_upload = 1});
  GateFromBeside gate(sim, other);
  auto const prefetched = buffer.slice(50).prefetch();
  buffer.at(0) = 7;
  gate.open();
  EXPECT_THROW(prefetched.wait(), DeviceError);
  EXPECT_THROW(buffer.sync_to_device(), DeviceError) << "told once";
  EXPECT_EQ(buffer.host_view()[0], 7U);
  EXPECT_EQ(buffer.host_view()[99], 99U);
}

TEST_F(ModelFindings, BytesOfAFailedDownloadAreNotRead) {
  Buffer buffer(100, on_sim());
  set(sim.default_queue(), buffer.slice(0), 5).wait();
  set_sim_faults(sim, {.fail_download = 1});
  EXPECT_THROW(buffer.sync_to_host_async().wait(), DeviceError);
  static_cast<void>(buffer.core().fetch({0, 0}));  // some operation that has nothing to do with those bytes
  EXPECT_THROW(std::ignore = buffer.host_view(), DeviceError);
  EXPECT_THAT(buffer.to_vector(), Each(5U));
}

TEST_F(ModelFindings, AFailureThatWasToldIsNotInherited) {
  Buffer buffer(100, on_sim());
  set(sim.default_queue(), buffer.slice(0), 5).wait();
  set_sim_faults(sim, {.fail_download = 1});
  EXPECT_THROW(std::ignore = buffer.host_view(), DeviceError);
  buffer.slice(10, 20).sync_to_host_async().wait();
  EXPECT_THAT(buffer.to_vector(), Each(5U));
}

TEST_F(ModelFindings, AMappingDoesNotWriteUnderAnUpload) {
  Buffer from(100, on_sim()), to(100, on_sim());
  from.copy_from(counting(100));
  auto& queue = sim.default_queue();
  hold(queue);
  std::array const operands{Operand{&from.core(), {0, 400}, Intent::read},
                            Operand{&to.core(), {0, 400}, Intent::write}};
  use_on_device(queue, operands, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
    return queue.copy(memory[1], memory[0], 400, needs);
  });
  {
    auto mapping = from.map(MapMode::read_write);
    std::ranges::fill(mapping, 9U);
  }
  EXPECT_EQ(to.to_vector(), counting(100)) << "what was there when the copy was asked for";
  EXPECT_THAT(from.to_vector(), Each(9U));
}

TEST_F(ModelFindings, AManualViewWaitsForAPendingUpload) {
  auto options = on_sim();
  options.tracking = Tracking::manual;
  Buffer from(100, options), to(100, on_sim());
  from.copy_from(counting(100));
  from.mark_host_dirty();
  hold(sim.default_queue());
  auto const arrived = from.prefetch();
  auto const view = from.host();
  EXPECT_TRUE(arrived.ready()) << "the view may be written through at once";
  std::ranges::fill(view, 9U);
  from.mark_host_dirty();
  EXPECT_EQ(device_bytes(from, sim), std::vector<std::uint32_t>(100, 9U));
}

TEST_F(ModelFindings, AMappingReportsOldFailuresBeforeAnyWrite) {
  Buffer buffer(100, on_sim());
  buffer.copy_from(counting(100));
  set_sim_faults(sim, {.fail_upload = 1});
  EXPECT_THROW(buffer.prefetch().wait(), DeviceError);
  EXPECT_THROW(std::ignore = buffer.map(MapMode::read_write), DeviceError);
  auto mapping = buffer.map(MapMode::read_write);
  std::ranges::fill(mapping, 9U);
  mapping.unmap();
  EXPECT_THAT(device_bytes(buffer, sim), Each(9U));
}

TEST_F(ModelFindings, AFailedSynchronizeSparesTheLastGoodCopy) {
  Buffer buffer(100, on_sim());
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  set_sim_faults(sim, {.fail_run = 2});
  hold(sim.default_queue());
  set(sim.default_queue(), buffer.slice(0), 9);
  EXPECT_THROW(buffer.synchronize(), DeviceError);
  EXPECT_EQ(buffer.to_vector(), counting(100));
}

TEST_F(ModelFindings, BytesThatFailedWorkOverwroteAreLost) {
  Buffer buffer(100, on_sim());
  buffer.fill(1);
  set_sim_faults(sim, {.fail_run = 2});
  GateFromBeside gate(sim, other);
  set(sim.default_queue(), buffer.slice(0), 9);
  set(sim.default_queue(), buffer.slice(50), 10);
  gate.open();
  EXPECT_THROW(std::ignore = buffer.to_vector(), DeviceError);
  EXPECT_THAT(buffer.slice(0, 50).to_vector(), Each(9U));
  EXPECT_THROW(std::ignore = buffer.slice(50).to_vector(), DataLost) << "the only copy of it, and half overwritten";
}

TEST_F(ModelFindings, AnEarlierCopyServesWhenLaterWorkFails) {
  Buffer buffer(100, on_sim());
  set(sim.default_queue(), buffer.slice(0), 9).wait();
  set_sim_faults(sim, {.fail_run = 2});
  GateFromBeside gate(sim, other);
  buffer.sync_to_host_async();
  set(sim.default_queue(), buffer.slice(0, 50), 10);
  set(sim.default_queue(), buffer.slice(50), 11);
  gate.open();
  EXPECT_THROW(std::ignore = buffer.to_vector(), DeviceError);
  EXPECT_THAT(buffer.slice(0, 50).to_vector(), Each(10U));
  EXPECT_THAT(buffer.slice(50).to_vector(), Each(9U)) << "the host has it";
}

TEST_F(ModelFindings, TheHostWaitsForWorkOnCpuLeases) {
  auto& cpu = device("cpu");
  auto options = on_sim();
  options.device = &cpu;
  Buffer buffer(100, options);
  buffer.fill(1);
  auto queue = cpu.create_queue();
  {
    auto const lease = buffer.device(queue);
    hold(queue);
    KernelArgument argument;
    argument.memory = lease.native();
    queue.run(setter(cpu, 6), Range{1}, {&argument, 1});
  }
  buffer.release_device(cpu);
  EXPECT_THAT(buffer.to_vector(), Each(6U));
}

TEST_F(ModelFindings, ReleasingTheCpuKeepsBytesOnTheHost) {
  auto& cpu = device("cpu");
  Buffer buffer(100, on_sim());
  set(sim.default_queue(), buffer.slice(0), 9).wait();
  buffer.sync_to_device(cpu);
  auto const before = buffer.statistics();
  buffer.release_device(cpu);
  set_sim_faults(sim, {.fail_run = 1});
  EXPECT_THROW(set(sim.default_queue(), buffer.slice(0), 10).wait(), DeviceError);
  EXPECT_THROW(std::ignore = buffer.to_vector(), DeviceError) << "told once";
  EXPECT_THAT(buffer.to_vector(), Each(9U)) << "the device ruined its copy, not the one that lies here";
  EXPECT_EQ(buffer.statistics().device_to_host_copies, before.device_to_host_copies);
}

}  // namespace
}  // namespace unimem::testing
