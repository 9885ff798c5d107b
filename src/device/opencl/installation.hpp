#pragma once

#include "device/opencl/hardware.hpp"

#include <string>
#include <vector>

namespace unimem::detail::opencl {

/// The OpenCL of this machine, looked for once per process and kept for good: after a probe in a child process has
/// shown that loading it is safe. `reason` says why there is no hardware; never throws for a missing or broken
/// installation.
///
/// `UNIMEM_OPENCL_PROBE=0` skips the probe, `UNIMEM_OPENCL_PROBE_TIMEOUT_MS` bounds it (10,000 unless set).
[[nodiscard]] Survey const& installation();

}  // namespace unimem::detail::opencl
