#include "device/cuda/hardware.hpp"

#include "device/cuda/code.hpp"
#include "device/driver_stream.hpp"
#include "device/process_end.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <exception>
#include <iterator>
#include <optional>
#include <utility>

namespace unimem::detail::cuda {
namespace {

/// 0 where the driver does not know the attribute.
int attribute(Driver const& driver, Device device, DeviceAttribute which) {
  int value = 0;
  return driver.cuDeviceGetAttribute(&value, which, device) == Result::success ? value : 0;
}

/// 8-4-4-4-12 digits.
std::string spelled(Uuid const& uuid) {
  std::string text = "cuda";
  for (std::size_t at = 0; at < std::size(uuid.bytes); ++at) {
    bool const begins_group = at == 0 || at == 4 || at == 6 || at == 8 || at == 10;
    text += fmt::format("{}{:02x}", begins_group ? "-" : "", static_cast<unsigned char>(uuid.bytes[at]));
  }
  return text;
}

/// Fills `hardware` from the driver; why the device cannot be used, or nothing.
std::optional<std::string> describe(Hardware& hardware, int ordinal, int driver_version) {
  auto const& driver = *hardware.driver;
  check(driver, driver.cuDeviceGet(&hardware.device, ordinal), "cuDeviceGet");
  auto const get = [&](DeviceAttribute which) { return attribute(driver, hardware.device, which); };
  auto& info = hardware.info;
  std::array<char, 256> name{};
  check(driver, driver.cuDeviceGetName(name.data(), static_cast<int>(name.size() - 1), hardware.device),
        "cuDeviceGetName");
  info.name = name.data();
  info.vendor = "NVIDIA";
  info.driver = fmt::format("CUDA {}.{}", driver_version / 1000, driver_version % 1000 / 10);
  if (static_cast<ComputeMode>(get(DeviceAttribute::compute_mode)) == ComputeMode::prohibited) {
    return fmt::format("{} is set to accept no work (compute mode prohibited)", info.name);
  }
  if (get(DeviceAttribute::unified_addressing) == 0) {
    return fmt::format("{} does not share one address space with the host", info.name);
  }
  check(driver, driver.cuDeviceTotalMem(&info.total_bytes, hardware.device), "cuDeviceTotalMem");
  hardware.architecture =
      get(DeviceAttribute::compute_capability_major) * 10 + get(DeviceAttribute::compute_capability_minor);
  info.max_allocation = info.total_bytes;
  info.alignment = 256;  // CUDA C++ Programming Guide, "Device Memory Accesses": any allocation's address is
  info.compute_units = static_cast<unsigned>(get(DeviceAttribute::multiprocessor_count));
  info.is_gpu = true;
  info.integrated = get(DeviceAttribute::integrated) != 0;
  info.compiles_source = true;
  info.max_group_items = static_cast<std::size_t>(std::max(get(DeviceAttribute::max_threads_per_block), 1));
  info.group_memory_bytes = static_cast<std::size_t>(std::max(get(DeviceAttribute::max_shared_memory_per_block), 0));
  hardware.maps_pages = get(DeviceAttribute::virtual_memory_management) != 0;
  if (Uuid uuid; driver.cuDeviceGetUuid(&uuid, hardware.device) == Result::success) hardware.uuid = spelled(uuid);
  hardware.has_pools = get(DeviceAttribute::memory_pools) != 0;
  hardware.max_pitch = static_cast<std::size_t>(std::max(get(DeviceAttribute::max_pitch), 0));
  hardware.reaches_pinned = get(DeviceAttribute::can_map_host_memory) != 0 &&
                            get(DeviceAttribute::can_use_host_pointer_for_registered_mem) != 0;
  hardware.has_managed =
      get(DeviceAttribute::managed_memory) != 0 && get(DeviceAttribute::concurrent_managed_access) != 0;
  hardware.budget = std::make_shared<MemoryBudget>(info.total_bytes);
  return std::nullopt;
}

Survey look() {
  try {
    static auto& loaded = *new LoadedDriver;  // devices point to its table for good
    loaded = load_driver();
    if (!loaded.problem.empty()) return {{}, loaded.problem};
    watch_process_end(&finish_all_streams);
    return survey(loaded.driver, loaded.version);
  } catch (std::exception const& failure) {
    return {{}, failure.what()};
  }
}

}  // namespace

Survey survey(Driver const& driver, int driver_version) {
  Survey result;
  int count = 0;
  check(driver, driver.cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (count == 0) result.reason = "the CUDA driver shows no device (CUDA_VISIBLE_DEVICES may hide some)";
  std::vector<std::string> reasons;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    Hardware hardware;
    hardware.driver = &driver;
    hardware.driver_version = driver_version;
    try {
      if (auto problem = describe(hardware, ordinal, driver_version)) {
        reasons.push_back(*std::move(problem));
      } else {
        result.hardware.push_back(std::move(hardware));
      }
    } catch (std::exception const& failure) {
      reasons.push_back(fmt::format("device {}: {}", ordinal, failure.what()));
    }
  }
  if (!reasons.empty()) result.reason = fmt::format("{}", fmt::join(reasons, "; "));
  return result;
}

Survey const& installation() {
  static auto const& found = *new Survey(look());  // outlives every static object that may still hold a device
  return found;
}

}  // namespace unimem::detail::cuda
