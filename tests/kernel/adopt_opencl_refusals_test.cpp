#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/opencl.hpp>
#include <unimem/kernel/launch.hpp>

#include "device/users_opencl.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>

// What is no context or queue to adopt.

namespace unimem {
namespace {

using ::testing::HasSubstr;

class RefusedOpenCl : public OnUsersOpenCl {
 protected:
  template <class Call>
  static std::string refused(Call const& call) {
    try {
      call();
    } catch (InvalidArgument const& error) {
      return error.what();
    }
    return "nothing";
  }
};

TEST_F(RefusedOpenCl, NothingIsNoHandle) {
  auto& ours = adopt_context(user->context, user->hardware);
  EXPECT_THAT(refused([&] { static_cast<void>(adopt_context(nullptr, user->hardware)); }), HasSubstr("cl_context"));
  EXPECT_THAT(refused([&] { static_cast<void>(adopt_context(user->context, nullptr)); }), HasSubstr("cl_device_id"));
  EXPECT_THAT(refused([&] { static_cast<void>(adopt_queue(ours, nullptr)); }), HasSubstr("cl_command_queue"));
}

TEST_F(RefusedOpenCl, AQueueOfAnotherContextIsRefused) {
  auto& ours = adopt_context(user->context, user->hardware);
  UsersOpenCl const other;
  EXPECT_THAT(refused([&] { static_cast<void>(adopt_queue(ours, other.queue)); }), HasSubstr("another context"));
  EXPECT_THAT(refused([&] { static_cast<void>(adopt_queue(device("opencl:0"), other.queue)); }),
              HasSubstr("another context"));
  EXPECT_EQ(other.references_to_queue(), 1U);
}

TEST_F(RefusedOpenCl, AQueueThatWorksOutOfOrderIsRefused) {
  UsersOpenCl const loose{CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE};
  if (loose.refusal != CL_SUCCESS) GTEST_SKIP() << "the driver makes no such queue: " << loose.refusal;
  auto& ours = adopt_context(loose.context, loose.hardware);
  EXPECT_THAT(refused([&] { static_cast<void>(adopt_queue(ours, loose.queue)); }), HasSubstr("out of order"));
}

TEST_F(RefusedOpenCl, AQueueOfAnotherKindOfDeviceIsRefused) {
  EXPECT_THROW(static_cast<void>(adopt_queue(device("sim"), user->queue)), UnsupportedOperation);
}

/// What it takes another device for, of the same driver.
Device* another_device() {
  for (Device& listed : devices()) {
    if (listed.backend() == Backend::opencl && listed.id() != "opencl:0") return &listed;
  }
  return nullptr;
}

TEST_F(RefusedOpenCl, AContextWithoutTheDeviceIsRefused) {
  auto* const other = another_device();
  if (other == nullptr) GTEST_SKIP() << "it takes two OpenCL devices";
  EXPECT_THAT(refused([&] { static_cast<void>(adopt_context(user->context, hardware_of(*other))); }),
              HasSubstr("without that device"));
}

TEST_F(RefusedOpenCl, AQueueOfAnotherDeviceOfTheContextIsRefused) {
  auto* const other = another_device();
  if (other == nullptr) GTEST_SKIP() << "it takes two OpenCL devices";
  std::array const both{user->hardware, hardware_of(*other)};
  cl_int code = CL_SUCCESS;
  auto* const wide = UNIMEM_USERS(clCreateContext)(nullptr, 2, both.data(), nullptr, nullptr, &code);
  if (code != CL_SUCCESS) GTEST_SKIP() << "the two share no context: " << code;
  auto* const queue = UNIMEM_USERS(clCreateCommandQueue)(wide, both[1], 0, &code);
  ASSERT_EQ(code, CL_SUCCESS);
  auto& first = adopt_context(wide, both[0]);
  auto& second = adopt_context(wide, both[1]);
  EXPECT_NE(&first, &second);
  EXPECT_THAT(refused([&] { static_cast<void>(adopt_queue(first, queue)); }), HasSubstr("another device"));
  auto const three = Kernel("three").source(R"(UNIMEM_KERNEL three(UNIMEM_BUFFER(unimem_u32, x)) {
    UNIMEM_DATA(unimem_u32, x)[UNIMEM_ITEM_X] = 3; })");
  for (auto* const on : {&first, &second}) {
    UnifiedBuffer<std::uint32_t> x(100, {.device = on});
    launch(three, Range{x.size()}, write(x)).wait();
    EXPECT_THAT(x.to_vector(), ::testing::Each(3U)) << on->id();
  }
  EXPECT_EQ(UNIMEM_USERS(clReleaseCommandQueue)(queue), CL_SUCCESS);
  EXPECT_EQ(UNIMEM_USERS(clReleaseContext)(wide), CL_SUCCESS);
}

TEST_F(RefusedOpenCl, APartOfADeviceIsRefused) {
  cl_uint most = 0;
  EXPECT_EQ(
      UNIMEM_USERS(clGetDeviceInfo)(user->hardware, CL_DEVICE_PARTITION_MAX_SUB_DEVICES, sizeof most, &most, nullptr),
      CL_SUCCESS);
  if (most < 2) GTEST_SKIP() << "the driver does not part its device";
  std::array<cl_device_partition_property, 3> const one{CL_DEVICE_PARTITION_EQUALLY, 1, 0};
  std::array<cl_device_id, 64> parts{};
  cl_uint count = 0;
  auto code = UNIMEM_USERS(clCreateSubDevices)(user->hardware, one.data(), 0, nullptr, &count);
  if (code == CL_SUCCESS && count <= parts.size()) {
    code = UNIMEM_USERS(clCreateSubDevices)(user->hardware, one.data(), count, parts.data(), nullptr);
  }
  if (code != CL_SUCCESS || parts[0] == nullptr) GTEST_SKIP() << "the driver does not part its device: " << code;
  EXPECT_THAT(refused([&] { static_cast<void>(adopt_context(user->context, parts[0])); }), HasSubstr("cl_device_id"));
  for (cl_uint i = 0; i < count; ++i) EXPECT_EQ(UNIMEM_USERS(clReleaseDevice)(parts[i]), CL_SUCCESS);
}

}  // namespace
}  // namespace unimem
