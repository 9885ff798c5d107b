#pragma once

#include <unimem/device/device.hpp>

#include "device/cuda/driver.hpp"
#include "device/memory_budget.hpp"

#include <memory>
#include <string>
#include <vector>

namespace unimem::detail::cuda {

/// One GPU as the driver shows it, before anything was made on it: to list GPUs costs no memory on them.
struct Hardware {
  Driver const* driver = nullptr;
  int driver_version = 0;  ///< as the driver counts: 12040 is 12.4
  Device device = 0;
  int architecture = 0;  ///< 90 is compute capability 9.0
  DeviceInfo info;
  std::string uuid;             ///< "cuda-" and how NVIDIA's tools spell it; empty if the driver does not tell
  std::size_t max_pitch = 0;    ///< between rows of a rectangle, for commands that copy one
  bool maps_pages = false;      ///< virtual memory management
  bool has_pools = false;       ///< stream-ordered allocation
  bool reaches_pinned = false;  ///< kernels reach pinned memory of the host by the host's addresses
  bool has_managed = false;     ///< managed memory that host and GPU may use at the same time
  std::shared_ptr<MemoryBudget> budget;
};

/// What a machine has. Those that CUDA_VISIBLE_DEVICES hides are not there for the driver either; instances of a
/// partitioned GPU (MIG) are devices like others.
struct Survey {
  std::vector<Hardware> hardware;  ///< in the driver's order
  std::string reason;              ///< why there is none, or why some cannot be used
};

[[nodiscard]] Survey survey(Driver const& driver, int driver_version);

/// The CUDA of this machine, looked for once per process and kept for good. `reason` says why there is no hardware;
/// never throws for a missing or broken installation.
[[nodiscard]] Survey const& installation();

}  // namespace unimem::detail::cuda
