#include "device/opencl/first_run.hpp"

#include "device/opencl/handle.hpp"

#include <cstddef>

namespace unimem::detail::opencl {

void run_to_the_end_once(Api const& api, cl_context context, cl_device_id device) {
  char const* text = "__kernel void nothing(void) {}";
  cl_int code = CL_SUCCESS;
  ProgramHandle const program{api, api.clCreateProgramWithSource(context, 1, &text, nullptr, &code)};
  if (code != CL_SUCCESS || api.clBuildProgram(program.get(), 1, &device, "", nullptr, nullptr) != CL_SUCCESS) return;
  KernelHandle const kernel{api, api.clCreateKernel(program.get(), "nothing", &code)};
  if (code != CL_SUCCESS) return;
  QueueHandle const queue{api, api.clCreateCommandQueue(context, device, 0, &code)};
  if (code != CL_SUCCESS) return;
  std::size_t const one = 1;
  cl_event event = nullptr;
  code = api.clEnqueueNDRangeKernel(queue.get(), kernel.get(), 1, nullptr, &one, nullptr, 0, nullptr, &event);
  if (code != CL_SUCCESS) return;
  EventHandle const end{api, event};
  // NOLINTNEXTLINE(bugprone-unused-return-value): the first real run tells
  static_cast<void>(api.clWaitForEvents(1, &event));
}

}  // namespace unimem::detail::opencl
