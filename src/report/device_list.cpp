#include <unimem/report/device_list.hpp>

#include <array>

namespace unimem {
namespace {

std::vector<LocationLimit> limits_on(Device& device, MemoryManager const& manager) {
  std::vector<LocationLimit> limits;
  for (auto const location : std::array{Location::device, Location::host, Location::pinned, Location::unified}) {
    bool const of_the_host = location == Location::host || location == Location::pinned;
    if (of_the_host && !device.reaches_host_memory()) continue;  // the cpu's
    auto const bytes = manager.limit(device, location);
    // All of it is the host's: what bounds that is told once, of where buffers have it.
    bool const told = !of_the_host && device.reaches_host_memory() && bytes >= manager.total_memory(device);
    if (told) continue;
    if (bytes < device.info().total_bytes) limits.push_back({location, bytes});
  }
  return limits;
}

}  // namespace

DeviceSnapshot take_snapshot(Device& device) {
  return {.id = std::string(device.id()),
          .backend = device.backend(),
          .info = device.info(),
          .memory = device.memory_info(),
          .shares_storage_with_host = device.shares_storage_with_host(),
          .maps_pages = device.pages() != nullptr,
          .limits = std::nullopt};
}

DeviceList list_devices() {
  DeviceList list;
  for (Device& device : devices()) list.devices.push_back(take_snapshot(device));
  list.unavailable = unavailable_backends();
  return list;
}

DeviceList list_devices(MemoryManager const& manager) {
  DeviceList list;
  for (Device& device : devices()) {
    list.devices.push_back(take_snapshot(device));
    list.devices.back().limits = limits_on(device, manager);
  }
  list.unavailable = unavailable_backends();
  return list;
}

DeviceList list_devices(Links& links) {
  auto list = list_devices();
  list.links = links.among(devices());
  return list;
}

}  // namespace unimem
