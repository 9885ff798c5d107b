#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/orchestrator.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace unimem {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Orchestration : public ::testing::Test {
 protected:
  Orchestration() {
    orchestrator.register_kernel(scale);
    orchestrator.register_kernel(add);
  }
  [[nodiscard]] BufferOptions on(Device& device) {
    BufferOptions options;
    options.manager = &manager;
    options.device = &device;
    return options;
  }
  [[nodiscard]] UnifiedBuffer<float> filled(Device& home, float value) {
    UnifiedBuffer<float> buffer(1000, on(home));
    buffer.copy_from(std::vector<float>(1000, value));
    return buffer;
  }

  Device& first = make_sim({.memory_bytes = std::size_t{16} << 20});
  Device& second = make_sim({.memory_bytes = std::size_t{16} << 20});
  MemoryManager manager;
  Kernel scale = Kernel("scale").host([](WorkItem i, std::span<float> x, float a) { x[i.x] *= a; });
  Kernel add = Kernel("add").host([](WorkItem i, std::span<const float> a, std::span<const float> b,
                                     std::span<float> sum) { sum[i.x] = a[i.x] + b[i.x]; });
  Orchestrator orchestrator;
};

TEST_F(Orchestration, AnExecutionSaysWhatItDid) {
  auto a = filled(first, 1.0F), b = filled(first, 2.0F);
  UnifiedBuffer<float> sum(1000, on(first));
  a.sync_to_device();
  auto const done = orchestrator.execute("add", Range{1000}, read(a), read(b), write(sum));
  EXPECT_EQ(done.name, "add");
  EXPECT_EQ(done.device, first.id());
  EXPECT_EQ(done.items, 1000U);
  EXPECT_GT(done.seconds, 0.0);
  EXPECT_EQ(done.bytes_moved, 4000U) << "of b alone";
  EXPECT_EQ(done.copies, 1U);
  EXPECT_EQ(sum.statistics().device_to_host_copies, 0U);
  EXPECT_THAT(sum.to_vector(), Each(3.0F));
}

TEST_F(Orchestration, AResetBufferCountsFromThenOn) {
  auto a = filled(first, 1.0F), b = filled(first, 2.0F);
  UnifiedBuffer<float> sum(1000, on(first));
  a.sync_to_device();
  auto const kernel = Kernel("resets").host([&](WorkItem i, std::span<const float>, std::span<const float>) {
    if (i.x == 0) a.reset();
  });
  orchestrator.register_kernel(kernel);
  auto const done = orchestrator.execute("resets", Range{1}, read(a), read(b));
  EXPECT_EQ(done.bytes_moved, 4000U) << "of b alone: that a had moved as many before is no less";
  EXPECT_EQ(done.copies, 1U);

  BufferStatistics before, now;
  before.host_to_device_bytes = 100;
  before.host_to_device_copies = 2;
  now.host_to_device_bytes = 130;
  now.host_to_device_copies = 3;
  now.device_to_host_bytes = 7;
  now.device_to_host_copies = 1;
  now.device_to_device_bytes = 50;
  now.device_to_device_copies = 4;
  EXPECT_EQ(now.traffic(), (Traffic{187, 8}));
  EXPECT_EQ(now.traffic_since(before), (Traffic{87, 6}));
  EXPECT_EQ(before.traffic_since(now), (Traffic{100, 2}));
}

TEST_F(Orchestration, ABufferPassedTwiceIsCountedOnce) {
  auto x = filled(first, 1.0F);
  UnifiedBuffer<float> sum(1000, on(first));
  auto const done = orchestrator.execute("add", Range{1000}, read(x), read(x), write(sum));
  EXPECT_EQ(done.bytes_moved, 4000U);
  EXPECT_THAT(sum.to_vector(), Each(2.0F));
}

