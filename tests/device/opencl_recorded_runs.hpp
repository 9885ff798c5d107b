#pragma once

#include "device/opencl/api.hpp"
#include "device/opencl/hardware.hpp"
#include "device/opencl/installation.hpp"
#include "device/opencl/opencl_device.hpp"
#include "device/opencl_fixture.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace unimem {

/// The real driver behind a table that writes down which runs it was asked for and what they wait for. One per process,
/// because entries of the table are plain functions. For tests of one thread.
class RecordedOpenCl {
 public:
  struct Run {
    std::vector<cl_event> awaited;
    std::array<std::size_t, 3> group{};  ///< zeros: the driver's choice
    cl_event event = nullptr;
  };

  static RecordedOpenCl& instance() {
    static auto& only = *new RecordedOpenCl;  // outlives the devices made over its table
    return only;
  }

  std::vector<Run> runs;                  ///< those the driver accepted, in its order
  bool refuses_runs = false;              ///< with CL_OUT_OF_RESOURCES
  std::function<void(cl_event)> on_wait;  ///< called before the host waits for an event

  /// A device on the hardware of opencl:0, in a context of its own.
  [[nodiscard]] std::unique_ptr<Device> open(std::string id) const {
    auto hardware = detail::opencl::installation().hardware.front();
    hardware.api = &table_;
    return std::make_unique<detail::opencl::OpenClDevice>(std::move(id), hardware, detail::opencl::OpenClOptions{});
  }

  /// Which of the runs so far run `index` was told to wait for.
  [[nodiscard]] std::vector<std::size_t> awaited_by(std::size_t index) const {
    std::vector<std::size_t> result;
    for (auto* const event : runs.at(index).awaited) {
      auto const found = std::ranges::find(runs, event, &Run::event);
      result.push_back(static_cast<std::size_t>(found - runs.begin()));
    }
    std::ranges::sort(result);
    return result;
  }

 private:
  RecordedOpenCl() : real_(*detail::opencl::installation().hardware.front().api), table_(real_) {
    table_.clEnqueueNDRangeKernel = [](cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                                       std::size_t const* offset, std::size_t const* global, std::size_t const* local,
                                       cl_uint count, cl_event const* list, cl_event* event) -> cl_int {
      auto& self = instance();
      if (self.refuses_runs) return CL_OUT_OF_RESOURCES;
      Run run{{list, list + count}};
      if (local != nullptr) {
        run.group = {1, 1, 1};
        std::copy_n(local, dimensions, run.group.begin());
      }
      auto const code =
          self.real_.clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, local, count, list, event);
      if (code != CL_SUCCESS) return code;
      self.real_.clRetainEvent(*event);  // kept for good, so that the handle is never another event's
      run.event = *event;
      self.runs.push_back(std::move(run));
      return code;
    };
    table_.clWaitForEvents = [](cl_uint count, cl_event const* list) {
      auto& self = instance();
      for (cl_uint i = 0; self.on_wait && i < count; ++i) self.on_wait(list[i]);
      return self.real_.clWaitForEvents(count, list);
    };
  }

  detail::opencl::Api const real_;
  detail::opencl::Api table_;
};

}  // namespace unimem
