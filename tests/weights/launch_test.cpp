#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/kernel/launch.hpp>

#include "core/instruction_count.hpp"
#include "device/idle_device.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

// What operations may weigh, in instructions of the calling thread.

namespace unimem::testing {
namespace {

/// The least of some: the heap tidies up now and then.
template <class Work>
std::optional<std::uint64_t> instructions(Work const& work) {
  std::optional<std::uint64_t> least;
  for (int i = 0; i < 5; ++i) {
    auto const counted = InstructionCounter::count(work);
    if (!counted) return std::nullopt;
    least = std::min(least.value_or(*counted), *counted);
  }
  return least;
}

TEST(Weight, OfALaunchOnThreeCurrentBuffers) {
  auto& idle = *new IdleDevice;  // devices live as long as the process
  MemoryManager manager;
  BufferOptions const options{.manager = &manager, .device = &idle};
  UnifiedBuffer<float> a(1'000, options), b(1'000, options), c(1'000, options);
  for (auto* const buffer : {&a, &b, &c}) buffer->fill(1);
  auto const kernel =
      Kernel("nothing").host([](WorkItem, std::span<const float>, std::span<const float>, std::span<float>) {});
  auto& queue = idle.default_queue();
  auto const program = kernel.program(idle);
  std::vector<KernelArgument> const arguments(3);
  auto const launched = [&] { launch(queue, kernel, Range{1'000}, read(a), read(b), readwrite(c)); };
  for (int i = 0; i < 10; ++i) launched();
  auto const ours = instructions(launched);
  auto const raw = instructions([&] { queue.run(program, Range{1'000}, arguments); });
  if (!ours || !raw) GTEST_SKIP() << "no thread can be traced here";
  RecordProperty("instructions", std::to_string(*ours - *raw));
  EXPECT_LE(*ours - *raw, 7'000U);
}

}  // namespace
}  // namespace unimem::testing
