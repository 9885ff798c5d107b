#pragma once

#include "device/cuda/driver.hpp"
#include "device/cuda_standin/control.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace unimem::standin {

using namespace detail::cuda;

/// The table of the stand-in, loaded once: as the backend loads it.
inline Driver const& standin() {
  static auto const& loaded = *new LoadedDriver([] {
    setenv("UNIMEM_CUDA_LIBRARY", UNIMEM_CUDA_STANDIN, 1);
    return load_driver();
  }());
  EXPECT_EQ(loaded.problem, "");
  return loaded.driver;
}

inline StandInControl const& control() {
  static auto const& only = *find_control(UNIMEM_CUDA_STANDIN);
  return only;
}

/// Makes the codes readable where a test fails.
inline void PrintTo(Result result, std::ostream* out) {
  char const* name = nullptr;
  standin().cuGetErrorName(result, &name);
  *out << (name != nullptr ? name : "an error without a name") << " (" << static_cast<int>(result) << ")";
}

/// Both devices with a context, device 0 current. A test ends with nothing left and no violation, or says which it
/// expects.
class CudaStandIn : public testing::Test {
 protected:
  void SetUp() override {
    control().reset();
    for (int device = 0; device < 2; ++device) {
      control().set_capacity(device, capacity);
      ok(cu.cuDevicePrimaryCtxRetain(&contexts[device], device));
    }
    ok(cu.cuCtxPushCurrent(contexts[0]));
  }

  void TearDown() override {
    control().hold(false);
    ok(cu.cuCtxPopCurrent(nullptr));
    for (int device = 0; device < 2; ++device) ok(cu.cuDevicePrimaryCtxRelease(device));
    EXPECT_EQ(control().stack_depth(), 0U);
    EXPECT_THAT(violations(control()), expected_violations);
    auto const live = control().live();
    EXPECT_EQ(live.contexts + live.streams + live.events + live.modules + live.graphs + live.executables, 0U);
    EXPECT_EQ(live.allocations + live.managed + live.pinned + live.registered, 0U);
    EXPECT_EQ(live.reservations + live.mappings + live.handles + live.device_bytes, 0U);
  }

  static void ok(Result result) { ASSERT_EQ(result, Result::success); }

  [[nodiscard]] DevicePointer allocate(std::size_t bytes) const {
    DevicePointer pointer = 0;
    ok(cu.cuMemAlloc(&pointer, bytes));
    return pointer;
  }

  [[nodiscard]] std::byte* allocate_pinned(std::size_t bytes) const {
    void* pointer = nullptr;
    ok(cu.cuMemHostAlloc(&pointer, bytes, 0));
    return static_cast<std::byte*>(pointer);
  }

  [[nodiscard]] Stream create_stream(unsigned flags = stream_non_blocking) const {
    Stream stream = nullptr;
    ok(cu.cuStreamCreate(&stream, flags));
    return stream;
  }

  [[nodiscard]] Event create_event() const {
    Event event = nullptr;
    ok(cu.cuEventCreate(&event, event_disable_timing));
    return event;
  }

  /// What device memory holds, read through a stream of the current context.
  [[nodiscard]] std::vector<unsigned char> read(DevicePointer from, std::size_t bytes) const {
    std::vector<unsigned char> data(bytes);
    ok(cu.cuMemcpyDtoHAsync(data.data(), from, bytes, nullptr));
    return data;
  }

  static constexpr std::size_t capacity = std::size_t{64} << 20;
  Driver const& cu = standin();
  Context contexts[2] = {};
  testing::Matcher<std::vector<std::string>> expected_violations = testing::IsEmpty();
};

/// Runs a scope with another context current.
class Current {
 public:
  explicit Current(Context context) { EXPECT_EQ(standin().cuCtxPushCurrent(context), Result::success); }
  Current(Current const&) = delete;
  Current& operator=(Current const&) = delete;
  ~Current() { EXPECT_EQ(standin().cuCtxPopCurrent(nullptr), Result::success); }
};

/// The image of the kernels in cuda_standin_kernels.cpp.
inline std::string kernel_image() {
  std::ifstream file{UNIMEM_CUDA_STANDIN_KERNELS, std::ios::binary};
  std::string const content{std::istreambuf_iterator<char>{file}, {}};
  std::uint64_t const size = content.size();
  return "UMKERNEL" + std::string(reinterpret_cast<char const*>(&size), sizeof size) + content;
}

}  // namespace unimem::standin
