#pragma once

#include <unimem/device/memory.hpp>

#include "device/opencl/api.hpp"
#include "device/process_end.hpp"

#include <utility>

namespace unimem::detail::opencl {

/// One reference to an OpenCL object, given back when it goes; dropped without a call when the driver is gone.
/// Move-only.
template <class Object, auto release>
class Handle {
 public:
  Handle() = default;
  Handle(Api const& api, Object object) noexcept : api_(&api), object_(object) {}
  Handle(Handle&& other) noexcept : api_(other.api_), object_(std::exchange(other.object_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(object_, other.object_);
    return *this;
  }
  ~Handle() {
    if (object_ != nullptr && !driver_gone()) (api_->*release)(object_);
  }

  [[nodiscard]] Object get() const noexcept { return object_; }
  /// The object with its reference, no longer this handle's to give back.
  [[nodiscard]] Object detach() noexcept { return std::exchange(object_, nullptr); }
  [[nodiscard]] explicit operator bool() const noexcept { return object_ != nullptr; }

 private:
  Api const* api_ = nullptr;
  Object object_ = nullptr;
};

using ContextHandle = Handle<cl_context, &Api::clReleaseContext>;
using QueueHandle = Handle<cl_command_queue, &Api::clReleaseCommandQueue>;
using MemoryHandle = Handle<cl_mem, &Api::clReleaseMemObject>;
using ProgramHandle = Handle<cl_program, &Api::clReleaseProgram>;
using KernelHandle = Handle<cl_kernel, &Api::clReleaseKernel>;
using EventHandle = Handle<cl_event, &Api::clReleaseEvent>;

/// The object behind device memory of an OpenCL device.
[[nodiscard]] inline cl_mem object_of(DeviceMemory memory) noexcept {
  return reinterpret_cast<cl_mem>(memory.object);
}

}  // namespace unimem::detail::opencl
