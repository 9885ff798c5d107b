#include "device/opencl/shared_probe.hpp"

#include "device/opencl/handle.hpp"

#include <algorithm>

namespace unimem::detail::opencl {

std::size_t times_shared_is_counted(Api const& api, cl_context context, cl_device_id device) {
  constexpr std::size_t bytes = 4096;
  auto const* text = R"(
    __kernel void unimem_shares(__global uint* x) {
      __local uint all[1024];
      all[get_local_id(0)] = x[get_global_id(0)];
      barrier(CLK_LOCAL_MEM_FENCE);
      x[get_global_id(0)] = all[get_local_size(0) - 1 - get_local_id(0)];
    })";
  cl_int code = CL_SUCCESS;
  ProgramHandle const program{api, api.clCreateProgramWithSource(context, 1, &text, nullptr, &code)};
  if (code != CL_SUCCESS || api.clBuildProgram(program.get(), 1, &device, "", nullptr, nullptr) != CL_SUCCESS) return 1;
  KernelHandle const kernel{api, api.clCreateKernel(program.get(), "unimem_shares", &code)};
  cl_ulong told = 0;
  if (code != CL_SUCCESS || api.clGetKernelWorkGroupInfo(kernel.get(), device, CL_KERNEL_LOCAL_MEM_SIZE, sizeof told,
                                                         &told, nullptr) != CL_SUCCESS) {
    return 1;
  }
  return std::max<std::size_t>(1, told / bytes);
}

}  // namespace unimem::detail::opencl
