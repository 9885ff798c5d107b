#pragma once

#include <unimem/device/queue.hpp>

#include "device/opencl/api.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <utility>

namespace unimem {

/// Holds a queue's later work back until it is opened, failed or destroyed: a user event behind a barrier, put into the
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
        entry<decltype(&::clEnqueueBarrierWithWaitList)>("clEnqueueBarrierWithWaitList")(native, 1, &event_, &barrier_);
    EXPECT_EQ(code, CL_SUCCESS);
  }
  UserEvent(UserEvent const&) = delete;
  UserEvent& operator=(UserEvent const&) = delete;
  ~UserEvent() {
    open();
    for (auto* const event : {event_, barrier_}) entry<decltype(&::clReleaseEvent)>("clReleaseEvent")(event);
  }

  void open() { end(CL_COMPLETE); }
  /// The work behind it fails.
  void fail() { end(-1); }

 private:
  void end(cl_int status) {
    if (std::exchange(open_, true)) return;
    EXPECT_EQ(entry<decltype(&::clSetUserEventStatus)>("clSetUserEventStatus")(event_, status), CL_SUCCESS);
  }

  template <class Function>
  static Function entry(char const* name) {
    static auto* const library = dlopen("libOpenCL.so.1", RTLD_NOW);
    return reinterpret_cast<Function>(dlsym(library, name));
  }

  cl_event event_ = nullptr;
  cl_event barrier_ = nullptr;  ///< kept: PoCL destroys one that nobody keeps while it fails
  bool open_ = false;
};

}  // namespace unimem
