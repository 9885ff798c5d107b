#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/orchestrator.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace unimem {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

/// Buffers at home on the first OpenCL device.
class OrchestrationOnOpenCl : public ::testing::Test {
 protected:
  void SetUp() override {
    for (Device& found : devices()) {
      if (found.backend() == Backend::opencl && device == nullptr) device = &found;
    }
    if (device == nullptr) GTEST_SKIP() << "there is no OpenCL device";
  }
  [[nodiscard]] UnifiedBuffer<float> ones() {
    BufferOptions options;
    options.manager = &manager;
    options.device = device;
    UnifiedBuffer<float> buffer(1000, options);
    buffer.copy_from(std::vector<float>(1000, 1.0F));
    return buffer;
  }

  Device* device = nullptr;
  MemoryManager manager;
  Orchestrator orchestrator;
  Kernel scale = Kernel("scale").host([](WorkItem i, std::span<float> x, float a) { x[i.x] *= a; });
};

constexpr auto source = R"(UNIMEM_KERNEL scale(UNIMEM_BUFFER(float, x), float a) {
  UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] *= a;
})";

TEST_F(OrchestrationOnOpenCl, FallsBackToTheCpu) {
  orchestrator.register_kernel(scale);
  auto x = ones();
  x.sync_to_device();
  auto const done = orchestrator.execute("scale", Range{1000}, readwrite(x), 2.0F);
  EXPECT_EQ(done.device, "cpu");
  EXPECT_THAT(done.reason, HasSubstr(std::string(device->id()) + " needs a source form"));
  EXPECT_EQ(done.bytes_moved, 0U) << "the host has it too";
  EXPECT_THAT(x.to_vector(), Each(2.0F));
  EXPECT_THROW(static_cast<void>(orchestrator.execute("scale", Range{1000}, readwrite(x), 2.0F,
                                                      ExecutionOptions{.backend = Backend::opencl})),
               KernelError)
      << "asked for, and not to be had";
}

TEST_F(OrchestrationOnOpenCl, RunsWhereTheDataIs) {
  orchestrator.register_kernel(scale.source(source));
  auto x = ones();
  auto const first = orchestrator.execute("scale", Range{1000}, readwrite(x), 2.0F);
  EXPECT_EQ(first.device, device->id());
  EXPECT_EQ(first.bytes_moved, 4000U);
  x.sync_to_host();
  EXPECT_EQ(
      orchestrator.execute("scale", Range{1000}, readwrite(x), 2.0F, ExecutionOptions{.backend = Backend::cpu}).device,
      "cpu");
  auto const last = orchestrator.execute("scale", Range{1000}, readwrite(x), 2.0F);
  EXPECT_EQ(last.device, "cpu") << "the device has it stale";
  EXPECT_EQ(last.bytes_moved, 0U);
  EXPECT_THAT(x.to_vector(), Each(8.0F));
}

}  // namespace
}  // namespace unimem
