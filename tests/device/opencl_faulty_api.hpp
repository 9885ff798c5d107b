#pragma once

#include "device/opencl/api.hpp"
#include "device/opencl/hardware.hpp"
#include "device/opencl/installation.hpp"
#include "device/opencl/opencl_device.hpp"
#include "device/opencl_fixture.hpp"

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

namespace unimem {

/// What the faulty driver shall do wrong next. Codes of OpenCL; CL_SUCCESS: nothing.
struct OpenClFaults {
  cl_int refuse_context = CL_SUCCESS;  ///< clCreateContext
  cl_int refuse_queue = CL_SUCCESS;    ///< clCreateCommandQueue
  cl_int refuse_buffer = CL_SUCCESS;   ///< clCreateBuffer
  cl_int refuse_upload = CL_SUCCESS;   ///< clEnqueueWriteBuffer, at once
  cl_int refuse_fill = CL_SUCCESS;     ///< clEnqueueFillBuffer, at once
  cl_int fail_next_run = CL_SUCCESS;   ///< the next clEnqueueNDRangeKernel is accepted, runs, and ends with this
  cl_int refuse_run = CL_SUCCESS;      ///< clEnqueueNDRangeKernel, at once, after `runs_before_refusal` of them
  int runs_before_refusal = 0;
  cl_int refuse_event_info = CL_SUCCESS;  ///< clGetEventInfo
  bool hide_parameters = false;           ///< clGetKernelArgInfo tells nothing, which the specification allows
};

/// The real driver behind a table with entries that do wrong on demand: faults by composition, without a driver that
/// has them. One per process, because entries of the table are plain functions. For tests of one thread at a time.
class FaultyOpenCl {
 public:
  static FaultyOpenCl& instance() {
    static auto& only = *new FaultyOpenCl;  // outlives the devices made over its table
    return only;
  }

  /// Set before the call that shall go wrong, cleared after it.
  OpenClFaults faults;

  /// What the driver's compiler was asked for, from any thread: how often, and what is called first each time. Set
  /// while nothing is compiled.
  std::atomic<int> builds{0};
  std::function<void()> before_build;

  /// A device over the faulty table on the hardware of opencl:0.
  [[nodiscard]] std::unique_ptr<detail::opencl::OpenClDevice> open(std::string id) const {
    auto hardware = detail::opencl::installation().hardware.front();
    hardware.api = &table_;
    return std::make_unique<detail::opencl::OpenClDevice>(std::move(id), hardware, detail::opencl::OpenClOptions{});
  }

 private:
  FaultyOpenCl() : real_(*detail::opencl::installation().hardware.front().api), table_(real_) {
    table_.clCreateContext = [](auto... arguments) {
      return made(faulty().refuse_context, &Api::clCreateContext, arguments...);
    };
    table_.clCreateCommandQueue = [](auto... arguments) {
      return made(faulty().refuse_queue, &Api::clCreateCommandQueue, arguments...);
    };
    table_.clCreateBuffer = [](auto... arguments) {
      return made(faulty().refuse_buffer, &Api::clCreateBuffer, arguments...);
    };
    table_.clEnqueueWriteBuffer = [](auto... arguments) {
      return done(faulty().refuse_upload, &Api::clEnqueueWriteBuffer, arguments...);
    };
    table_.clEnqueueFillBuffer = [](auto... arguments) {
      return done(faulty().refuse_fill, &Api::clEnqueueFillBuffer, arguments...);
    };
    table_.clBuildProgram = [](auto... arguments) {
      ++instance().builds;
      if (auto const& call = instance().before_build) call();
      return instance().real_.clBuildProgram(arguments...);
    };
    table_.clGetKernelArgInfo = [](auto... arguments) {
      return done(faulty().hide_parameters ? CL_KERNEL_ARG_INFO_NOT_AVAILABLE : CL_SUCCESS, &Api::clGetKernelArgInfo,
                  arguments...);
    };
    table_.clEnqueueNDRangeKernel = [](cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                                       std::size_t const* offset, std::size_t const* global, std::size_t const* local,
                                       cl_uint count, cl_event const* list, cl_event* event) {
      auto& self = instance();
      if (self.faults.refuse_run != CL_SUCCESS && self.faults.runs_before_refusal-- == 0) return self.faults.refuse_run;
      auto const code =
          self.real_.clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, local, count, list, event);
      if (code == CL_SUCCESS && self.faults.fail_next_run != CL_SUCCESS) self.doom(*event);
      return code;
    };
    table_.clGetEventInfo = [](cl_event event, cl_event_info name, std::size_t size, void* value, std::size_t* used) {
      auto& self = instance();
      if (self.faults.refuse_event_info != CL_SUCCESS) return self.faults.refuse_event_info;
      auto const code = self.real_.clGetEventInfo(event, name, size, value, used);
      if (code == CL_SUCCESS && name == CL_EVENT_COMMAND_EXECUTION_STATUS)
        self.apply_doom(event, *static_cast<cl_int*>(value));
      return code;
    };
  }

  using Api = detail::opencl::Api;

  static OpenClFaults& faulty() { return instance().faults; }

  /// A call that returns its code.
  template <class Function, class... Arguments>
  static cl_int done(cl_int fault, Function Api::* entry, Arguments... arguments) {
    return fault != CL_SUCCESS ? fault : (instance().real_.*entry)(arguments...);
  }

  /// A call that returns an object, and its code through the last argument.
  template <class Function, class First, class... Rest>
  static auto made(cl_int fault, Function Api::* entry, First first, Rest... rest)
      -> decltype((std::declval<Api const&>().*entry)(first, rest...)) {
    if (fault == CL_SUCCESS) return (instance().real_.*entry)(first, rest...);
    *std::get<sizeof...(Rest) - 1>(std::tuple{rest...}) = fault;
    return nullptr;
  }

  void doom(cl_event event) {
    std::lock_guard const lock{mutex_};
    real_.clRetainEvent(event);  // kept for good, so that the handle is never another event's
    doomed_[event] = std::exchange(faults.fail_next_run, CL_SUCCESS);
  }

  void apply_doom(cl_event event, cl_int& status) {
    std::lock_guard const lock{mutex_};
    auto const found = doomed_.find(event);
    if (found != doomed_.end() && status == CL_COMPLETE) status = found->second;
  }

  Api const real_;
  Api table_;
  std::mutex mutex_;
  std::map<cl_event, cl_int> doomed_;
};

/// One device over the faulty table for all tests.
inline Device& faulty_device() {
  static Device& device = kept(FaultyOpenCl::instance().open("opencl:0,faulty"));
  return device;
}

/// Work that the driver accepts and reports as failed when it ends.
inline Event fail(Queue& queue) {
  static auto& program =
      *new std::shared_ptr<Program const>(compile(faulty_device(), "nothing", "UNIMEM_KERNEL nothing() {}"));
  FaultyOpenCl::instance().faults.fail_next_run = CL_OUT_OF_RESOURCES;
  return queue.run(program, {1}, {});
}

}  // namespace unimem