TEST_F(Orchestration, WorkGoesToWhereItsDataIs) {
  auto x = filled(first, 1.0F);
  EXPECT_EQ(orchestrator.execute("scale", Range{1000}, readwrite(x), 2.0F).device, first.id()) << "its home";
  x.sync_to_host();
  x.sync_to_device(second);
  x.release_device(first);
  auto const moved = orchestrator.execute("scale", Range{1000}, readwrite(x), 2.0F);
  EXPECT_EQ(moved.device, second.id()) << "where its copy is";
  EXPECT_THAT(moved.reason, HasSubstr("0 bytes to be read are missing on " + std::string(second.id())));
  EXPECT_EQ(moved.bytes_moved, 0U);
  x.sync_to_device(first);
  EXPECT_EQ(orchestrator.execute("scale", Range{1000}, readwrite(x), 2.0F).device, first.id()) << "home, among equals";
  EXPECT_THAT(x.to_vector(), Each(8.0F));
}

TEST_F(Orchestration, OnlyReadRangesCount) {
  auto large = filled(first, 1.0F), small = filled(second, 2.0F);
  large.sync_to_device();
  small.sync_to_device();
  UnifiedBuffer<float> sum(1000, on(second));
  // 100 elements of one against 10 of the other; the output, at home on the second, has nothing to bring.
  auto const done = orchestrator.execute("add", Range{10}, read(large, 0, 100), read(small, 0, 10), write(sum, 0, 10));
  EXPECT_EQ(done.device, first.id());
  EXPECT_EQ(done.bytes_moved, 40U);
  EXPECT_THAT(sum.slice(0, 10).to_vector(), Each(3.0F));
}

TEST_F(Orchestration, OptionsSayWhere) {
  auto x = filled(first, 1.0F);
  EXPECT_EQ(orchestrator.execute("scale", Range{1000}, readwrite(x), 2.0F, ExecutionOptions{.device = &second}).device,
            second.id());
  auto queue = first.create_queue();
  auto const before = queue.record().ticket();
  EXPECT_EQ(orchestrator.execute("scale", Range{1000}, readwrite(x), 2.0F, ExecutionOptions{.queue = &queue}).device,
            first.id());
  EXPECT_GT(queue.record().ticket(), before) << "ran in it";
  auto const on_cpu =
      orchestrator.execute("scale", Range{1000}, readwrite(x), 2.0F, ExecutionOptions{.backend = Backend::cpu});
  EXPECT_EQ(on_cpu.device, "cpu");
  EXPECT_THAT(x.to_vector(), Each(8.0F));
}

TEST_F(Orchestration, ContradictionsAreRefusedBeforeAnythingMoves) {
  auto x = filled(first, 1.0F);
  auto queue = first.create_queue();
  auto const run = [&](ExecutionOptions const& options) {
    static_cast<void>(orchestrator.execute("scale", Range{1000}, readwrite(x), 2.0F, options));
  };
  EXPECT_THROW(run({.queue = &queue, .device = &second}), InvalidArgument);
  EXPECT_THROW(run({.device = &second, .backend = Backend::opencl}), InvalidArgument);
  EXPECT_THROW(run({.queue = &queue, .backend = Backend::cpu}), InvalidArgument);
  EXPECT_EQ(x.statistics().host_to_device_copies, 0U);
  EXPECT_THAT(x.to_vector(), Each(1.0F));
}

TEST_F(Orchestration, ABackendWithoutADeviceIsNotFound) {
  auto x = filled(first, 1.0F);
  try {
    static_cast<void>(
        orchestrator.execute("scale", Range{1000}, readwrite(x), 2.0F, ExecutionOptions{.backend = Backend::metal}));
    FAIL() << "Metal is not built";
  } catch (NotFound const& missing) {
    EXPECT_EQ(missing.kind, "device");
    EXPECT_EQ(missing.name, "metal");
    EXPECT_THAT(missing.available, ::testing::Contains("cpu"));
  }
}

TEST_F(Orchestration, MissingNamesAreTold) {
  EXPECT_THAT(orchestrator.kernel_names(), ElementsAre("add", "scale"));
  orchestrator.register_kernel(scale);  // the same one again
  EXPECT_THROW(orchestrator.register_kernel(Kernel("scale")), InvalidArgument);
  auto gone = Kernel("gone");
  auto const here = std::move(gone);
  EXPECT_THROW(orchestrator.register_kernel(gone), InvalidArgument);  // NOLINT(bugprone-use-after-move): that is it
  orchestrator.unregister_kernel("add");
  EXPECT_FALSE(orchestrator.has_kernel("add"));
  auto x = filled(first, 1.0F);
  try {
    static_cast<void>(orchestrator.execute("add", Range{1}, read(x)));
    FAIL() << "it was taken out";
  } catch (NotFound const& missing) {
    EXPECT_EQ(missing.kind, "kernel");
    EXPECT_EQ(missing.name, "add");
    EXPECT_THAT(missing.available, ElementsAre("scale"));
  }
  EXPECT_THROW(orchestrator.unregister_kernel("add"), NotFound);
}

