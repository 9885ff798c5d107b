#pragma once

#include <unimem/device/discovery.hpp>
#include <unimem/device/opencl.hpp>

#include "device/opencl/api.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

#include <dlfcn.h>

namespace unimem {

/// A function of OpenCL as a program of the user's reaches it.
template <class Function>
Function* entry(char const* name) {
  static auto* const library = dlopen("libOpenCL.so.1", RTLD_NOW);
  return reinterpret_cast<Function*>(dlsym(library, name));
}
// NOLINTNEXTLINE(bugprone-macro-parentheses): a name, of the function and of its type
#define UNIMEM_USERS(function) entry<decltype(::function)>(#function)

inline cl_device_id hardware_of(Device& device) {
  cl_device_id result = nullptr;
  EXPECT_EQ(UNIMEM_USERS(clGetCommandQueueInfo)(device.default_queue().native<cl_command_queue>(), CL_QUEUE_DEVICE,
                                                sizeof result, static_cast<void*>(&result), nullptr),
            CL_SUCCESS);
  return result;
}

/// The OpenCL of a user's program: a context on the hardware of opencl:0, and an in-order queue in it.
class UsersOpenCl {
 public:
  explicit UsersOpenCl(cl_command_queue_properties properties = 0) : hardware(hardware_of(device("opencl:0"))) {
    cl_int code = CL_SUCCESS;
    context = UNIMEM_USERS(clCreateContext)(nullptr, 1, &hardware, nullptr, nullptr, &code);
    EXPECT_EQ(code, CL_SUCCESS);
    queue = UNIMEM_USERS(clCreateCommandQueue)(context, hardware, properties, &refusal);
  }
  UsersOpenCl(UsersOpenCl const&) = delete;
  UsersOpenCl& operator=(UsersOpenCl const&) = delete;
  ~UsersOpenCl() { release(); }

  /// All that is the user's, in the order that suits the user.
  void release() {
    auto const given_back = [](auto* handle, auto release) {
      return handle == nullptr || release(handle) == CL_SUCCESS;
    };
    EXPECT_TRUE(given_back(context, UNIMEM_USERS(clReleaseContext)));
    EXPECT_TRUE(given_back(queue, UNIMEM_USERS(clReleaseCommandQueue)));
    context = nullptr;
    queue = nullptr;
  }

  void fill(DeviceMemory memory, std::uint8_t value) const {
    EXPECT_EQ(UNIMEM_USERS(clEnqueueFillBuffer)(queue, reinterpret_cast<cl_mem>(memory.object), &value, 1,
                                                memory.offset, memory.bytes, 0, nullptr, nullptr),
              CL_SUCCESS);
  }

  [[nodiscard]] cl_uint references_to_queue() const {
    cl_uint count = 0;
    EXPECT_EQ(UNIMEM_USERS(clGetCommandQueueInfo)(queue, CL_QUEUE_REFERENCE_COUNT, sizeof count, &count, nullptr),
              CL_SUCCESS);
    return count;
  }

  cl_device_id hardware;
  cl_context context = nullptr;
  cl_command_queue queue = nullptr;
  cl_int refusal = CL_SUCCESS;  ///< of the queue
};

/// Skipped with the reason where there is no OpenCL.
class OnUsersOpenCl : public ::testing::Test {
 protected:
  void SetUp() override {
    for (auto const& [backend, reason] : unavailable_backends()) {
      if (backend == Backend::opencl) GTEST_SKIP() << reason;
    }
    user.emplace();
  }

  std::optional<UsersOpenCl> user;
};

}  // namespace unimem
