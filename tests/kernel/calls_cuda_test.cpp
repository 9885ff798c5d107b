#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/launch.hpp>

#include "device/standin_watch.hpp"

#include <cstddef>
#include <cstdint>

// How often launches over buffers call the driver.

namespace unimem {
namespace {

/// A driver whose work is held back, so that how often it is asked does not depend on what has ended.
TEST(DriverCallsOfLaunches, AreOneEachBesideTheContext) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  constexpr std::size_t launches = 160;
  auto& gpu = device("cuda:0");
  auto queue = gpu.create_queue();
  Kernel add{"add"};
  add.source(R"(UNIMEM_KERNEL add(UNIMEM_BUFFER(unimem_u32, x), unimem_u32 amount) {
                  UNIMEM_DATA(unimem_u32, x)[UNIMEM_ITEM_X] += amount;
                })");
  BufferOptions options;
  options.device = &gpu;
  UnifiedBuffer<std::uint32_t> x(100, options);
  x.fill(0);
  launch(queue, add, Range{100}, readwrite(x), std::uint32_t{1}).wait();
  auto const calls = [](char const* function) { return standin_control().calls(function); };
  auto const records = calls("cuEventRecord"), queries = calls("cuEventQuery"), before = calls(nullptr);
  auto const contexts = calls("cuCtxPushCurrent");
  standin_control().hold(true);
  for (std::size_t i = 0; i < launches; ++i) launch(queue, add, Range{100}, readwrite(x), std::uint32_t{1});
  auto const all = calls(nullptr) - before;
  RecordProperty("calls", static_cast<int>(all));
  EXPECT_EQ(calls("cuStreamIsCapturing"), 0U);
  EXPECT_LE(calls("cuEventRecord") - records, launches / 16 + 1);
  EXPECT_LE(calls("cuEventQuery") - queries, launches / 16 * 10);
  EXPECT_LE(all - (calls("cuCtxPushCurrent") - contexts), launches + launches / 16 * 11 + 1);
  standin_control().hold(false);
  EXPECT_THAT(x.to_vector(), ::testing::Each(launches + 1));
}

}  // namespace
}  // namespace unimem
