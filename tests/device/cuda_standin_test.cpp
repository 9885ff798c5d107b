#include "device/cuda_standin_fixture.hpp"

#include <thread>

// The rules of the stand-in driver about devices, contexts and memory. Streams, captures and kernels have files of
// their own.

namespace unimem::standin {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(CudaStandIn, RefusesCallsWithoutAContext) {
  std::thread([&] {
    DevicePointer pointer = 0;
    void* pinned = nullptr;
    Stream stream = nullptr;
    Event event = nullptr;
    Context context = contexts[0];
    EXPECT_EQ(cu.cuMemAlloc(&pointer, 1), Result::invalid_context);
    EXPECT_EQ(cu.cuMemHostAlloc(&pinned, 1, 0), Result::invalid_context);
    EXPECT_EQ(cu.cuStreamCreate(&stream, 0), Result::invalid_context);
    EXPECT_EQ(cu.cuEventCreate(&event, 0), Result::invalid_context);
    EXPECT_EQ(cu.cuStreamSynchronize(nullptr), Result::invalid_context);
    EXPECT_EQ(cu.cuCtxPopCurrent(nullptr), Result::invalid_context);
    ok(cu.cuCtxGetCurrent(&context));
    EXPECT_EQ(context, nullptr);
  }).join();
}

TEST_F(CudaStandIn, NotesWhatIsLeftWhenAContextEnds) {
  {
    Current const other{contexts[1]};
    static_cast<void>(allocate(100));
    static_cast<void>(create_stream());
    ok(cu.cuDevicePrimaryCtxRelease(1));
    DevicePointer pointer = 0;
    EXPECT_EQ(cu.cuMemAlloc(&pointer, 1), Result::context_is_destroyed);
  }
  ok(cu.cuDevicePrimaryCtxRetain(&contexts[1], 1));
  expected_violations = ElementsAre(HasSubstr("device 1 ended with 0 pending commands, 1 stream, 0 events"));
}

TEST_F(CudaStandIn, HandsOutPoisonedMemoryUpToItsCapacity) {
  auto const first = allocate(capacity / 2);
  EXPECT_EQ(first % 256, 0U);
  EXPECT_THAT(read(first, 1000), Each(0xCD));
  std::size_t free_bytes = 0, total = 0;
  ok(cu.cuMemGetInfo(&free_bytes, &total));
  EXPECT_EQ(free_bytes, capacity / 2);
  EXPECT_EQ(total, capacity);
  DevicePointer second = 0;
  EXPECT_EQ(cu.cuMemAlloc(&second, capacity / 2 + 1), Result::out_of_memory);
  control().set_used_by_others(0, 1);
  EXPECT_EQ(cu.cuMemAlloc(&second, capacity / 2), Result::out_of_memory);
  control().set_used_by_others(0, 0);
  ok(cu.cuMemAlloc(&second, capacity / 2));
  ok(cu.cuMemFree(first));
  ok(cu.cuMemFree(second));
  EXPECT_EQ(control().used(0), 0U);
  EXPECT_EQ(cu.cuMemAlloc(&second, 0), Result::invalid_value);
}

TEST_F(CudaStandIn, RefusesToFreeTwiceOrInTheMiddle) {
  auto const pointer = allocate(1000);
  EXPECT_EQ(cu.cuMemFree(pointer + 8), Result::invalid_value);
  ok(cu.cuMemFree(pointer));
  EXPECT_EQ(cu.cuMemFree(pointer), Result::invalid_value);
  int local = 0;
  EXPECT_EQ(cu.cuMemFree(reinterpret_cast<DevicePointer>(&local)), Result::invalid_value);
  ok(cu.cuMemFree(0));
}

TEST_F(CudaStandIn, LosesTheContextOverABadCopy) {
  auto const pointer = allocate(1000);
  std::vector<unsigned char> const data(1001, 7);
  ok(cu.cuMemcpyHtoDAsync(pointer, data.data(), data.size(), nullptr));  // nobody has looked yet
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), Result::illegal_address);
  DevicePointer more = 0;
  EXPECT_EQ(cu.cuMemAlloc(&more, 1), Result::illegal_address);
  EXPECT_EQ(cu.cuMemFree(pointer), Result::illegal_address);
  Current const other{contexts[1]};
  ok(cu.cuMemFree(allocate(1)));  // the other device goes on
}

