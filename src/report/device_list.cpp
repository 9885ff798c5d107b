#include <unimem/report/device_list.hpp>

namespace unimem {

DeviceSnapshot take_snapshot(Device& device) {
  return {.id = std::string(device.id()),
          .backend = device.backend(),
          .info = device.info(),
          .memory = device.memory_info(),
          .shares_storage_with_host = device.shares_storage_with_host(),
          .maps_pages = device.pages() != nullptr};
}

DeviceList list_devices() {
  DeviceList list;
  for (Device& device : devices()) list.devices.push_back(take_snapshot(device));
  list.unavailable = unavailable_backends();
  return list;
}

DeviceList list_devices(Links& links) {
  auto list = list_devices();
  list.links = links.among(devices());
  return list;
}

}  // namespace unimem
