#pragma once

#include <unimem/device/device.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::detail {

/// What a backend found on this machine: its devices in the driver's order, or the reason why there are none.
struct FoundDevices {
  std::vector<std::unique_ptr<Device>> devices;
  std::string reason;
};

/// One row of the table of backends (discovery.cpp). A table, not self-registration: static archives drop objects that
/// are not named.
struct BackendEntry {
  Backend backend;
  /// Looks for devices; never throws for a missing or broken installation. Called at most once.
  FoundDevices (*find)();
  /// Whether a driver is loaded for it.
  bool loads_driver;
  /// Makes device `index` again with options (`zero_copy=1`); null where the backend takes none. Throws
  /// InvalidArgument.
  std::unique_ptr<Device> (*open)(std::size_t index, std::string_view options);
};

/// What there is of a backend, looked for when it is first asked for.
[[nodiscard]] FoundDevices const& found_devices(Backend backend);

/// Keeps a device as long as the process: what `device()` gives for the one found at `index` with these options, which
/// no other device has.
Device& keep_device(std::size_t index, std::string_view options, std::unique_ptr<Device> device);

[[nodiscard]] std::unique_ptr<Device> make_cpu_device();
[[nodiscard]] FoundDevices find_cuda_devices();
[[nodiscard]] std::unique_ptr<Device> open_cuda_device(std::size_t index, std::string_view options);
[[nodiscard]] FoundDevices find_opencl_devices();
[[nodiscard]] std::unique_ptr<Device> open_opencl_device(std::size_t index, std::string_view options);

}  // namespace unimem::detail
