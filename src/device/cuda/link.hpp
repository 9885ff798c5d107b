#pragma once

#include <unimem/device/device.hpp>

namespace unimem::detail::cuda {

class CudaDevice;

/// What a copy from the host costs on this GPU, by a few copies of two sizes from pinned memory in a stream of their
/// own, which no counters see. A few milliseconds. Where the driver refuses, the initial estimate.
[[nodiscard]] LinkCost measure_link(CudaDevice const& device) noexcept;

}  // namespace unimem::detail::cuda