TEST_F(CudaStandIn, NeedsPeerAccess) {
  DevicePointer theirs = 0;
  {
    Current const other{contexts[1]};
    theirs = allocate(16);
    ok(cu.cuMemsetD8Async(theirs, 9, 16, nullptr));
    ok(cu.cuStreamSynchronize(nullptr));
  }
  ok(cu.cuCtxEnablePeerAccess(contexts[1], 0));
  EXPECT_EQ(cu.cuCtxEnablePeerAccess(contexts[1], 0), Result::peer_access_already_enabled);
  EXPECT_THAT(read(theirs, 16), Each(9));
  auto const ours = allocate(16);
  Current const other{contexts[1]};  // access is a one-way street
  ok(cu.cuMemcpyDtoDAsync(theirs, ours, 16, nullptr));
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), Result::illegal_address);
  EXPECT_EQ(cu.cuMemFree(theirs), Result::illegal_address);
  Current const back{contexts[0]};
  ok(cu.cuMemFree(ours));
}

TEST_F(CudaStandIn, NotesAFreeUnderWorkThatIsQueued) {
  auto const pointer = allocate(1000);
  control().hold(true);
  ok(cu.cuMemsetD8Async(pointer, 0, 1000, nullptr));
  ok(cu.cuMemFree(pointer));
  control().hold(false);
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), Result::illegal_address);
  expected_violations = ElementsAre("cuMemFree of memory that cuMemsetD8Async still uses");
}

TEST_F(CudaStandIn, NotesAFreeForTheWrongDevice) {
  auto const pointer = allocate(100);
  {
    Current const other{contexts[1]};
    ok(cu.cuMemFree(pointer));
  }
  EXPECT_EQ(control().used(0), 0U);
  expected_violations = ElementsAre("cuMemFree of memory of device 0 for device 1");
}

TEST_F(CudaStandIn, NotesAThreadThatEndsWithAContext) {
  std::thread([&] { ok(cu.cuCtxPushCurrent(contexts[1])); }).join();
  expected_violations = ElementsAre("a thread ended with a context on its stack");
}

TEST_F(CudaStandIn, RefusesWhatADeviceSaysItCannotDo) {
  control().set_attribute(0, DeviceAttribute::memory_pools, 0);
  control().set_attribute(0, DeviceAttribute::managed_memory, 0);
  control().set_attribute(0, DeviceAttribute::virtual_memory_management, 0);
  control().set_attribute(0, DeviceAttribute::compute_mode, static_cast<int>(ComputeMode::prohibited));
  int value = 1;
  ok(cu.cuDeviceGetAttribute(&value, DeviceAttribute::memory_pools, 0));
  EXPECT_EQ(value, 0);
  DevicePointer pointer = 0;
  EXPECT_EQ(cu.cuMemAllocAsync(&pointer, 1, nullptr), Result::not_supported);
  EXPECT_EQ(cu.cuMemAllocManaged(&pointer, 1, attach_global), Result::not_supported);
  AllocationHandle handle = 0;
  AllocationProperties const properties;
  EXPECT_EQ(cu.cuMemCreate(&handle, std::size_t{2} << 20, &properties, 0), Result::not_supported);
  Context context = nullptr;
  EXPECT_EQ(cu.cuDevicePrimaryCtxRetain(&context, 0), Result::device_unavailable);
}

TEST_F(CudaStandIn, NotesAWritePastTheEnd) {
  auto* const pinned = allocate_pinned(100);
  pinned[100] = std::byte{1};
  ok(cu.cuMemFreeHost(pinned));
  expected_violations = ElementsAre("cuMemFreeHost of memory that was written past its end");
}