TEST_F(Orchestration, AFailureOfTheKernelIsThrown) {
  auto x = filled(first, 1.0F);
  set_sim_faults(first, {.fail_run = 1});
  EXPECT_THROW(static_cast<void>(orchestrator.execute("scale", Range{1000}, readwrite(x), 2.0F)), DeviceError);
  EXPECT_THROW(static_cast<void>(orchestrator.execute("scale", Range{1000}, readwrite(x), 2)), KernelError)
      << "an int where a float is taken";
}

TEST_F(Orchestration, ALostDeviceIsPassedOver) {
  auto x = filled(first, 1.0F);
  x.sync_to_device(second);
  x.sync_to_device(first);
  set_sim_faults(first, {.lose_after = 1});
  EXPECT_THROW(first.default_queue().run(scale.program(first), Range{1}, {}).wait(), DeviceError);
  ASSERT_TRUE(first.is_lost());
  EXPECT_EQ(orchestrator.execute("scale", Range{1000}, readwrite(x), 2.0F).device, second.id());
  EXPECT_THAT(x.to_vector(), Each(2.0F));
}

TEST_F(Orchestration, WithoutBuffersTheDefaultDeviceRuns) {
  std::atomic<int> items = 0;
  orchestrator.register_kernel(Kernel("count").host([&items](WorkItem) { ++items; }));
  auto const event = orchestrator.launch("count", Range{7}, ExecutionOptions{.device = &first});
  event.wait();
  EXPECT_EQ(items, 7);
  auto const choice = orchestrator.execute("count", Range{5}, ExecutionOptions{.backend = Backend::cpu});
  EXPECT_EQ(choice.copies, 0U);
  EXPECT_EQ(items, 12);
}

TEST_F(Orchestration, WithoutBuffersAnotherDefaultMayBeNamed) {
  orchestrator.register_kernel(Kernel("nothing").host([](WorkItem) {}));
  orchestrator.register_kernel(Kernel("only source").source("UNIMEM_KERNEL only_source(int a) {}"));
  ExecutionOptions options{.default_device = &second};
  auto const done = orchestrator.execute("nothing", Range{4}, options);
  EXPECT_EQ(done.device, second.id());
  EXPECT_EQ(done.reason, "it is the default device, and there are no buffers");
  EXPECT_THROW(orchestrator.execute("only source", Range{4}, 1, options), KernelError);
  auto x = filled(first, 1.0F);
  EXPECT_EQ(orchestrator.execute("scale", Range{1000}, readwrite(x), 2.0F, options).device, first.id())
      << "where its data is";
  options.backend = Backend::sim;
  EXPECT_EQ(orchestrator.execute("nothing", Range{4}, options).device, second.id()) << "the first of its backend";
  EXPECT_EQ(orchestrator.execute("scale", Range{1000}, readwrite(x), 2.0F, options).device, first.id());
  options.backend = Backend::cpu;
  EXPECT_EQ(orchestrator.execute("nothing", Range{4}, options).device, "cpu");
  EXPECT_EQ(orchestrator.execute("scale", Range{1000}, readwrite(x), 2.0F, options).device, "cpu");
}

TEST_F(Orchestration, ManyThreadsExecuteWhileKernelsComeAndGo) {
  std::atomic<bool> over = false;
  std::jthread const changing([&] {
    for (int i = 0; !over; ++i) {
      orchestrator.register_kernel(Kernel("k" + std::to_string(i % 3)));
      orchestrator.unregister_kernel("k" + std::to_string(i % 3));
    }
  });
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        auto x = filled(first, 1.0F);
        for (int i = 0; i < 10; ++i) {
          static_cast<void>(orchestrator.execute("scale", Range{1000}, readwrite(x), 2.0F));
        }
        EXPECT_THAT(x.to_vector(), Each(1024.0F));
      });
    }
  }
  over = true;
}

}  // namespace
}  // namespace unimem
