#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/launch.hpp>

#include "device/cuda_fixture.hpp"
#include "device/gate.hpp"

#include <cstdint>
#include <string>
#include <vector>

// Buffers in managed memory: one memory for the host and both GPUs.

namespace unimem {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class UnifiedMemory : public OnStandIn {
 protected:
  void SetUp() override {
    OnStandIn::SetUp();
    try {
      first.release(first.allocate(1, Location::unified), Location::unified);
    } catch (UnsupportedOperation const& refusal) {
      GTEST_SKIP() << refusal.what();
    }
  }

  [[nodiscard]] BufferOptions unified() {
    BufferOptions options;
    options.manager = &manager;
    options.device = &first;
    options.location = Location::unified;
    return options;
  }
  /// The driver's notes of prefetches and advice.
  [[nodiscard]] static std::vector<std::string> journal() {
    std::vector<std::string> all;
    while (auto const* const line = standin_control().journal(all.size())) all.emplace_back(line);
    return all;
  }

  Device& first = device(first_gpu());
  Device& second = device(second_gpu());
  MemoryManager manager;
  Kernel add = Kernel("add").source(R"(
    UNIMEM_KERNEL add(UNIMEM_BUFFER(unimem_u32, x), unimem_u32 a) { UNIMEM_DATA(unimem_u32, x)[UNIMEM_ITEM_X] += a; })");
};

TEST_F(UnifiedMemory, IsSharedWithoutACopy) {
  auto const before = first.transfers(), before_second = second.transfers();
  UnifiedBuffer<std::uint32_t> buffer(10'000, unified());
  buffer.fill(1);
  launch(first.default_queue(), add, Range{buffer.size()}, readwrite(buffer), std::uint32_t{10});
  launch(second.default_queue(), add, Range{buffer.size()}, readwrite(buffer), std::uint32_t{100});
  EXPECT_THAT(buffer.host_view(), Each(111U));
  buffer.host()[7] = 5;
  launch(first.default_queue(), add, Range{buffer.size()}, readwrite(buffer), std::uint32_t{1});
  EXPECT_EQ(buffer.host_view()[7], 6U);
  EXPECT_EQ(buffer.host_view()[8], 112U);
  EXPECT_EQ(buffer.statistics().host_to_device_copies, 0U);
  EXPECT_EQ(buffer.statistics().device_to_host_copies, 0U);
  EXPECT_EQ(buffer.statistics().device_to_device_copies, 0U);
  EXPECT_EQ(first.transfers(), before);
  EXPECT_EQ(second.transfers(), before_second);
  if (!on_hardware) {
    EXPECT_EQ(standin_control().live().managed, 1U);
  }
  buffer.core().validate();
}

TEST_F(UnifiedMemory, TheHostWaitsForRunningWork) {
  UnifiedBuffer<std::uint32_t> buffer(100, unified());
  buffer.fill(1);
  auto& queue = first.default_queue();
  add.build(first);  // a driver that loads a kernel waits for all work of the GPU, held back or not
  std::optional<Gate> gate{queue};
  auto const running = launch(queue, add, Range{100}, readwrite(buffer), std::uint32_t{1});
  EXPECT_FALSE(running.ready());
  gate.reset();
  EXPECT_THAT(buffer.host_view(), Each(2U));
}

TEST_F(UnifiedMemory, IsCopiedOnlyToOtherDevices) {
  auto& sim = make_sim({});
  UnifiedBuffer<std::uint32_t> buffer(1000, unified());
  buffer.fill(3);
  launch(first.default_queue(), add, Range{1000}, readwrite(buffer), std::uint32_t{1});
  std::vector<std::uint32_t> there(1000);
  {
    auto const lease = buffer.device_view(sim);
    sim.default_queue().download(there.data(), lease.native(), 4000).wait();
  }
  EXPECT_THAT(there, Each(4U));
  EXPECT_EQ(buffer.statistics().host_to_device_bytes, 4000U);
  EXPECT_EQ(sim.transfers().host_to_device_bytes, 4000U);
  {
    auto const lease = buffer.device_overwrite(sim);
    std::vector<std::uint32_t> const news(1000, 9);
    sim.default_queue().upload(lease.native(), news.data(), 4000).wait();
  }
  launch(first.default_queue(), add, Range{1000}, readwrite(buffer), std::uint32_t{1});
  EXPECT_THAT(buffer.host_view(), Each(10U));
  EXPECT_EQ(buffer.statistics().device_to_host_bytes, 4000U);
}

TEST_F(UnifiedMemory, PassesAdviceToTheDriver) {
  UnifiedBuffer<std::uint32_t> buffer(1 << 20, unified());
  buffer.fill(4);
  buffer.advise(Advice::preferred_location, first);
  buffer.prefetch(first).wait();
  if (!on_hardware) {
    EXPECT_THAT(journal(), ::testing::Contains(HasSubstr("cuMemAdvise")));
    EXPECT_THAT(journal(), ::testing::Contains(HasSubstr("cuMemPrefetchAsync")));
  }
  EXPECT_EQ(buffer.statistics().host_to_device_copies, 0U);
  EXPECT_THAT(buffer.host_view(), Each(4U));
}

TEST_F(UnifiedMemory, ReturnsToTheDriver) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  {
    UnifiedBuffer<std::uint32_t> buffer(1000, unified());
    buffer.fill(1);
    EXPECT_EQ(standin_control().live().managed, 1U);
  }
  manager.cleanup();
  EXPECT_EQ(standin_control().live().managed, 0U);
}

TEST_F(UnifiedMemory, IsRefusedWhereTheDeviceSharesNothing) {
  auto options = unified();
  options.device = &make_sim({});
  try {
    UnifiedBuffer<std::uint32_t> const buffer(10, options);
    FAIL() << "it was made";
  } catch (UnsupportedOperation const& error) {
    EXPECT_EQ(error.operation, "Location::unified");
    EXPECT_EQ(error.where, options.device->id());
  }
}

}  // namespace
}  // namespace unimem