TEST_F(CudaStandIn, StreamMemoryExistsFromItsCommandOn) {
  auto const stream = create_stream(), other = create_stream();
  DevicePointer pointer = 0;
  control().hold_stream(stream, true);
  ok(cu.cuMemAllocAsync(&pointer, 100, stream));
  ok(cu.cuMemsetD8Async(pointer, 5, 10, other));
  EXPECT_EQ(cu.cuStreamSynchronize(other), Result::illegal_address);
  expected_violations = ElementsAre("cuMemsetD8Async of memory whose cuMemAllocAsync does not come before it");
  control().hold_stream(stream, false);
  EXPECT_EQ(cu.cuStreamDestroy(stream), Result::illegal_address);
  EXPECT_EQ(cu.cuStreamDestroy(other), Result::illegal_address);
}

TEST_F(CudaStandIn, FreesOnlyStreamOrderedMemory) {
  auto const pointer = allocate(10);
  EXPECT_EQ(cu.cuMemFreeAsync(pointer, nullptr), Result::invalid_value);
  ok(cu.cuMemFree(pointer));
}

TEST_F(CudaStandIn, RegistersHostMemoryOnceAndAsAWhole) {
  std::vector<std::byte> memory(100'000);
  ok(cu.cuMemHostRegister(memory.data(), memory.size(), host_register_portable));
  EXPECT_EQ(cu.cuMemHostRegister(memory.data() + 5000, 10, 0), Result::host_memory_already_registered);
  EXPECT_EQ(cu.cuMemHostUnregister(memory.data() + 1), Result::host_memory_not_registered);
  EXPECT_EQ(cu.cuMemFreeHost(memory.data()), Result::invalid_value);
  DevicePointer device_pointer = 0;
  ok(cu.cuMemHostGetDevicePointer(&device_pointer, memory.data() + 8, 0));
  EXPECT_EQ(device_pointer, reinterpret_cast<DevicePointer>(memory.data() + 8));
  EXPECT_EQ(control().live().registered, 1U);
  EXPECT_EQ(control().live().pinned_bytes, memory.size());
  ok(cu.cuMemHostUnregister(memory.data()));
  EXPECT_EQ(cu.cuMemHostUnregister(memory.data()), Result::host_memory_not_registered);
  EXPECT_EQ(cu.cuMemHostRegister(nullptr, 10, 0), Result::invalid_value);
  EXPECT_EQ(cu.cuMemHostRegister(memory.data(), 0, 0), Result::invalid_value);
}

TEST_F(CudaStandIn, GivesKernelsAnotherAddressForWriteCombinedMemory) {
  // CUDA Driver API, "Unified Addressing": the one exception.
  void* host = nullptr;
  ok(cu.cuMemHostAlloc(&host, 100, host_alloc_write_combined));
  DevicePointer seen = 0;
  ok(cu.cuMemHostGetDevicePointer(&seen, static_cast<std::byte*>(host) + 8, 0));
  EXPECT_NE(seen, reinterpret_cast<DevicePointer>(host) + 8);
  EXPECT_EQ(control().live().pinned, 1U);
  EXPECT_EQ(control().live().pinned_bytes, 100U);
  auto type = MemoryType::device;
  ok(cu.cuPointerGetAttribute(&type, PointerAttribute::memory_type, seen));
  EXPECT_EQ(type, MemoryType::host);
  ok(cu.cuMemsetD8Async(seen, 42, 10, nullptr));
  ok(cu.cuStreamSynchronize(nullptr));
  auto const* const bytes = static_cast<unsigned char const*>(host);
  EXPECT_THAT(std::vector(bytes, bytes + 20),
              testing::ElementsAreArray({0xCD, 0xCD, 0xCD, 0xCD, 0xCD, 0xCD, 0xCD, 0xCD, 42,   42,
                                         42,   42,   42,   42,   42,   42,   42,   42,   0xCD, 0xCD}));
  ok(cu.cuMemFreeHost(host));
  EXPECT_EQ(cu.cuMemHostGetDevicePointer(&seen, host, 0), Result::invalid_value);
}

}  // namespace
}  // namespace unimem::standin
