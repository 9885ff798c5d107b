#include "storage_location.hpp"

namespace unimem::cli {

Location storage_location(Device const& device) noexcept {
  if (device.reaches_host_memory()) return Location::host;
  return device.shares_storage_with_host() ? Location::unified : Location::device;
}

}  // namespace unimem::cli
