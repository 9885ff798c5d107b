// The real header first: it gives names their newest form by macros (cuMemAlloc becomes cuMemAlloc_v2), which then
// holds for our table too.
#include <cuda.h>

// What headers before 13.0 keep under a name of its own.
#ifndef cuMemAdvise
#define cuMemAdvise cuMemAdvise_v2
#endif
#ifndef cuMemPrefetchAsync
#define cuMemPrefetchAsync cuMemPrefetchAsync_v2
#endif

// Every form that a function ever had, by the version that brought it.
#include <cudaTypedefs.h>

#include "device/cuda/driver.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>
#include <utility>

// Our own declarations of the driver API against the real ones: a size, an offset, a number or a parameter that differs
// is an error here and not on somebody's GPU.

namespace ours = unimem::detail::cuda;

namespace {

/// Whether two types travel alike in a call: of one size, and both addresses or both numbers. (An enumeration is the
/// number it stands on.)
template <class Ours, class Theirs>
constexpr bool travel_alike =
    sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) &&
    std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
    (std::is_integral_v<Ours> || std::is_enum_v<Ours>) == (std::is_integral_v<Theirs> || std::is_enum_v<Theirs>);

template <class Ours, class Theirs>
struct SameCall : std::false_type {};

template <class OurResult, class... Ours, class TheirResult, class... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
struct SameCall<OurResult (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<travel_alike<OurResult, TheirResult> && (travel_alike<Ours, Theirs> && ...)> {};

#define UNIMEM_COMPARE(function, version, ...) \
  static_assert(SameCall<decltype(ours::Driver::function), decltype(&::function)>::value, #function);
UNIMEM_CUDA_FUNCTIONS(UNIMEM_COMPARE)
#undef UNIMEM_COMPARE

// What came later than the oldest driver: the header may be older than that.
#if CUDA_VERSION >= 12080
static_assert(SameCall<decltype(ours::Driver::cuMemcpyBatchAsync), PFN_cuMemcpyBatchAsync_v12080>::value);
static_assert(sizeof(ours::BatchAttributes) == sizeof(CUmemcpyAttributes_v1));
static_assert(static_cast<int>(ours::SourceOrder::in_stream) == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
static_assert(static_cast<int>(ours::SourceOrder::during_call) == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL);
static_assert(static_cast<int>(ours::SourceOrder::any) == CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
static_assert(offsetof(ours::BatchAttributes, source_order) == offsetof(CUmemcpyAttributes_v1, srcAccessOrder));
static_assert(offsetof(ours::BatchAttributes, source_hint) == offsetof(CUmemcpyAttributes_v1, srcLocHint));
static_assert(offsetof(ours::BatchAttributes, target_hint) == offsetof(CUmemcpyAttributes_v1, dstLocHint));
static_assert(offsetof(ours::BatchAttributes, flags) == offsetof(CUmemcpyAttributes_v1, flags));
#endif

#define UNIMEM_SAME(our_name, their_name) \
  static_assert(static_cast<long long>(our_name) == static_cast<long long>(their_name), #their_name)

using R = ours::Result;
UNIMEM_SAME(R::success, CUDA_SUCCESS);
UNIMEM_SAME(R::invalid_value, CUDA_ERROR_INVALID_VALUE);
UNIMEM_SAME(R::out_of_memory, CUDA_ERROR_OUT_OF_MEMORY);
UNIMEM_SAME(R::not_initialized, CUDA_ERROR_NOT_INITIALIZED);
UNIMEM_SAME(R::deinitialized, CUDA_ERROR_DEINITIALIZED);
UNIMEM_SAME(R::device_unavailable, CUDA_ERROR_DEVICE_UNAVAILABLE);
UNIMEM_SAME(R::no_device, CUDA_ERROR_NO_DEVICE);
UNIMEM_SAME(R::invalid_device, CUDA_ERROR_INVALID_DEVICE);
UNIMEM_SAME(R::invalid_image, CUDA_ERROR_INVALID_IMAGE);
UNIMEM_SAME(R::invalid_context, CUDA_ERROR_INVALID_CONTEXT);
UNIMEM_SAME(R::already_mapped, CUDA_ERROR_ALREADY_MAPPED);
UNIMEM_SAME(R::too_many_peers, CUDA_ERROR_TOO_MANY_PEERS);
UNIMEM_SAME(R::mps_client_terminated, CUDA_ERROR_MPS_CLIENT_TERMINATED);
#if CUDA_VERSION >= 13000
UNIMEM_SAME(R::contained, CUDA_ERROR_CONTAINED);
UNIMEM_SAME(R::tensor_memory_leak, CUDA_ERROR_TENSOR_MEMORY_LEAK);
#endif
UNIMEM_SAME(R::not_mapped, CUDA_ERROR_NOT_MAPPED);
UNIMEM_SAME(R::ecc_uncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
UNIMEM_SAME(R::peer_access_unsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
UNIMEM_SAME(R::nvlink_uncorrectable, CUDA_ERROR_NVLINK_UNCORRECTABLE);
UNIMEM_SAME(R::invalid_source, CUDA_ERROR_INVALID_SOURCE);
UNIMEM_SAME(R::invalid_handle, CUDA_ERROR_INVALID_HANDLE);
UNIMEM_SAME(R::not_found, CUDA_ERROR_NOT_FOUND);
UNIMEM_SAME(R::not_ready, CUDA_ERROR_NOT_READY);
UNIMEM_SAME(R::illegal_address, CUDA_ERROR_ILLEGAL_ADDRESS);
UNIMEM_SAME(R::launch_out_of_resources, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
UNIMEM_SAME(R::launch_timeout, CUDA_ERROR_LAUNCH_TIMEOUT);
UNIMEM_SAME(R::peer_access_already_enabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
UNIMEM_SAME(R::context_is_destroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
UNIMEM_SAME(R::assert_failed, CUDA_ERROR_ASSERT);
UNIMEM_SAME(R::host_memory_already_registered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
UNIMEM_SAME(R::host_memory_not_registered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
UNIMEM_SAME(R::hardware_stack_error, CUDA_ERROR_HARDWARE_STACK_ERROR);
UNIMEM_SAME(R::illegal_instruction, CUDA_ERROR_ILLEGAL_INSTRUCTION);
UNIMEM_SAME(R::misaligned_address, CUDA_ERROR_MISALIGNED_ADDRESS);
UNIMEM_SAME(R::invalid_address_space, CUDA_ERROR_INVALID_ADDRESS_SPACE);
UNIMEM_SAME(R::invalid_pc, CUDA_ERROR_INVALID_PC);
UNIMEM_SAME(R::launch_failed, CUDA_ERROR_LAUNCH_FAILED);
UNIMEM_SAME(R::not_permitted, CUDA_ERROR_NOT_PERMITTED);
UNIMEM_SAME(R::not_supported, CUDA_ERROR_NOT_SUPPORTED);
UNIMEM_SAME(R::system_not_ready, CUDA_ERROR_SYSTEM_NOT_READY);
UNIMEM_SAME(R::system_driver_mismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
UNIMEM_SAME(R::stream_capture_unsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
UNIMEM_SAME(R::stream_capture_invalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
UNIMEM_SAME(R::stream_capture_merge, CUDA_ERROR_STREAM_CAPTURE_MERGE);
UNIMEM_SAME(R::stream_capture_unmatched, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
UNIMEM_SAME(R::stream_capture_unjoined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
UNIMEM_SAME(R::stream_capture_isolation, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
UNIMEM_SAME(R::stream_capture_implicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
UNIMEM_SAME(R::captured_event, CUDA_ERROR_CAPTURED_EVENT);
UNIMEM_SAME(R::stream_capture_wrong_thread, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
UNIMEM_SAME(R::external_device, CUDA_ERROR_EXTERNAL_DEVICE);
UNIMEM_SAME(R::unknown, CUDA_ERROR_UNKNOWN);

using A = ours::DeviceAttribute;
UNIMEM_SAME(A::max_shared_memory_per_block, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
UNIMEM_SAME(A::max_threads_per_block, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
UNIMEM_SAME(A::max_pitch, CU_DEVICE_ATTRIBUTE_MAX_PITCH);
UNIMEM_SAME(A::multiprocessor_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
UNIMEM_SAME(A::integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED);
UNIMEM_SAME(A::can_map_host_memory, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
UNIMEM_SAME(A::compute_mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
UNIMEM_SAME(A::unified_addressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
UNIMEM_SAME(A::compute_capability_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
UNIMEM_SAME(A::compute_capability_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
UNIMEM_SAME(A::managed_memory, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
UNIMEM_SAME(A::concurrent_managed_access, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
UNIMEM_SAME(A::can_use_host_pointer_for_registered_mem, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
UNIMEM_SAME(A::virtual_memory_management, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
UNIMEM_SAME(A::memory_pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);

UNIMEM_SAME(ours::FunctionAttribute::max_threads_per_block, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
UNIMEM_SAME(ours::PeerAttribute::performance_rank, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK);
UNIMEM_SAME(ours::PeerAttribute::access, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED);
UNIMEM_SAME(ours::PeerAttribute::native_atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED);
UNIMEM_SAME(ours::ComputeMode::normal, CU_COMPUTEMODE_DEFAULT);
UNIMEM_SAME(ours::ComputeMode::prohibited, CU_COMPUTEMODE_PROHIBITED);
UNIMEM_SAME(ours::ComputeMode::exclusive_process, CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
UNIMEM_SAME(ours::PointerAttribute::context, CU_POINTER_ATTRIBUTE_CONTEXT);
UNIMEM_SAME(ours::PointerAttribute::memory_type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
UNIMEM_SAME(ours::PointerAttribute::is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED);
UNIMEM_SAME(ours::PointerAttribute::device_ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
UNIMEM_SAME(ours::PointerAttribute::range_size, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
UNIMEM_SAME(ours::MemoryType::host, CU_MEMORYTYPE_HOST);
UNIMEM_SAME(ours::MemoryType::device, CU_MEMORYTYPE_DEVICE);
UNIMEM_SAME(ours::MemoryType::array, CU_MEMORYTYPE_ARRAY);
UNIMEM_SAME(ours::MemoryType::unified, CU_MEMORYTYPE_UNIFIED);
UNIMEM_SAME(ours::AllocationType::pinned, CU_MEM_ALLOCATION_TYPE_PINNED);
UNIMEM_SAME(ours::HandleType::none, CU_MEM_HANDLE_TYPE_NONE);
UNIMEM_SAME(ours::HandleType::posix_file_descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
UNIMEM_SAME(ours::HandleType::fabric, CU_MEM_HANDLE_TYPE_FABRIC);
UNIMEM_SAME(ours::LocationType::device, CU_MEM_LOCATION_TYPE_DEVICE);
UNIMEM_SAME(ours::LocationType::host, CU_MEM_LOCATION_TYPE_HOST);
UNIMEM_SAME(ours::AccessFlags::none, CU_MEM_ACCESS_FLAGS_PROT_NONE);
UNIMEM_SAME(ours::AccessFlags::read, CU_MEM_ACCESS_FLAGS_PROT_READ);
UNIMEM_SAME(ours::AccessFlags::read_write, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
UNIMEM_SAME(ours::Granularity::minimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
UNIMEM_SAME(ours::Granularity::recommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
UNIMEM_SAME(ours::Advice::set_read_mostly, CU_MEM_ADVISE_SET_READ_MOSTLY);
UNIMEM_SAME(ours::Advice::unset_read_mostly, CU_MEM_ADVISE_UNSET_READ_MOSTLY);
UNIMEM_SAME(ours::Advice::set_preferred_location, CU_MEM_ADVISE_SET_PREFERRED_LOCATION);
UNIMEM_SAME(ours::Advice::unset_preferred_location, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION);
UNIMEM_SAME(ours::Advice::set_accessed_by, CU_MEM_ADVISE_SET_ACCESSED_BY);
UNIMEM_SAME(ours::Advice::unset_accessed_by, CU_MEM_ADVISE_UNSET_ACCESSED_BY);
UNIMEM_SAME(ours::CaptureStatus::none, CU_STREAM_CAPTURE_STATUS_NONE);
UNIMEM_SAME(ours::CaptureStatus::active, CU_STREAM_CAPTURE_STATUS_ACTIVE);
UNIMEM_SAME(ours::CaptureStatus::invalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
UNIMEM_SAME(ours::CaptureMode::global, CU_STREAM_CAPTURE_MODE_GLOBAL);
UNIMEM_SAME(ours::CaptureMode::thread_local_only, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
UNIMEM_SAME(ours::CaptureMode::relaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
UNIMEM_SAME(ours::stream_non_blocking, CU_STREAM_NON_BLOCKING);
UNIMEM_SAME(ours::event_blocking_sync, CU_EVENT_BLOCKING_SYNC);
UNIMEM_SAME(ours::event_disable_timing, CU_EVENT_DISABLE_TIMING);
UNIMEM_SAME(ours::host_alloc_portable, CU_MEMHOSTALLOC_PORTABLE);
UNIMEM_SAME(ours::host_alloc_device_map, CU_MEMHOSTALLOC_DEVICEMAP);
UNIMEM_SAME(ours::host_alloc_write_combined, CU_MEMHOSTALLOC_WRITECOMBINED);
UNIMEM_SAME(ours::host_register_portable, CU_MEMHOSTREGISTER_PORTABLE);
UNIMEM_SAME(ours::host_register_device_map, CU_MEMHOSTREGISTER_DEVICEMAP);
UNIMEM_SAME(ours::host_register_read_only, CU_MEMHOSTREGISTER_READ_ONLY);
UNIMEM_SAME(ours::attach_global, CU_MEM_ATTACH_GLOBAL);
UNIMEM_SAME(ours::wait_value_at_least, CU_STREAM_WAIT_VALUE_GEQ);

#define UNIMEM_SAME_FIELD(our_type, our_field, their_type, their_field)               \
  static_assert(offsetof(our_type, our_field) == offsetof(their_type, their_field) && \
                sizeof(our_type::our_field) == sizeof(their_type::their_field))

static_assert(sizeof(ours::DevicePointer) == sizeof(CUdeviceptr) && sizeof(ours::Device) == sizeof(CUdevice));
static_assert(sizeof(ours::AllocationHandle) == sizeof(CUmemGenericAllocationHandle));
static_assert(sizeof(ours::Uuid) == sizeof(CUuuid));
static_assert(sizeof(ours::MemoryLocation) == sizeof(CUmemLocation));
UNIMEM_SAME_FIELD(ours::MemoryLocation, type, CUmemLocation, type);
UNIMEM_SAME_FIELD(ours::MemoryLocation, id, CUmemLocation, id);
static_assert(sizeof(ours::AllocationProperties) == sizeof(CUmemAllocationProp));
UNIMEM_SAME_FIELD(ours::AllocationProperties, type, CUmemAllocationProp, type);
UNIMEM_SAME_FIELD(ours::AllocationProperties, handle_types, CUmemAllocationProp, requestedHandleTypes);
UNIMEM_SAME_FIELD(ours::AllocationProperties, location, CUmemAllocationProp, location);
UNIMEM_SAME_FIELD(ours::AllocationProperties, win32_handle_meta_data, CUmemAllocationProp, win32HandleMetaData);
UNIMEM_SAME_FIELD(ours::AllocationProperties, flags, CUmemAllocationProp, allocFlags);
static_assert(sizeof(ours::AccessDescription) == sizeof(CUmemAccessDesc));
UNIMEM_SAME_FIELD(ours::AccessDescription, location, CUmemAccessDesc, location);
UNIMEM_SAME_FIELD(ours::AccessDescription, flags, CUmemAccessDesc, flags);
static_assert(sizeof(ours::Copy2D) == sizeof(CUDA_MEMCPY2D));
UNIMEM_SAME_FIELD(ours::Copy2D, source_x_bytes, CUDA_MEMCPY2D, srcXInBytes);
UNIMEM_SAME_FIELD(ours::Copy2D, source_y, CUDA_MEMCPY2D, srcY);
UNIMEM_SAME_FIELD(ours::Copy2D, source_type, CUDA_MEMCPY2D, srcMemoryType);
UNIMEM_SAME_FIELD(ours::Copy2D, source_host, CUDA_MEMCPY2D, srcHost);
UNIMEM_SAME_FIELD(ours::Copy2D, source_device, CUDA_MEMCPY2D, srcDevice);
UNIMEM_SAME_FIELD(ours::Copy2D, source_array, CUDA_MEMCPY2D, srcArray);
UNIMEM_SAME_FIELD(ours::Copy2D, source_pitch, CUDA_MEMCPY2D, srcPitch);
UNIMEM_SAME_FIELD(ours::Copy2D, target_x_bytes, CUDA_MEMCPY2D, dstXInBytes);
UNIMEM_SAME_FIELD(ours::Copy2D, target_y, CUDA_MEMCPY2D, dstY);
UNIMEM_SAME_FIELD(ours::Copy2D, target_type, CUDA_MEMCPY2D, dstMemoryType);
UNIMEM_SAME_FIELD(ours::Copy2D, target_host, CUDA_MEMCPY2D, dstHost);
UNIMEM_SAME_FIELD(ours::Copy2D, target_device, CUDA_MEMCPY2D, dstDevice);
UNIMEM_SAME_FIELD(ours::Copy2D, target_array, CUDA_MEMCPY2D, dstArray);
UNIMEM_SAME_FIELD(ours::Copy2D, target_pitch, CUDA_MEMCPY2D, dstPitch);
UNIMEM_SAME_FIELD(ours::Copy2D, width_bytes, CUDA_MEMCPY2D, WidthInBytes);
UNIMEM_SAME_FIELD(ours::Copy2D, height, CUDA_MEMCPY2D, Height);

TEST(CudaDeclarations, AreThoseOfTheRealHeader) {
  EXPECT_EQ(CU_STREAM_LEGACY, reinterpret_cast<CUstream>(ours::legacy_stream));
  EXPECT_EQ(CU_STREAM_PER_THREAD, reinterpret_cast<CUstream>(ours::per_thread_stream));
  EXPECT_GE(CUDA_VERSION, ours::oldest_driver) << "what is compared with must know all that is used";
}

}  // namespace
