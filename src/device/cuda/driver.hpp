#pragma once

#include "device/cuda/declarations.hpp"

#include <string>

// clang-format off
// Every function of the driver that this library calls: each(name, version that introduced this form, parameters).
// One list, so that what is declared, loaded and compared with cuda.h cannot drift apart.
#define UNIMEM_CUDA_FUNCTIONS(each)                                                                                    \
  each(cuInit, 2000, unsigned flags)                                                                                   \
  each(cuDriverGetVersion, 2020, int* version)                                                                         \
  each(cuGetErrorName, 6000, Result result, char const** name)                                                         \
  each(cuDeviceGetCount, 2000, int* count)                                                                             \
  each(cuDeviceGet, 2000, Device* device, int ordinal)                                                                 \
  each(cuDeviceGetName, 2000, char* name, int bytes, Device device)                                                    \
  each(cuDeviceGetUuid, 11040, Uuid* uuid, Device device)                                                              \
  each(cuDeviceTotalMem, 3020, std::size_t* bytes, Device device)                                                      \
  each(cuDeviceGetAttribute, 2000, int* value, DeviceAttribute attribute, Device device)                               \
  each(cuDeviceCanAccessPeer, 4000, int* can, Device device, Device peer)                                              \
  each(cuDevicePrimaryCtxRetain, 7000, Context* context, Device device)                                                \
  each(cuCtxGetCurrent, 4000, Context* context)                                                                        \
  each(cuCtxPushCurrent, 4000, Context context)                                                                        \
  each(cuCtxPopCurrent, 4000, Context* context)                                                                        \
  each(cuCtxEnablePeerAccess, 4000, Context peer, unsigned flags)                                                      \
  each(cuMemGetInfo, 3020, std::size_t* free_bytes, std::size_t* total_bytes)                                          \
  each(cuMemAlloc, 3020, DevicePointer* pointer, std::size_t bytes)                                                    \
  each(cuMemFree, 3020, DevicePointer pointer)                                                                         \
  each(cuMemAllocAsync, 11020, DevicePointer* pointer, std::size_t bytes, Stream stream)                               \
  each(cuMemFreeAsync, 11020, DevicePointer pointer, Stream stream)                                                    \
  each(cuMemAllocManaged, 6000, DevicePointer* pointer, std::size_t bytes, unsigned flags)                             \
  each(cuMemAdvise, 12020, DevicePointer pointer, std::size_t bytes, Advice advice, MemoryLocation location)           \
  each(cuMemPrefetchAsync, 12020, DevicePointer pointer, std::size_t bytes, MemoryLocation location, unsigned flags,   \
       Stream stream)                                                                                                  \
  each(cuMemHostAlloc, 2020, void** pointer, std::size_t bytes, unsigned flags)                                        \
  each(cuMemFreeHost, 2000, void* pointer)                                                                             \
  each(cuMemHostRegister, 6050, void* pointer, std::size_t bytes, unsigned flags)                                      \
  each(cuMemHostUnregister, 4000, void* pointer)                                                                       \
  each(cuMemHostGetDevicePointer, 3020, DevicePointer* device_pointer, void* pointer, unsigned flags)                  \
  each(cuPointerGetAttribute, 4000, void* value, PointerAttribute attribute, DevicePointer pointer)                    \
  each(cuMemAddressReserve, 10020, DevicePointer* base, std::size_t bytes, std::size_t alignment, DevicePointer wish,  \
       unsigned long long flags)                                                                                       \
  each(cuMemAddressFree, 10020, DevicePointer base, std::size_t bytes)                                                 \
  each(cuMemCreate, 10020, AllocationHandle* handle, std::size_t bytes, AllocationProperties const* properties,        \
       unsigned long long flags)                                                                                       \
  each(cuMemRelease, 10020, AllocationHandle handle)                                                                   \
  each(cuMemMap, 10020, DevicePointer at, std::size_t bytes, std::size_t offset, AllocationHandle handle,              \
       unsigned long long flags)                                                                                       \
  each(cuMemUnmap, 10020, DevicePointer at, std::size_t bytes)                                                         \
  each(cuMemSetAccess, 10020, DevicePointer at, std::size_t bytes, AccessDescription const* access, std::size_t count) \
  each(cuMemGetAllocationGranularity, 10020, std::size_t* bytes, AllocationProperties const* properties,               \
       Granularity which)                                                                                              \
  each(cuMemExportToShareableHandle, 10020, void* shareable, AllocationHandle handle, HandleType type,                 \
       unsigned long long flags)                                                                                       \
  each(cuMemImportFromShareableHandle, 10020, AllocationHandle* handle, void* shareable, HandleType type)              \
  each(cuMemcpyHtoDAsync, 3020, DevicePointer to, void const* from, std::size_t bytes, Stream stream)                  \
  each(cuMemcpyDtoHAsync, 3020, void* to, DevicePointer from, std::size_t bytes, Stream stream)                        \
  each(cuMemcpyDtoDAsync, 3020, DevicePointer to, DevicePointer from, std::size_t bytes, Stream stream)                \
  each(cuMemcpyPeerAsync, 4000, DevicePointer to, Context to_context, DevicePointer from, Context from_context,        \
       std::size_t bytes, Stream stream)                                                                               \
  each(cuMemcpy2DAsync, 3020, Copy2D const* copy, Stream stream)                                                       \
  each(cuMemsetD8Async, 3020, DevicePointer to, unsigned char value, std::size_t count, Stream stream)                 \
  each(cuMemsetD16Async, 3020, DevicePointer to, unsigned short value, std::size_t count, Stream stream)               \
  each(cuMemsetD32Async, 3020, DevicePointer to, unsigned value, std::size_t count, Stream stream)                     \
  each(cuStreamCreate, 2000, Stream* stream, unsigned flags)                                                           \
  each(cuStreamDestroy, 4000, Stream stream)                                                                           \
  each(cuStreamQuery, 2000, Stream stream)                                                                             \
  each(cuStreamSynchronize, 2000, Stream stream)                                                                       \
  each(cuStreamWaitEvent, 3020, Stream stream, Event event, unsigned flags)                                            \
  each(cuThreadExchangeStreamCaptureMode, 10010, CaptureMode* mode)                                                    \
  each(cuStreamIsCapturing, 10000, Stream stream, CaptureStatus* status)                                               \
  each(cuStreamBeginCapture, 10010, Stream stream, CaptureMode mode)                                                   \
  each(cuStreamEndCapture, 10000, Stream stream, Graph* graph)                                                         \
  each(cuStreamGetCtx, 9020, Stream stream, Context* context)                                                          \
  each(cuEventCreate, 2000, Event* event, unsigned flags)                                                              \
  each(cuEventRecord, 2000, Event event, Stream stream)                                                                \
  each(cuEventElapsedTime, 2000, float* milliseconds, Event begin, Event end)                                          \
  each(cuStreamWaitValue32, 11070, Stream stream, DevicePointer address, std::uint32_t value, unsigned flags)          \
  each(cuEventQuery, 2000, Event event)                                                                                \
  each(cuEventSynchronize, 2000, Event event)                                                                          \
  each(cuModuleLoadData, 2000, Module* module, void const* image)                                                      \
  each(cuModuleUnload, 2000, Module module)                                                                            \
  each(cuModuleGetFunction, 2000, Function* function, Module module, char const* name)                                 \
  each(cuOccupancyMaxPotentialBlockSize, 6050, int* grid, int* block, Function function,                               \
       std::size_t (*shared_bytes)(int block), std::size_t dynamic_shared_bytes, int block_limit)                      \
  each(cuFuncGetAttribute, 2020, int* value, FunctionAttribute attribute, Function function)                           \
  each(cuLaunchKernel, 4000, Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,   \
       unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream, void** parameters, void** extra)      \
  each(cuGraphInstantiateWithFlags, 11040, GraphExec* executable, Graph graph, unsigned long long flags)               \
  each(cuGraphLaunch, 10000, GraphExec executable, Stream stream)                                                      \
  each(cuGraphDestroy, 10000, Graph graph)                                                                             \
  each(cuGraphExecDestroy, 10000, GraphExec executable)

