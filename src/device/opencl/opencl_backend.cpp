#include <unimem/core/error.hpp>

#include "device/backends.hpp"
#include "device/opencl/installation.hpp"
#include "device/opencl/opencl_device.hpp"

#include <fmt/format.h>

#include <exception>
#include <string>
#include <utility>

namespace unimem::detail {
namespace {

std::string id_of(std::size_t index) {
  return fmt::format("opencl:{}", index);
}

/// The value of `zero_copy=…`, the only option there is.
bool read_zero_copy(std::string_view options) {
  if (options == "zero_copy=1") return true;
  if (options == "zero_copy=0") return false;
  throw InvalidArgument("OpenCL device options", std::string(options), "zero_copy=0 or zero_copy=1");
}

}  // namespace

FoundDevices find_opencl_devices() {
  auto const& installation = opencl::installation();
  FoundDevices found{{}, installation.reason};
  for (std::size_t index = 0; index < installation.hardware.size(); ++index) {
    auto const& hardware = installation.hardware[index];
    try {
      found.devices.push_back(std::make_unique<opencl::OpenClDevice>(
          id_of(index), hardware, opencl::OpenClDevice::shares_by_default(hardware)));
    } catch (std::exception const& failure) {
      if (!found.reason.empty()) found.reason += "; ";
      found.reason += fmt::format("{}: {}", id_of(index), failure.what());
    }
  }
  return found;
}

std::unique_ptr<Device> open_opencl_device(std::size_t index, std::string_view options) {
  auto const& installation = opencl::installation();
  auto const id = id_of(index);
  if (index >= installation.hardware.size()) {
    std::vector<std::string> available;
    available.reserve(installation.hardware.size());
    for (std::size_t i = 0; i < installation.hardware.size(); ++i) available.push_back(id_of(i));
    throw NotFound("device", id, std::move(available));
  }
  auto const& hardware = installation.hardware[index];
  if (options.empty()) {
    return std::make_unique<opencl::OpenClDevice>(id, hardware, opencl::OpenClDevice::shares_by_default(hardware));
  }
  bool const shares = read_zero_copy(options);
  return std::make_unique<opencl::OpenClDevice>(fmt::format("{},{}", id, options), hardware, shares);
}

}  // namespace unimem::detail
