#pragma once

#include <unimem/device/device.hpp>

#include <algorithm>
#include <cstddef>

namespace unimem::detail {

/// What a row costs besides its bytes, by a rectangle of `rows` of `row_bytes` that took `seconds` on a link of `cost`.
/// No row is for nothing, whatever a noisy moment says.
[[nodiscard]] inline double row_cost(LinkCost const& cost, double seconds, std::size_t rows, std::size_t row_bytes) {
  auto const bytes = static_cast<double>(rows * row_bytes);
  auto const rest = seconds - cost.latency_seconds - bytes / cost.bytes_per_second;
  return std::max(rest / static_cast<double>(rows), 1e-9);
}

}  // namespace unimem::detail
