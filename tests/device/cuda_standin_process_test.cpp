#include "device/cuda_standin_fixture.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>

// What the environment says to the stand-in driver before it begins, forked children, and how a process ends: each case
// in a process of its own.

namespace unimem::standin {
namespace {

using testing::HasSubstr;

/// The stand-in as this environment makes it.
LoadedDriver load(std::initializer_list<std::pair<char const*, char const*>> environment = {}) {
  setenv("UNIMEM_CUDA_LIBRARY", UNIMEM_CUDA_STANDIN, 1);
  for (auto const& [name, value] : environment) setenv(name, value, 1);
  return load_driver();
}

TEST(CudaStandInProcess, FailsWhereTheEnvironmentSaysSo) {
  auto const loaded = load({{"UNIMEM_CUDA_STANDIN_FAULT", "cuDeviceGetCount:2:999,cuMemsetD8Async:1:700"}});
  ASSERT_EQ(loaded.problem, "");
  auto const& cu = loaded.driver;
  int count = 0;
  EXPECT_EQ(cu.cuDeviceGetCount(&count), Result::success);
  EXPECT_EQ(cu.cuDeviceGetCount(&count), Result::unknown);
  EXPECT_EQ(cu.cuDeviceGetCount(&count), Result::success);
  Context context = nullptr;
  DevicePointer pointer = 0;
  EXPECT_EQ(cu.cuDevicePrimaryCtxRetain(&context, 0), Result::success);
  EXPECT_EQ(cu.cuCtxPushCurrent(context), Result::success);
  EXPECT_EQ(cu.cuMemAlloc(&pointer, 1), Result::success);
  EXPECT_EQ(cu.cuMemsetD8Async(pointer, 0, 1, nullptr), Result::success);
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), Result::illegal_address);
}

TEST(CudaStandInProcess, EndsWithASettingThatCannotBeRead) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(load({{"UNIMEM_CUDA_STANDIN_FAULT", "cuMemAlloc"}}), "UNIMEM_CUDA_STANDIN_FAULT cannot be read");
}

TEST(CudaStandInProcess, EndsAtAViolationWhereItIsTold) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        auto const loaded = load({{"UNIMEM_CUDA_STANDIN_VIOLATIONS", "abort"}});
        Context context = nullptr;
        DevicePointer pointer = 0;
        loaded.driver.cuDevicePrimaryCtxRetain(&context, 0);
        loaded.driver.cuCtxPushCurrent(context);
        loaded.driver.cuMemAlloc(&pointer, 1);
        loaded.driver.cuDevicePrimaryCtxRelease(0);
      },
      "the context of device 0 ended with .* 1 allocation");
}

TEST(CudaStandInProcess, ServesNobodyBeforeItIsInitialized) {
  auto* const library = dlopen(UNIMEM_CUDA_STANDIN, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  using Get = Result (*)(char const*, void**, int, std::uint64_t, int*);
  auto const get = reinterpret_cast<Get>(dlsym(library, "cuGetProcAddress_v2"));
  void* function = nullptr;
  int status = -1, count = 0;
  ASSERT_EQ(get("cuDeviceGetCount", &function, 12040, 0, &status), Result::success);
  EXPECT_EQ(status, 0);
  auto const count_devices = reinterpret_cast<Result (*)(int*)>(function);
  EXPECT_EQ(count_devices(&count), Result::not_initialized);
  EXPECT_EQ(get("cuMemAdvise", &function, 12010, 0, &status), Result::not_found);
  EXPECT_EQ(status, 2) << "an older form than there is";
  EXPECT_EQ(get("cuMemConjure", &function, 12040, 0, &status), Result::not_found);
  EXPECT_EQ(status, 1);
  EXPECT_EQ(function, nullptr);
}

/// How a child of this process ended, or 256 and the signal.
int end_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

TEST(CudaStandInProcess, ServesNoForkedChild) {
  auto const loaded = load();
  ASSERT_EQ(loaded.problem, "");
  auto const& cu = loaded.driver;
  Context context = nullptr;
  ASSERT_EQ(cu.cuDevicePrimaryCtxRetain(&context, 0), Result::success);
  ASSERT_EQ(cu.cuCtxPushCurrent(context), Result::success);
  ASSERT_EQ(cu.cuStreamSynchronize(nullptr), Result::success);  // there is a worker, which a child has not
  auto const child = fork();
  if (child == 0) {
    int count = 0;
    auto const fine = cu.cuDeviceGetCount(&count) == Result::not_initialized &&
                      cu.cuStreamSynchronize(nullptr) == Result::not_initialized;
    std::exit(fine ? 7 : 8);
  }
  EXPECT_EQ(end_of(child), 7);
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), Result::success);
}

/// Calls the driver when static objects are destroyed, after the driver if it was made before it.
struct LateCaller {
  ~LateCaller() {
    if (entry == nullptr) return;
    int count = 0;
    std::fprintf(stderr, "said %d\n", static_cast<int>(entry(&count)));
  }
  Result (*entry)(int*) = nullptr;
};

TEST(CudaStandInProcess, ReportsCallsAfterItsEnd) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        static LateCaller late;
        auto const loaded = load();
        auto const& cu = loaded.driver;
        late.entry = cu.cuDeviceGetCount;
        Context context = nullptr;
        DevicePointer pointer = 0;
        cu.cuDevicePrimaryCtxRetain(&context, 0);
        cu.cuCtxPushCurrent(context);
        cu.cuMemAlloc(&pointer, 1);
        find_control(UNIMEM_CUDA_STANDIN)->hold(true);
        cu.cuMemsetD8Async(pointer, 0, 1, nullptr);
        std::exit(3);
      },
      testing::ExitedWithCode(3), "cuDeviceGetCount after the driver is gone\nsaid 4");
}

}  // namespace
}  // namespace unimem::standin
