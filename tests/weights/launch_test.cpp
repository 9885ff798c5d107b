#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/kernel/launch.hpp>

#include "device/idle_device.hpp"
#include "weights/least_instructions.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

// What operations may weigh, in instructions of the calling thread.

namespace unimem::testing {
namespace {

/// A launch on three buffers that are current there.
class LaunchWeight : public ::testing::Test {
 protected:
  LaunchWeight() {
    for (auto* const buffer : {&a, &b, &c}) buffer->fill(1);
    launch_times(10);
  }

  void launched() { launch(queue, kernel, Range{1'000}, read(a), read(b), readwrite(c)); }
  void launch_times(int times) {
    for (int i = 0; i < times; ++i) launched();
  }
  std::optional<std::uint64_t> of_a_launch() {
    return least_instructions([this] { launched(); });
  }
  std::optional<std::uint64_t> of_the_raw_queue() {
    auto const program = kernel.program(idle);
    std::vector<KernelArgument> const arguments(3);
    return least_instructions([&] { queue.run(program, Range{1'000}, arguments); });
  }

  IdleDevice& idle = *new IdleDevice;  // devices live as long as the process
  MemoryManager manager;
  BufferOptions const options{.manager = &manager, .device = &idle};
  UnifiedBuffer<float> a{1'000, options}, b{1'000, options}, c{1'000, options};
  Kernel kernel =
      Kernel("nothing").host([](WorkItem, std::span<const float>, std::span<const float>, std::span<float>) {});
  Queue& queue = idle.default_queue();
};

TEST_F(LaunchWeight, BeyondTheRawQueue) {
  auto const ours = of_a_launch(), raw = of_the_raw_queue();
  if (!ours || !raw) GTEST_SKIP() << "no thread can be traced here";
  RecordProperty("instructions", std::to_string(*ours - *raw));
  EXPECT_LE(*ours - *raw, 4'800U);
}

TEST_F(LaunchWeight, DoesNotGrowWithTheLaunchesBeforeItThatHaveNotEnded) {
  idle.holds_commands(true);
  launch_times(10);
  auto const behind_few = of_a_launch();
  launch_times(1'000);
  auto const behind_many = of_a_launch();
  idle.holds_commands(false);
  if (!behind_few || !behind_many) GTEST_SKIP() << "no thread can be traced here";
  RecordProperty("behind_few", std::to_string(*behind_few));
  RecordProperty("behind_many", std::to_string(*behind_many));
  EXPECT_LE(*behind_many, *behind_few + 1'000);
  EXPECT_LE(*behind_few, 7'000U);
}

}  // namespace
}  // namespace unimem::testing
