#pragma once

#include "command_line.hpp"

#include <unimem/device/device.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::cli {

/// What one thing takes on a device: the median of several measurements, and the least and the most of them.
struct Figure {
  Benchmark benchmark = Benchmark::allocation;
  std::string_view name;
  std::size_t bytes = 0;  ///< that it concerns; 0: none
  double median = 0, least = 0, most = 0;
  std::string_view unit;  ///< of the three: "ns", "us" or "GB/s" (10⁹ bytes)
  std::size_t measurements = 0;
};

/// A benchmark that says nothing of a device, and why.
struct LeftOut {
  Benchmark benchmark = Benchmark::allocation;
  std::string_view reason;
};

struct Figures {
  std::vector<Figure> figures;
  std::vector<LeftOut> left_out;
};

/// Measures `benchmarks` on a device, in their order; `quick`: less of everything, in a second or two. Takes no more
/// than an eighth of the device's free memory at once, and the host as much. Throws what the device does: OutOfMemory,
/// KernelError, DeviceError.
[[nodiscard]] Figures measure(Device& device, std::vector<Benchmark> const& benchmarks, bool quick);

}  // namespace unimem::cli
