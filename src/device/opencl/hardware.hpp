#pragma once

#include <unimem/device/device.hpp>

#include "device/memory_budget.hpp"
#include "device/opencl/api.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace unimem::detail::opencl {

/// One device as the driver describes it, before anything is opened on it.
struct Hardware {
  Api const* api = nullptr;  ///< the table to call it through
  cl_platform_id platform = nullptr;
  cl_device_id device = nullptr;
  DeviceInfo info;
  bool fine_grain_memory = false;  ///< fine-grained shared virtual memory: host and kernels may use the same addresses
  std::shared_ptr<MemoryBudget> budget;
  bool is_pocl = false;               ///< its runs need an order (PoclRunOrder)
  bool loads_with_first_run = false;  ///< its code generator, exit handlers and all (run_to_the_end_once)
  std::string compiler;               ///< the platform's name and version: what compiles kernels is a part of it
};

/// All usable hardware, in the driver's order over all platforms, or the reason why there is none.
struct Survey {
  std::vector<Hardware> hardware;
  std::string reason;
};

/// Asks every platform for its devices and every device for what it is: all that can crash or hang in a broken
/// installation. `announce` is told what is about to be asked. A platform that fails is left out. `serial` is the table
/// for drivers that are not thread-safe; both tables must outlive the result.
[[nodiscard]] Survey survey(Api const& api, Api const& serial, std::function<void(std::string const&)> const& announce);

}  // namespace unimem::detail::opencl
