#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/manager/links.hpp>

#include <optional>
#include <string>
#include <vector>

namespace unimem {

/// What one device was at one moment: plain values, so that a report can be kept, compared and rendered long after.
struct DeviceSnapshot {
  std::string id;
  Backend backend = Backend::cpu;
  DeviceInfo info;
  MemoryInfo memory;
  bool shares_storage_with_host = false;
  bool maps_pages = false;  ///< has a page interface
};

/// Every device, and every backend that has none, with the reason.
struct DeviceList {
  std::vector<DeviceSnapshot> devices;
  std::vector<UnavailableBackend> unavailable;
  std::optional<std::vector<Link>> links{};  ///< between them and the host; nothing: nobody has asked
};

/// Asks a device what it is and what is free on it now.
[[nodiscard]] UNIMEM_API DeviceSnapshot take_snapshot(Device& device);

/// Asks every device of the process, in the order of `devices()`; the first call looks for drivers.
[[nodiscard]] UNIMEM_API DeviceList list_devices();

/// The same, and the links among all of them, measuring those that are not known yet.
[[nodiscard]] UNIMEM_API DeviceList list_devices(Links& links);

}  // namespace unimem
