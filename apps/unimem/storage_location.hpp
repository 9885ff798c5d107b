#pragma once

#include <unimem/device/device.hpp>

namespace unimem::cli {

/// Where the buffers of a device have their storage: what a command's limits and pools are about.
[[nodiscard]] Location storage_location(Device const& device) noexcept;

}  // namespace unimem::cli
