#include "device/cuda_standin_fixture.hpp"

#include <atomic>

// Modules and kernels of the stand-in driver.

namespace unimem::standin {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class CudaStandInKernels : public CudaStandIn {
 protected:
  void SetUp() override {
    CudaStandIn::SetUp();
    ok(cu.cuModuleLoadData(&module, image.data()));
    ok(cu.cuModuleGetFunction(&add, module, "add"));
  }

  void TearDown() override {
    if (module != nullptr) ok(cu.cuModuleUnload(module));
    CudaStandIn::TearDown();
  }

  [[nodiscard]] Result launch_add(DevicePointer data, int amount, unsigned long count, Stream stream = nullptr) const {
    void* parameters[] = {&data, &amount, &count};
    return cu.cuLaunchKernel(add, 4, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr);
  }

  std::string const image = kernel_image();
  Module module = nullptr;
  Function add = nullptr;
};

TEST_F(CudaStandInKernels, RunWithTheParametersOfTheirLaunch) {
  auto const data = allocate(40);
  ok(cu.cuMemsetD32Async(data, 5, 10, nullptr));
  control().hold(true);
  ok(launch_add(data, 3, 10));  // its parameters are gone before it runs
  control().hold(false);
  auto const bytes = read(data, 40);
  for (std::size_t at = 0; at < bytes.size(); at += 4) EXPECT_EQ(bytes[at], 8);
  ok(cu.cuMemFree(data));
}

TEST_F(CudaStandInKernels, TakeTheirParametersFromAPackedBufferToo) {
  auto const data = allocate(4);
  ok(cu.cuMemsetD32Async(data, 5, 1, nullptr));
  struct {
    DevicePointer data;
    int amount;
    unsigned long count;
  } packed{data, 4, 1};
  std::size_t size = sizeof packed;
  void* extra[] = {reinterpret_cast<void*>(1), &packed, reinterpret_cast<void*>(2), &size, nullptr};
  ok(cu.cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
  EXPECT_EQ(read(data, 1).front(), 9);
  ok(cu.cuMemFree(data));
}

TEST_F(CudaStandInKernels, TellTheirParameters) {
  std::size_t offset = 0, bytes = 0;
  ok(cu.cuFuncGetParamInfo(add, 1, &offset, &bytes));
  EXPECT_EQ(offset, 8U);
  EXPECT_EQ(bytes, 4U);
  EXPECT_EQ(cu.cuFuncGetParamInfo(add, 3, &offset, &bytes), Result::invalid_value);
  int grid = 0, block = 0;
  ok(cu.cuOccupancyMaxPotentialBlockSize(&grid, &block, add, nullptr, 0, 0));
  EXPECT_EQ(block, 256);
  ok(cu.cuOccupancyMaxPotentialBlockSize(&grid, &block, add, nullptr, 0, 100));
  EXPECT_EQ(block, 100);
}

TEST_F(CudaStandInKernels, RefuseShapesThatNoDeviceHas) {
  Function nothing = nullptr;
  ok(cu.cuModuleGetFunction(&nothing, module, "nothing"));
  auto const launch = [&](unsigned grid, unsigned block, unsigned z = 1) {
    return cu.cuLaunchKernel(nothing, grid, 1, 1, block, 1, z, 0, nullptr, nullptr, nullptr);
  };
  ok(launch(1, 1024));
  EXPECT_EQ(launch(0, 1), Result::invalid_value);
  EXPECT_EQ(launch(1, 0), Result::invalid_value);
  EXPECT_EQ(launch(1, 1025), Result::invalid_value);
  EXPECT_EQ(launch(1, 512, 4), Result::invalid_value);
  EXPECT_EQ(cu.cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), Result::invalid_value);
  ok(cu.cuStreamSynchronize(nullptr));
}

TEST_F(CudaStandInKernels, AreFoundInImagesAlone) {
  Module none = nullptr;
  Function function = nullptr;
  char const text[] = ".version 8.0 .target sm_90";
  EXPECT_EQ(cu.cuModuleLoadData(&none, text), Result::invalid_image);
  auto broken = image;
  broken[20] = 'x';
  EXPECT_EQ(cu.cuModuleLoadData(&none, broken.data()), Result::invalid_image);
  EXPECT_EQ(cu.cuModuleGetFunction(&function, module, "subtract"), Result::not_found);
  EXPECT_EQ(cu.cuModuleGetFunction(&function, nullptr, "add"), Result::invalid_handle);
}

TEST_F(CudaStandInKernels, BelongToTheContextTheyWereLoadedIn) {
  Current const other{contexts[1]};
  EXPECT_EQ(launch_add(0, 0, 0), Result::invalid_handle);
  Stream const theirs = create_stream();
  {
    Current const back{contexts[0]};
    EXPECT_EQ(launch_add(0, 0, 0, theirs), Result::invalid_handle);
  }
  EXPECT_EQ(cu.cuModuleUnload(module), Result::invalid_handle);
  ok(cu.cuStreamDestroy(theirs));
}

TEST_F(CudaStandInKernels, BreakTheDeviceOverADanglingPointer) {
  auto const gone = allocate(4);
  ok(cu.cuMemFree(gone));
  ok(launch_add(gone, 1, 1));
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), Result::illegal_address);
  EXPECT_EQ(cu.cuModuleUnload(std::exchange(module, nullptr)), Result::illegal_address);
}

