#pragma once

#include <unimem/device/device.hpp>

#include <string_view>

namespace unimem::cli {

/// The device that `--device` names. One whose options cannot be read is a wrong command line (UsageError); one that is
/// not there is failed work (NotFound).
[[nodiscard]] Device& device_named(std::string_view id);

}  // namespace unimem::cli
