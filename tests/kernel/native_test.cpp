#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/native.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace unimem {
namespace {

using ::testing::Each;

/// Devices that are made of host code have no queue of a driver's to hand out.
class WithoutANativeQueue : public ::testing::TestWithParam<char const*> {};

TEST_P(WithoutANativeQueue, NativeWorkIsRefusedBeforeAnythingMoves) {
  auto& on = device(GetParam());
  MemoryManager manager;
  BufferOptions options;
  options.manager = &manager;
  options.device = &on;
  UnifiedBuffer<std::uint32_t> x(100, options);
  x.fill(5);
  auto const state = x.state();
  bool called = false;
  try {
    with_native(on.default_queue(), [&](void*, std::uint32_t*) { called = true; }, readwrite(x));
    FAIL() << "there is nothing to hand out";
  } catch (UnsupportedOperation const& error) {
    EXPECT_EQ(error.where, on.id());
    EXPECT_EQ(error.operation, "a native queue");
  }
  EXPECT_FALSE(called);
  EXPECT_EQ(x.state(), state);
  EXPECT_EQ(x.statistics().host_to_device_copies, 0U);
  EXPECT_THAT(x.to_vector(), Each(5U));
}

INSTANTIATE_TEST_SUITE_P(Devices, WithoutANativeQueue, ::testing::Values("cpu", "sim"),
                         [](auto const& device) { return std::string(device.param); });

}  // namespace
}  // namespace unimem
