#include "device/cuda_standin/device_identity.hpp"
#include "device/cuda_standin/machine.hpp"

#include <array>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

// What a program asks before it has a context.

namespace unimem::standin {
namespace {

/// As much of the text as there is room for, ended as C ends strings.
void hand_out(char* to, int room, std::string const& text) {
  require(to != nullptr && room > 0);
  auto const length = std::min(text.size(), static_cast<std::size_t>(room) - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

/// The codes by the names the real driver has for them, and a word on each.
constexpr auto names = std::to_array<std::pair<Result, char const*>>({
    {Result::success, "CUDA_SUCCESS"},
    {Result::invalid_value, "CUDA_ERROR_INVALID_VALUE"},
    {Result::out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY"},
    {Result::not_initialized, "CUDA_ERROR_NOT_INITIALIZED"},
    {Result::deinitialized, "CUDA_ERROR_DEINITIALIZED"},
    {Result::device_unavailable, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
    {Result::no_device, "CUDA_ERROR_NO_DEVICE"},
    {Result::invalid_device, "CUDA_ERROR_INVALID_DEVICE"},
    {Result::invalid_image, "CUDA_ERROR_INVALID_IMAGE"},
    {Result::invalid_context, "CUDA_ERROR_INVALID_CONTEXT"},
    {Result::already_mapped, "CUDA_ERROR_ALREADY_MAPPED"},
    {Result::not_mapped, "CUDA_ERROR_NOT_MAPPED"},
    {Result::ecc_uncorrectable, "CUDA_ERROR_ECC_UNCORRECTABLE"},
    {Result::peer_access_unsupported, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
    {Result::nvlink_uncorrectable, "CUDA_ERROR_NVLINK_UNCORRECTABLE"},
    {Result::invalid_source, "CUDA_ERROR_INVALID_SOURCE"},
    {Result::invalid_handle, "CUDA_ERROR_INVALID_HANDLE"},
    {Result::not_found, "CUDA_ERROR_NOT_FOUND"},
    {Result::not_ready, "CUDA_ERROR_NOT_READY"},
    {Result::illegal_address, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {Result::launch_out_of_resources, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
    {Result::launch_timeout, "CUDA_ERROR_LAUNCH_TIMEOUT"},
    {Result::peer_access_already_enabled, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"},
    {Result::context_is_destroyed, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
    {Result::assert_failed, "CUDA_ERROR_ASSERT"},
    {Result::host_memory_already_registered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
    {Result::host_memory_not_registered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
    {Result::hardware_stack_error, "CUDA_ERROR_HARDWARE_STACK_ERROR"},
    {Result::illegal_instruction, "CUDA_ERROR_ILLEGAL_INSTRUCTION"},
    {Result::misaligned_address, "CUDA_ERROR_MISALIGNED_ADDRESS"},
    {Result::invalid_address_space, "CUDA_ERROR_INVALID_ADDRESS_SPACE"},
    {Result::invalid_pc, "CUDA_ERROR_INVALID_PC"},
    {Result::launch_failed, "CUDA_ERROR_LAUNCH_FAILED"},
    {Result::not_permitted, "CUDA_ERROR_NOT_PERMITTED"},
    {Result::not_supported, "CUDA_ERROR_NOT_SUPPORTED"},
    {Result::system_not_ready, "CUDA_ERROR_SYSTEM_NOT_READY"},
    {Result::system_driver_mismatch, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
    {Result::stream_capture_unsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    {Result::stream_capture_invalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
    {Result::stream_capture_merge, "CUDA_ERROR_STREAM_CAPTURE_MERGE"},
    {Result::stream_capture_unmatched, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
    {Result::stream_capture_unjoined, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
    {Result::stream_capture_isolation, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
    {Result::stream_capture_implicit, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
    {Result::captured_event, "CUDA_ERROR_CAPTURED_EVENT"},
    {Result::stream_capture_wrong_thread, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"},
    {Result::external_device, "CUDA_ERROR_EXTERNAL_DEVICE"},
    {Result::unknown, "CUDA_ERROR_UNKNOWN"},
});

Result find_name(Result result, char const** name) {
  require(name != nullptr);
  *name = nullptr;
  for (auto const& [code, text] : names)
    if (code == result) *name = text;
  return *name != nullptr ? Result::success : Result::invalid_value;
}

std::string hexadecimal(Uuid const& uuid, std::size_t first, std::size_t count) {
  std::string text;
  for (auto at = first; at < first + count; ++at) {
    char pair[3];
    std::snprintf(pair, sizeof pair, "%02x", static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[at])));
    text += pair;
  }
  return text;
}

}  // namespace

Uuid uuid_of(int physical) {
  Uuid uuid;
  std::memcpy(uuid.bytes, "unimem stand-in", 15);
  uuid.bytes[0] = static_cast<char>(0x10 + physical);
  return uuid;
}

namespace {

std::string spelled(char const* kind, Uuid const& uuid) {
  return kind + hexadecimal(uuid, 0, 4) + "-" + hexadecimal(uuid, 4, 2) + "-" + hexadecimal(uuid, 6, 2) + "-" +
         hexadecimal(uuid, 8, 2) + "-" + hexadecimal(uuid, 10, 6);
}

}  // namespace

std::string spelled_uuid(int physical) {
  return spelled("GPU-", uuid_of(physical));
}

std::string spelled_instance_uuid(int instance) {
  return spelled("MIG-", uuid_of(instance));
}

std::string name_of_instance(int instance) {
  return "Stand-in GPU MIG " + std::to_string(instance);
}

std::string name_of(int physical) {
  return "Stand-in GPU " + std::to_string(physical);
}

std::string pci_id_of(int physical) {
  char text[16];
  std::snprintf(text, sizeof text, "0000:%02X:00.0", static_cast<unsigned>(physical + 1) & 0xffU);
  return text;
}

int attribute_of(DeviceState const& device, DeviceAttribute attribute) {
  if (auto const told = device.attributes.find(attribute); told != device.attributes.end()) return told->second;
  auto const& all = machine();
  if (auto const told = all.attributes.find(attribute); told != all.attributes.end()) return told->second;
  switch (attribute) {
    case DeviceAttribute::max_pitch:
      return std::numeric_limits<int>::max();
    case DeviceAttribute::max_threads_per_block:
      return 1024;
    case DeviceAttribute::max_shared_memory_per_block:
      return 48 << 10;
    case DeviceAttribute::multiprocessor_count:
      return 132;
    case DeviceAttribute::compute_capability_major:
      return 9;
    case DeviceAttribute::integrated:
    case DeviceAttribute::compute_mode:
    case DeviceAttribute::compute_capability_minor:
      return 0;
    case DeviceAttribute::can_map_host_memory:
    case DeviceAttribute::unified_addressing:
    case DeviceAttribute::managed_memory:
    case DeviceAttribute::concurrent_managed_access:
    case DeviceAttribute::can_use_host_pointer_for_registered_mem:
    case DeviceAttribute::virtual_memory_management:
    case DeviceAttribute::memory_pools:
      return 1;
  }
  refuse(Result::invalid_value);
}

namespace calls {

Result cuInit(Lock& /*lock*/, unsigned flags) {
  require(flags == 0);
  auto& all = machine();
  if (!all.initialized) configure(all);
  all.initialized = true;
  return all.devices.empty() ? Result::no_device : Result::success;
}

Result cuDriverGetVersion(Lock& /*lock*/, int* version) {
  require(version != nullptr);
  *version = machine().version;
  return Result::success;
}

Result cuGetErrorName(Lock& /*lock*/, Result result, char const** name) {
  return find_name(result, name);
}

Result cuGetErrorString(Lock& /*lock*/, Result result, char const** text) {
  return find_name(result, text);
}

Result cuDeviceGetCount(Lock& /*lock*/, int* count) {
  require(count != nullptr);
  *count = static_cast<int>(machine().devices.size());
  return Result::success;
}

Result cuDeviceGet(Lock& /*lock*/, Device* device, int ordinal) {
  require(device != nullptr);
  static_cast<void>(machine().device(ordinal));
  *device = ordinal;
  return Result::success;
}

Result cuDeviceGetName(Lock& /*lock*/, char* name, int bytes, Device device) {
  auto const& all = machine();
  auto const physical = machine().device(device).physical;
  hand_out(name, bytes, all.partitioned ? name_of_instance(physical) : name_of(physical));
  return Result::success;
}

Result cuDeviceGetUuid(Lock& /*lock*/, Uuid* uuid, Device device) {
  require(uuid != nullptr);
  *uuid = uuid_of(machine().device(device).physical);
  return Result::success;
}

Result cuDeviceTotalMem(Lock& /*lock*/, std::size_t* bytes, Device device) {
  require(bytes != nullptr);
  *bytes = machine().device(device).capacity;
  return Result::success;
}

Result cuDeviceGetPCIBusId(Lock& /*lock*/, char* text, int bytes, Device device) {
  hand_out(text, bytes, pci_id_of(machine().device(device).physical));
  return Result::success;
}

Result cuDeviceGetAttribute(Lock& /*lock*/, int* value, DeviceAttribute attribute, Device device) {
  require(value != nullptr);
  *value = attribute_of(machine().device(device), attribute);
  return Result::success;
}

Result cuDeviceCanAccessPeer(Lock& /*lock*/, int* can, Device device, Device peer) {
  require(can != nullptr);
  auto const& from = machine().device(device);
  static_cast<void>(machine().device(peer));
  *can = device != peer && !from.unreachable.contains(peer) ? 1 : 0;
  return Result::success;
}

Result cuDeviceGetP2PAttribute(Lock& /*lock*/, int* value, PeerAttribute attribute, Device from, Device to) {
  require(value != nullptr);
  auto const reachable = !machine().device(from).unreachable.contains(to);
  static_cast<void>(machine().device(to));
  require(from != to, Result::invalid_device);
  switch (attribute) {
    case PeerAttribute::performance_rank:
      *value = 0;
      break;
    case PeerAttribute::access:
    case PeerAttribute::native_atomics:
      *value = reachable ? 1 : 0;
      break;
    default:
      refuse(Result::invalid_value);
  }
  return Result::success;
}

}  // namespace calls

}  // namespace unimem::standin
