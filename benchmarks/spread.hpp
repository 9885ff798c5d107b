#pragma once

#include <algorithm>
#include <vector>

namespace unimem::bench {

/// The median of some measurements, and the quartiles it lies between.
struct Spread {
  double low, median, high;
};

/// Of at least one measurement.
[[nodiscard]] inline Spread spread(std::vector<double> values) {
  std::ranges::sort(values);
  return {values[values.size() / 4], values[values.size() / 2], values[values.size() * 3 / 4]};
}

}  // namespace unimem::bench
