#pragma once

#include <unimem/device/queue.hpp>

#include "device/opencl/api.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <utility>

namespace unimem {

/// Holds a queue's later work back until it is opened or destroyed: a user event behind a barrier, put into the
/// driver's queue directly. The library itself never makes user events.
class UserEvent {
 public:
  explicit UserEvent(Queue const& queue) {
    auto* const native = queue.native<cl_command_queue>();
    cl_context context = nullptr;
    cl_int code = entry<decltype(&::clGetCommandQueueInfo)>("clGetCommandQueueInfo")(native, CL_QUEUE_CONTEXT,
                                                                                     sizeof context, &context, nullptr);
    EXPECT_EQ(code, CL_SUCCESS);
    event_ = entry<decltype(&::clCreateUserEvent)>("clCreateUserEvent")(context, &code);
    EXPECT_EQ(code, CL_SUCCESS);
    code =
        entry<decltype(&::clEnqueueBarrierWithWaitList)>("clEnqueueBarrierWithWaitList")(native, 1, &event_, nullptr);
    EXPECT_EQ(code, CL_SUCCESS);
  }
  UserEvent(UserEvent const&) = delete;
  UserEvent& operator=(UserEvent const&) = delete;
  ~UserEvent() {
    open();
    entry<decltype(&::clReleaseEvent)>("clReleaseEvent")(event_);
  }

  void open() {
    if (std::exchange(open_, true)) return;
    EXPECT_EQ(entry<decltype(&::clSetUserEventStatus)>("clSetUserEventStatus")(event_, CL_COMPLETE), CL_SUCCESS);
  }

 private:
  template <class Function>
  static Function entry(char const* name) {
    static auto* const library = dlopen("libOpenCL.so.1", RTLD_NOW);
    return reinterpret_cast<Function>(dlsym(library, name));
  }

  cl_event event_ = nullptr;
  bool open_ = false;
};

}  // namespace unimem
