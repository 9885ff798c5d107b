#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>

#include "device/backends.hpp"
#include "device/numbered_id.hpp"
#include "device/opencl/installation.hpp"
#include "device/opencl/opencl_device.hpp"

#include <fmt/format.h>

#include <exception>
#include <string>
#include <string_view>
#include <utility>

namespace unimem::detail {
namespace {

/// Options as in `zero_copy=1,profile=1`, each at most once; what is not said stays as it is.
opencl::OpenClOptions read_options(std::string_view text, opencl::OpenClOptions options) {
  bool shares_said = false, profiles_said = false;
  for (auto rest = text; !text.empty();) {
    auto const comma = rest.find(',');
    auto const option = rest.substr(0, comma);
    if ((option == "zero_copy=0" || option == "zero_copy=1") && !std::exchange(shares_said, true)) {
      options.shares = option.back() == '1';
    } else if ((option == "profile=0" || option == "profile=1") && !std::exchange(profiles_said, true)) {
      options.profiles = option.back() == '1';
    } else if (option.starts_with("staging=") && !options.staging_threshold) {
      options.staging_threshold = parse_size(option.substr(option.find('=') + 1), "staging");
    } else {
      throw InvalidArgument("OpenCL device options", std::string(text), "zero_copy=0|1, profile=0|1 and staging=SIZE");
    }
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return options;
}

}  // namespace

FoundDevices find_opencl_devices() {
  auto const& installation = opencl::installation();
  FoundDevices found{{}, installation.reason};
  for (std::size_t index = 0; index < installation.hardware.size(); ++index) {
    auto const& hardware = installation.hardware[index];
    try {
      found.devices.push_back(std::make_unique<opencl::OpenClDevice>(
          numbered_id("opencl", index), hardware,
          opencl::OpenClOptions{.shares = opencl::OpenClDevice::shares_by_default(hardware)}));
    } catch (std::exception const& failure) {
      if (!found.reason.empty()) found.reason += "; ";
      found.reason += fmt::format("{}: {}", numbered_id("opencl", index), failure.what());
    }
  }
  return found;
}

std::unique_ptr<Device> open_opencl_device(std::size_t index, std::string_view options) {
  auto const& installation = opencl::installation();
  auto id = numbered_id("opencl", index, options, installation.hardware.size());
  auto const& hardware = installation.hardware[index];
  auto const chosen = read_options(options, {.shares = opencl::OpenClDevice::shares_by_default(hardware)});
  return std::make_unique<opencl::OpenClDevice>(std::move(id), hardware, chosen);
}

}  // namespace unimem::detail
