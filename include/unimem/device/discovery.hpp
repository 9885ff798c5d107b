#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/device.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace unimem {

/// Every device of the process: "cpu" first, then each backend's in the order of the driver, simulated ones last.
/// The first call looks for drivers, which may take a fraction of a second. Thread-safe.
[[nodiscard]] UNIMEM_API std::vector<std::reference_wrapper<Device>> devices();

/// The device with this id. `sim` or `sim:memory=1GiB,h2d=12GB/s,latency=10us,fail_alloc=3` is a simulated device
/// (options: device/sim.hpp), made when it is first named: the same options, in whatever order and spelling and with or
/// without defaults, are the same device as long as the process lives, its fault plan and what it counted included.
/// `make_sim` always makes a new one, and `sim:0`, `sim:1` … name all of them by the order in which they were made.
/// `opencl:0,zero_copy=1,profile=1,staging=8MiB` takes options too: whether its memory is the host's, whether its
/// driver keeps the times of copies (TransferCounters), and above which size copies are staged
/// (`Device::staging_threshold`). Only the backend named is looked for. Throws NotFound listing what there is,
/// InvalidArgument for an option it cannot read. Thread-safe.
[[nodiscard]] UNIMEM_API Device& device(std::string_view id);

/// `UNIMEM_DEVICE` if set, else the first of: cuda, metal, a GPU under OpenCL, cpu. Decided once. Thread-safe.
[[nodiscard]] UNIMEM_API Device& default_device();

/// A backend that has no device here, and why.
struct UnavailableBackend {
  Backend backend = Backend::cpu;
  std::string reason;
};

/// The backends that `devices()` found nothing for. Thread-safe.
[[nodiscard]] UNIMEM_API std::vector<UnavailableBackend> unavailable_backends();

}  // namespace unimem
