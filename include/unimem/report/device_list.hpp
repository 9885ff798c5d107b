#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/memory.hpp>
#include <unimem/manager/links.hpp>
#include <unimem/manager/memory_manager.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace unimem {

/// What a manager may reserve at one location of a device, where that is less than the device has.
struct LocationLimit {
  Location location = Location::device;
  std::size_t limit_bytes = 0;

  friend bool operator==(LocationLimit const&, LocationLimit const&) = default;
};

/// What one device was at one moment: plain values, so that a report can be kept, compared and rendered long after.
struct DeviceSnapshot {
  std::string id;
  Backend backend = Backend::cpu;
  DeviceInfo info;
  MemoryInfo memory;
  bool shares_storage_with_host = false;
  bool maps_pages = false;  ///< has a page interface
  /// Of a manager; nothing: none was asked. Limits of the host's memory are the cpu's, whose memory it is.
  std::optional<std::vector<LocationLimit>> limits{};
};

/// Every device, and every backend that has none, with the reason.
struct DeviceList {
  std::vector<DeviceSnapshot> devices;
  std::vector<UnavailableBackend> unavailable;
  std::optional<std::vector<Link>> links{};  ///< between them and the host; nothing: not asked for
};

/// Asks a device what it is and what is free on it now.
[[nodiscard]] UNIMEM_API DeviceSnapshot take_snapshot(Device& device);

/// Asks every device of the process, in the order of `devices()`; the first call looks for drivers.
[[nodiscard]] UNIMEM_API DeviceList list_devices();

/// The same, and what `manager` is limited to on each: by `UNIMEM_LIMITS`, its options and `set_limit`.
[[nodiscard]] UNIMEM_API DeviceList list_devices(MemoryManager const& manager);

/// Every device, and the links among all of them, measuring those that are not known yet.
[[nodiscard]] UNIMEM_API DeviceList list_devices(Links& links);

}  // namespace unimem
