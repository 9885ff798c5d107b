#pragma once

// The 2.0 declarations are for shared virtual memory alone; nothing else newer than 1.2 is called.
#define CL_TARGET_OPENCL_VERSION 200
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>

#include <string>

// clang-format off
// Every function this library calls. One list, so that what is declared, loaded and serialized cannot drift apart.
#define UNIMEM_OPENCL_FUNCTIONS(each)                                                                              \
  each(clGetPlatformIDs) each(clGetPlatformInfo) each(clGetDeviceIDs) each(clGetDeviceInfo)                        \
  each(clCreateContext) each(clRetainContext) each(clReleaseContext) each(clGetContextInfo)                        \
  each(clCreateCommandQueue) each(clRetainCommandQueue) each(clReleaseCommandQueue)                                \
  each(clGetCommandQueueInfo) each(clFlush)                                                                        \
  each(clCreateBuffer) each(clCreateSubBuffer) each(clReleaseMemObject) each(clGetMemObjectInfo)                   \
  each(clCreateProgramWithSource) each(clBuildProgram) each(clReleaseProgram)                                      \
  each(clGetProgramBuildInfo) each(clGetProgramInfo)                                                               \
  each(clCreateKernel) each(clReleaseKernel) each(clSetKernelArg)                                                  \
  each(clGetKernelInfo) each(clGetKernelArgInfo) each(clGetKernelWorkGroupInfo)                                    \
  each(clEnqueueWriteBuffer) each(clEnqueueReadBuffer) each(clEnqueueCopyBuffer) each(clEnqueueFillBuffer)         \
  each(clEnqueueWriteBufferRect) each(clEnqueueReadBufferRect) each(clEnqueueCopyBufferRect)                       \
  each(clEnqueueNDRangeKernel) each(clEnqueueBarrierWithWaitList) each(clEnqueueMarkerWithWaitList)                \
  each(clWaitForEvents) each(clGetEventInfo) each(clGetEventProfilingInfo) each(clRetainEvent)                     \
  each(clReleaseEvent)

// Missing from a 1.2 loader. Calling one on a 1.2 device is worse than an error: it may spin for ever.
#define UNIMEM_OPENCL_2_FUNCTIONS(each) each(clSVMAlloc) each(clSVMFree)
// clang-format on

namespace unimem::detail::opencl {

/// OpenCL as a table filled at run time, not as a library linked: the program starts where there is no OpenCL, and a
/// test hands in a table with an entry of its own where it wants a fault. Every object keeps the table it was made
/// with.
struct Api {
  // NOLINTBEGIN(readability-identifier-naming, bugprone-macro-parentheses): OpenCL chose the names
#define UNIMEM_DECLARE(function) decltype(&::function) function = nullptr;
  UNIMEM_OPENCL_FUNCTIONS(UNIMEM_DECLARE)
  UNIMEM_OPENCL_2_FUNCTIONS(UNIMEM_DECLARE)
#undef UNIMEM_DECLARE
  // NOLINTEND(readability-identifier-naming, bugprone-macro-parentheses)
};

/// The table of a library, or why there is none.
struct LoadedApi {
  Api api;
  std::string problem;  ///< empty when the table is complete
};

/// Loads the OpenCL loader: `UNIMEM_OPENCL_LIBRARY` if set, else libOpenCL.so.1. The library is never unloaded: drivers
/// leave threads and exit handlers behind.
[[nodiscard]] LoadedApi load_api();

/// The same functions behind one lock, for a driver that breaks the specification's promise of being thread-safe
/// (Oclgrind keeps its commands in unguarded global maps). Every such table of the process shares the lock.
[[nodiscard]] Api serialized(Api const& api);

}  // namespace unimem::detail::opencl
