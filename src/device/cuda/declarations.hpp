#pragma once

#include <cstddef>
#include <cstdint>

// The part of the CUDA driver API that this library uses, declared here from its documentation, so that neither a
// toolkit nor a driver is needed to build it. tests/device/cuda_declarations_test.cpp compares every size, constant and
// signature with a real cuda.h. Names are the driver's without their prefix, where C++ has a place for them.

namespace unimem::detail::cuda {

/// What a call says. Only those that the library acts upon have names here; the driver knows the names of all
/// (`cuGetErrorName`).
enum class Result : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  deinitialized = 4,
  device_unavailable = 46,
  no_device = 100,
  invalid_device = 101,
  invalid_image = 200,
  invalid_context = 201,
  already_mapped = 208,
  not_mapped = 211,
  ecc_uncorrectable = 214,
  peer_access_unsupported = 217,
  nvlink_uncorrectable = 220,
  contained = 226,
  invalid_source = 300,
  invalid_handle = 400,
  not_found = 500,
  not_ready = 600,
  illegal_address = 700,
  launch_out_of_resources = 701,
  launch_timeout = 702,
  peer_access_already_enabled = 704,
  context_is_destroyed = 709,
  assert_failed = 710,
  too_many_peers = 711,
  host_memory_already_registered = 712,
  host_memory_not_registered = 713,
  hardware_stack_error = 714,
  illegal_instruction = 715,
  misaligned_address = 716,
  invalid_address_space = 717,
  invalid_pc = 718,
  launch_failed = 719,
  tensor_memory_leak = 721,
  not_permitted = 800,
  not_supported = 801,
  system_not_ready = 802,
  system_driver_mismatch = 803,
  mps_client_terminated = 810,
  stream_capture_unsupported = 900,
  stream_capture_invalidated = 901,
  stream_capture_merge = 902,
  stream_capture_unmatched = 903,
  stream_capture_unjoined = 904,
  stream_capture_isolation = 905,
  stream_capture_implicit = 906,
  captured_event = 907,
  stream_capture_wrong_thread = 908,
  external_device = 911,
  unknown = 999,
};

using Device = int;
using DevicePointer = unsigned long long;  ///< CUdeviceptr on 64-bit systems
using AllocationHandle = unsigned long long;
using Context = struct ContextTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
using Graph = struct GraphTag*;
using GraphExec = struct GraphExecTag*;

enum class DeviceAttribute : int {
  max_threads_per_block = 1,
  max_shared_memory_per_block = 8,
  max_pitch = 11,
  multiprocessor_count = 16,
  integrated = 18,
  can_map_host_memory = 19,
  compute_mode = 20,
  unified_addressing = 41,
  compute_capability_major = 75,
  compute_capability_minor = 76,
  managed_memory = 83,
  concurrent_managed_access = 89,
  can_use_host_pointer_for_registered_mem = 91,
  virtual_memory_management = 102,
  memory_pools = 115,
};

enum class FunctionAttribute : int { max_threads_per_block = 0 };

enum class PeerAttribute : int { performance_rank = 1, access = 2, native_atomics = 3 };

enum class ComputeMode : int { normal = 0, prohibited = 2, exclusive_process = 3 };

enum class PointerAttribute : int { context = 1, memory_type = 2, is_managed = 8, device_ordinal = 9, range_size = 12 };

enum class MemoryType : unsigned { host = 1, device = 2, array = 3, unified = 4 };

enum class AllocationType : int { pinned = 1 };
enum class HandleType : int { none = 0, posix_file_descriptor = 1, fabric = 8 };
enum class LocationType : int { device = 1, host = 2 };
enum class AccessFlags : int { none = 0, read = 1, read_write = 3 };
enum class Granularity : int { minimum = 0, recommended = 1 };

struct MemoryLocation {
  LocationType type = LocationType::device;
  int id = 0;
};

/// CUmemAllocationProp.
struct AllocationProperties {
  AllocationType type = AllocationType::pinned;
  HandleType handle_types = HandleType::none;
  MemoryLocation location;
  void* win32_handle_meta_data = nullptr;
  struct {
    unsigned char compression = 0;
    unsigned char gpu_direct_rdma_capable = 0;
    unsigned short usage = 0;
    unsigned char reserved[4] = {};
  } flags;
};

/// CUmemAccessDesc.
struct AccessDescription {
  MemoryLocation location;
  AccessFlags flags = AccessFlags::read_write;
};

enum class Advice : int {
  set_read_mostly = 1,
  unset_read_mostly = 2,
  set_preferred_location = 3,
  unset_preferred_location = 4,
  set_accessed_by = 5,
  unset_accessed_by = 6,
};

enum class CaptureStatus : int { none = 0, active = 1, invalidated = 2 };
enum class CaptureMode : int { global = 0, thread_local_only = 1, relaxed = 2 };

// Flags are plain numbers in the driver's signatures.
constexpr unsigned stream_non_blocking = 1;
constexpr unsigned event_blocking_sync = 1, event_disable_timing = 2;
constexpr unsigned host_alloc_portable = 1, host_alloc_device_map = 2, host_alloc_write_combined = 4;
constexpr unsigned host_register_portable = 1, host_register_device_map = 2, host_register_read_only = 8;
constexpr unsigned attach_global = 1;
constexpr unsigned wait_value_at_least = 0;
constexpr std::uintptr_t legacy_stream = 1, per_thread_stream = 2;  ///< handles that name the two default streams

/// One rectangle of rows for `cuMemcpy2DAsync`: CUDA_MEMCPY2D.
struct Copy2D {
  std::size_t source_x_bytes = 0;
  std::size_t source_y = 0;
  MemoryType source_type = MemoryType::host;
  void const* source_host = nullptr;
  DevicePointer source_device = 0;
  void* source_array = nullptr;
  std::size_t source_pitch = 0;
  std::size_t target_x_bytes = 0;
  std::size_t target_y = 0;
  MemoryType target_type = MemoryType::device;
  void* target_host = nullptr;
  DevicePointer target_device = 0;
  void* target_array = nullptr;
  std::size_t target_pitch = 0;
  std::size_t width_bytes = 0;
  std::size_t height = 0;
};

/// When the source of a batch's copy may be read.
enum class SourceOrder : int { in_stream = 1, during_call = 2, any = 3 };

/// CUmemcpyAttributes.
struct BatchAttributes {
  SourceOrder source_order = SourceOrder::in_stream;
  MemoryLocation source_hint;
  MemoryLocation target_hint;
  unsigned flags = 0;
};

/// CUuuid.
struct Uuid {
  char bytes[16] = {};
};

}  // namespace unimem::detail::cuda