// And those that a driver need not have: null in the table then. The library has a second choice for those that a
// driver may be too old for; it calls none of the others, which programs that watch a driver do. From 13.0 on
// cuMemcpyBatchAsync has another form; a driver that is asked for 12.8's gives that one.
#define UNIMEM_CUDA_LATER_FUNCTIONS(each)                                                                              \
  each(cuGetErrorString, 6000, Result result, char const** text)                                                       \
  each(cuDeviceGetPCIBusId, 4010, char* text, int bytes, Device device)                                                \
  each(cuDeviceGetP2PAttribute, 8000, int* value, PeerAttribute attribute, Device from, Device to)                     \
  each(cuDevicePrimaryCtxRelease, 11000, Device device)                                                                \
  each(cuDevicePrimaryCtxGetState, 7000, Device device, unsigned* flags, int* active)                                  \
  each(cuEventDestroy, 4000, Event event)                                                                              \
  each(cuFuncGetParamInfo, 12040, Function function, std::size_t index, std::size_t* offset, std::size_t* bytes)       \
  each(cuMemcpyBatchAsync, 12080, DevicePointer* to, DevicePointer* from, std::size_t* bytes, std::size_t count,       \
       BatchAttributes* attributes, std::size_t* attribute_begins, std::size_t attribute_count, std::size_t* failed,   \
       Stream stream)
// clang-format on

namespace unimem::detail::cuda {

/// The driver API as a table filled at run time: the program starts where there is no driver, and a test hands in a
/// table with an entry of its own where it wants a fault.
struct Driver {
  // NOLINTBEGIN(readability-identifier-naming, bugprone-macro-parentheses): the driver chose the names
#define UNIMEM_DECLARE(function, version, ...) Result (*function)(__VA_ARGS__) = nullptr;
  UNIMEM_CUDA_FUNCTIONS(UNIMEM_DECLARE)
  UNIMEM_CUDA_LATER_FUNCTIONS(UNIMEM_DECLARE)
#undef UNIMEM_DECLARE
  // NOLINTEND(readability-identifier-naming, bugprone-macro-parentheses)
};

/// The oldest driver that is served: 12.2, as the driver counts.
constexpr int oldest_driver = 12020;

/// The table of a driver, or why there is none.
struct LoadedDriver {
  Driver driver;
  int version = 0;      ///< as the driver counts: 12040 is 12.4
  std::string problem;  ///< empty when the table is complete and the driver initialized
};

/// Loads and initializes the driver: `UNIMEM_CUDA_LIBRARY` if set, else libcuda.so.1. The library is never unloaded:
/// a driver leaves threads and exit handlers behind.
[[nodiscard]] LoadedDriver load_driver();

}  // namespace unimem::detail::cuda
