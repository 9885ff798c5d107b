#include "device/cuda_standin_fixture.hpp"

#include <chrono>

// Faults of the stand-in driver: refused calls, late ones, and devices that are lost.

namespace unimem::standin {
namespace {

TEST_F(CudaStandIn, RefusesTheNthCallOfAFunction) {
  control().fail("cuMemAlloc", 2, Result::out_of_memory, FaultKind::once);
  auto const first = allocate(1);
  DevicePointer second = 0;
  EXPECT_EQ(cu.cuMemAlloc(&second, 1), Result::out_of_memory);
  EXPECT_EQ(second, 0U);
  EXPECT_EQ(control().calls("cuMemAlloc"), 2U);
  ok(cu.cuMemAlloc(&second, 1));
  ok(cu.cuMemFree(first));
  ok(cu.cuMemFree(second));
}

TEST_F(CudaStandIn, RefusesTheNthCallOfAny) {
  auto const before = control().calls(nullptr);
  auto const pointer = allocate(1);
  control().fail(nullptr, 2, Result::not_permitted, FaultKind::once);
  ok(cu.cuMemsetD8Async(pointer, 0, 1, nullptr));
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), Result::not_permitted);
  ok(cu.cuStreamSynchronize(nullptr));
  EXPECT_EQ(control().calls(nullptr), before + 4);
  ok(cu.cuMemFree(pointer));
}

TEST_F(CudaStandIn, LosesADeviceAtACall) {
  control().fail("cuEventCreate", 1, Result::launch_failed, FaultKind::sticky);
  Event event = nullptr;
  EXPECT_EQ(cu.cuEventCreate(&event, 0), Result::launch_failed);
  EXPECT_EQ(cu.cuEventCreate(&event, 0), Result::launch_failed);
  EXPECT_EQ(cu.cuStreamQuery(nullptr), Result::launch_failed);
  std::size_t free_bytes = 0, total = 0;
  EXPECT_EQ(cu.cuMemGetInfo(&free_bytes, &total), Result::launch_failed);
}

TEST_F(CudaStandIn, ReportsALateFaultAtTheWait) {
  Stream const stream = create_stream(), other = create_stream();
  Event const event = create_event();
  auto const pointer = allocate(1);
  control().fail("cuMemsetD8Async", 1, Result::illegal_address, FaultKind::late);
  control().hold(true);
  ok(cu.cuMemsetD8Async(pointer, 0, 1, stream));
  ok(cu.cuEventRecord(event, stream));
  EXPECT_EQ(cu.cuEventQuery(event), Result::not_ready);
  control().hold(false);
  EXPECT_EQ(cu.cuEventSynchronize(event), Result::illegal_address);
  EXPECT_EQ(cu.cuEventQuery(event), Result::illegal_address);
  EXPECT_EQ(cu.cuStreamQuery(other), Result::illegal_address);
  EXPECT_EQ(cu.cuMemsetD8Async(pointer, 0, 1, other), Result::illegal_address);
  EXPECT_EQ(cu.cuMemFree(pointer), Result::illegal_address);
  EXPECT_EQ(cu.cuEventDestroy(event), Result::illegal_address);
  for (auto const each : {stream, other}) EXPECT_EQ(cu.cuStreamDestroy(each), Result::illegal_address);
}

TEST_F(CudaStandIn, SkipsWhatIsQueuedOnALostDevice) {
  Stream const stream = create_stream();
  auto* const pinned = allocate_pinned(4);
  auto const pointer = allocate(4);
  std::memset(pinned, 1, 4);
  control().hold(true);
  ok(cu.cuMemcpyDtoHAsync(pinned, pointer, 4, stream));
  control().lose(0, Result::nvlink_uncorrectable);
  EXPECT_EQ(cu.cuStreamSynchronize(stream), Result::nvlink_uncorrectable);
  EXPECT_EQ(pinned[0], std::byte{1});
  EXPECT_EQ(cu.cuMemFree(pointer), Result::nvlink_uncorrectable);
  EXPECT_EQ(cu.cuMemFreeHost(pinned), Result::nvlink_uncorrectable);
  EXPECT_EQ(cu.cuStreamDestroy(stream), Result::nvlink_uncorrectable);
}

TEST_F(CudaStandIn, RefusesOnOneDeviceOnly) {
  control().fail_on(1, "cuMemAlloc", 2, Result::not_permitted, FaultKind::once);
  DevicePointer pointer = 0;
  for (int i = 0; i < 3; ++i) ok(cu.cuMemFree(allocate(1)));
  Current const other{contexts[1]};
  ok(cu.cuMemFree(allocate(1)));
  EXPECT_EQ(cu.cuMemAlloc(&pointer, 1), Result::not_permitted);
  ok(cu.cuMemFree(allocate(1)));
}

TEST_F(CudaStandIn, RecoversADeviceWithANewContext) {
  control().lose(1, Result::illegal_address);
  ok(cu.cuDevicePrimaryCtxRelease(1));
  ok(cu.cuDevicePrimaryCtxRetain(&contexts[1], 1));
  Current const other{contexts[1]};
  ok(cu.cuMemFree(allocate(1)));
}

TEST_F(CudaStandIn, LosesEverythingOfAContextThatSomebodyResets) {
  {
    Current const other{contexts[1]};
    Stream const stream = create_stream();
    auto const pointer = allocate(1);
    control().reset_context(1);
    EXPECT_EQ(cu.cuStreamSynchronize(stream), Result::context_is_destroyed);
    EXPECT_EQ(cu.cuMemFree(pointer), Result::context_is_destroyed);
  }
  EXPECT_EQ(cu.cuCtxPushCurrent(contexts[1]), Result::invalid_context);
  EXPECT_EQ(cu.cuDevicePrimaryCtxRelease(1), Result::invalid_context);
  EXPECT_EQ(control().used(1), 0U);
  ok(cu.cuDevicePrimaryCtxRetain(&contexts[1], 1));
}

TEST_F(CudaStandIn, TakesItsTimeWhereItIsTold) {
  auto const pointer = allocate(1);
  control().set_latency(20'000, 0);
  auto const begin = std::chrono::steady_clock::now();
  ok(cu.cuMemsetD8Async(pointer, 0, 1, nullptr));
  ok(cu.cuStreamSynchronize(nullptr));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds{20});
  ok(cu.cuMemFree(pointer));
}

}  // namespace
}  // namespace unimem::standin
