#pragma once

#include <unimem/device/device.hpp>

#include "device/opencl/api.hpp"

#include <CL/cl.h>

namespace unimem::detail::opencl {

/// What a copy from the host costs on this device, by a few copies of two sizes on a queue and a block of its own,
/// which no counters see. A few milliseconds. Where the driver refuses, the initial estimate.
[[nodiscard]] LinkCost measure_link(Api const& api, cl_context context, cl_device_id device) noexcept;

}  // namespace unimem::detail::opencl
