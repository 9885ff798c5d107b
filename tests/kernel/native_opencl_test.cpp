#include "device/opencl/api.hpp"
#include "kernel/native_conformance.hpp"

#include <dlfcn.h>

namespace unimem {
namespace {

void set(void* queue, DeviceMemory memory, unsigned char value) {
  static auto* const library = dlopen("libOpenCL.so.1", RTLD_NOW);
  static auto const fill = reinterpret_cast<decltype(&::clEnqueueFillBuffer)>(dlsym(library, "clEnqueueFillBuffer"));
  ASSERT_EQ(fill(static_cast<cl_command_queue>(queue), reinterpret_cast<cl_mem>(memory.object), &value, 1,
                 memory.offset, memory.bytes, 0, nullptr, nullptr),
            CL_SUCCESS);
}

INSTANTIATE_TEST_SUITE_P(OpenCl, NativeWork, ::testing::Values(NativeCase{"opencl", "opencl:0", false, set}),
                         native_case_name);

}  // namespace
}  // namespace unimem
