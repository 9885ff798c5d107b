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

}  // namespace
}  // namespace unimem::standin
