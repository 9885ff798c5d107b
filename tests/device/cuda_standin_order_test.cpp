#include "device/cuda_standin_fixture.hpp"

// What the stand-in driver notes although it went well this time: work on the same bytes without an order between it,
// and memory that goes before anybody has waited for its users.

namespace unimem::standin {
namespace {

using testing::ElementsAre;

class CudaStandInOrder : public CudaStandIn {
 protected:
  void SetUp() override {
    CudaStandIn::SetUp();
    first = create_stream();
    second = create_stream();
    event = create_event();
    memory = allocate(100);
  }

  void TearDown() override {
    for (auto const each : {first, second}) ok(cu.cuStreamSynchronize(each));
    for (auto const each : {first, second}) ok(cu.cuStreamDestroy(each));
    ok(cu.cuEventDestroy(event));
    if (memory != 0) ok(cu.cuMemFree(memory));
    CudaStandIn::TearDown();
  }

  /// Lets everything end that was begun, without anybody having asked for it.
  static void let_it_end() {
    while (control().live().pending > 0) {
    }
  }

  void fill(DevicePointer at, std::size_t bytes, Stream stream) const {
    ok(cu.cuMemsetD8Async(at, 1, bytes, stream));
    let_it_end();
  }

  Stream first = nullptr, second = nullptr;
  Event event = nullptr;
  DevicePointer memory = 0;
};

TEST_F(CudaStandInOrder, IsMissingBetweenStreamsThatNothingConnects) {
  fill(memory, 50, first);
  fill(memory + 49, 50, second);
  expected_violations = ElementsAre("cuMemsetD8Async races cuMemsetD8Async for the same bytes");
}

TEST_F(CudaStandInOrder, IsLookedForInPinnedMemoryToo) {
  auto* const pinned = allocate_pinned(10);
  ok(cu.cuMemcpyDtoHAsync(pinned, memory, 10, first));
  ok(cu.cuMemcpyDtoHAsync(pinned, memory, 10, second));
  for (auto const each : {first, second}) ok(cu.cuStreamSynchronize(each));
  ok(cu.cuMemFreeHost(pinned));
  expected_violations = ElementsAre("cuMemcpyDtoHAsync races cuMemcpyDtoHAsync for the same bytes");
}

TEST_F(CudaStandInOrder, IsMissingBeforeAnUnorderedFree) {
  fill(memory, 100, first);
  ok(cu.cuMemFree(std::exchange(memory, 0)));
  expected_violations = ElementsAre("cuMemFree of memory that cuMemsetD8Async uses, whose end nobody has waited for");
}

TEST_F(CudaStandInOrder, IsMissingBeforeAFreeOnAnotherStream) {
  DevicePointer pointer = 0;
  ok(cu.cuMemAllocAsync(&pointer, 100, first));
  ok(cu.cuEventRecord(event, first));
  ok(cu.cuStreamWaitEvent(second, event, 0));
  fill(pointer, 100, second);
  ok(cu.cuMemFreeAsync(pointer, first));
  expected_violations =
      ElementsAre("cuMemFreeAsync of memory that cuMemsetD8Async uses, which does not come before it");
}

TEST_F(CudaStandInOrder, IsNotCheckedWhereATestSaysSo) {
  control().check_order(false, false);
  fill(memory, 100, first);
  fill(memory, 100, second);
}

TEST_F(CudaStandInOrder, IsMissingBetweenAKernelAndItsInput) {
  Module module = nullptr;
  Function add = nullptr;
  auto const image = kernel_image();
  ok(cu.cuModuleLoadData(&module, image.data()));
  ok(cu.cuModuleGetFunction(&add, module, "add"));
  int amount = 1;
  unsigned long count = 1;
  void* parameters[] = {&memory, &amount, &count};
  auto const launch = [&](Stream stream) {
    ok(cu.cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
    let_it_end();
  };
  fill(memory, 100, first);
  launch(first);
  launch(second);
  expected_violations = ElementsAre("cuLaunchKernel races cuMemsetD8Async for the same bytes");
  for (auto const each : {first, second}) ok(cu.cuStreamSynchronize(each));
  ok(cu.cuModuleUnload(module));
}

}  // namespace
}  // namespace unimem::standin