TEST_F(CudaStandInKernels, BreakTheDeviceOverPageableMemory) {
  std::vector<int> pageable(10);
  ok(launch_add(reinterpret_cast<DevicePointer>(pageable.data()), 1, 10));
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), Result::illegal_address);
  EXPECT_EQ(cu.cuModuleUnload(std::exchange(module, nullptr)), Result::illegal_address);
}

TEST_F(CudaStandInKernels, BreakTheDeviceOverMemoryOfAnotherDevice) {
  DevicePointer theirs = 0;
  {
    Current const other{contexts[1]};
    theirs = allocate(4);
  }
  ok(launch_add(theirs, 1, 1));
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), Result::illegal_address);
  EXPECT_EQ(cu.cuModuleUnload(std::exchange(module, nullptr)), Result::illegal_address);
  Current const other{contexts[1]};
  ok(cu.cuMemFree(theirs));
}

TEST_F(CudaStandInKernels, UsePinnedAndManagedMemoryWhereItIs) {
  auto* const pinned = allocate_pinned(8);
  std::memset(pinned, 0, 8);
  ok(launch_add(reinterpret_cast<DevicePointer>(pinned), 7, 2));
  ok(cu.cuStreamSynchronize(nullptr));
  EXPECT_EQ(pinned[4], std::byte{7});
  ok(cu.cuMemFreeHost(pinned));
  DevicePointer managed = 0;
  ok(cu.cuMemAllocManaged(&managed, 4, attach_global));
  *reinterpret_cast<int*>(managed) = 1;
  ok(launch_add(managed, 7, 1));
  ok(cu.cuStreamSynchronize(nullptr));
  EXPECT_EQ(*reinterpret_cast<int*>(managed), 8);
  ok(cu.cuMemFree(managed));
}

TEST_F(CudaStandInKernels, AreNotedWhenTheirModuleIsUnloaded) {
  control().hold(true);
  auto const data = allocate(4);
  ok(launch_add(data, 1, 1));
  ok(cu.cuModuleUnload(std::exchange(module, nullptr)));
  EXPECT_EQ(launch_add(data, 1, 1), Result::invalid_handle);
  control().hold(false);
  ok(cu.cuStreamSynchronize(nullptr));  // what was queued still had its code
  ok(cu.cuMemFree(data));
  expected_violations = ElementsAre(HasSubstr("cuModuleUnload of a module whose kernels are still queued"));
}

TEST_F(CudaStandInKernels, RunBesideOtherStreams) {
  Function gate = nullptr;
  ok(cu.cuModuleGetFunction(&gate, module, "gate"));
  auto* const flag = new (allocate_pinned(sizeof(std::atomic<int>))) std::atomic<int>{0};
  DevicePointer parameter = reinterpret_cast<DevicePointer>(flag);
  void* parameters[] = {&parameter};
  Stream const closed = create_stream(), open = create_stream();
  ok(cu.cuLaunchKernel(gate, 1, 1, 1, 1, 1, 1, 0, closed, parameters, nullptr));
  auto const data = allocate(4);
  ok(cu.cuMemsetD32Async(data, 0, 1, open));
  ok(launch_add(data, 1, 1, open));
  ok(cu.cuStreamSynchronize(open));
  EXPECT_EQ(cu.cuStreamQuery(closed), Result::not_ready);
  flag->store(1);
  ok(cu.cuStreamSynchronize(closed));
  for (auto const stream : {closed, open}) ok(cu.cuStreamDestroy(stream));
  ok(cu.cuMemFree(data));
  ok(cu.cuMemFreeHost(flag));
}

TEST_F(CudaStandInKernels, RunInGraphsWithTheirParameters) {
  Stream const stream = create_stream();
  auto const data = allocate(4);
  ok(cu.cuMemsetD32Async(data, 0, 1, stream));
  ok(cu.cuStreamBeginCapture(stream, CaptureMode::relaxed));
  ok(launch_add(data, 5, 1, stream));
  Graph graph = nullptr;
  GraphExec executable = nullptr;
  ok(cu.cuStreamEndCapture(stream, &graph));
  ok(cu.cuGraphInstantiateWithFlags(&executable, graph, 0));
  for (int round = 0; round < 3; ++round) ok(cu.cuGraphLaunch(executable, stream));
  ok(cu.cuStreamSynchronize(stream));
  EXPECT_EQ(read(data, 1).front(), 15);
  ok(cu.cuModuleUnload(std::exchange(module, nullptr)));
  EXPECT_EQ(cu.cuGraphLaunch(executable, stream), Result::invalid_handle);
  expected_violations = ElementsAre("cuGraphLaunch of a graph whose module was unloaded");
  ok(cu.cuGraphExecDestroy(executable));
  ok(cu.cuGraphDestroy(graph));
  ok(cu.cuStreamDestroy(stream));
  ok(cu.cuMemFree(data));
}

}  // namespace
}  // namespace unimem::standin
