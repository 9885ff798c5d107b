#include "named_device.hpp"
#include "command_line.hpp"

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>

#include <fmt/format.h>

namespace unimem::cli {

Device& device_named(std::string_view id) {
  try {
    return device(id);
  } catch (InvalidArgument const& error) {
    throw UsageError(fmt::format("--device {}: {}", id, error.what()));
  }
}

}  // namespace unimem::cli
