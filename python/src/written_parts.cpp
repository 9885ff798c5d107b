#include "written_parts.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <span>
#include <vector>

#include "numpy_api.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

/// The bookkeeping of a range, 0.3 us in all, costs as much as so many bytes do on their way to a device at 7 GB/s.
constexpr std::size_t least_gap = 2048;
constexpr std::size_t most_parts = 4096;

/// One axis: where its elements begin, from the lowest on.
struct Axis {
  std::size_t count = 0;
  std::size_t stride = 0;
  std::span<const npy_intp> chosen;  ///< in ascending order of addresses unless `reversed`; empty for all
  bool reversed = false;

  [[nodiscard]] std::size_t size() const noexcept { return chosen.empty() ? count : chosen.size(); }
  [[nodiscard]] std::size_t offset(std::size_t i) const noexcept {
    if (chosen.empty()) return i * stride;
    auto const at = static_cast<std::size_t>(reversed ? chosen[chosen.size() - 1 - i] : chosen[i]);
    return (reversed ? count - 1 - at : at) * stride;
  }
};

/// Without the gaps that are not worth it.
ByteRanges without_small_gaps(ByteRanges const& parts) {
  ByteRanges joined;
  ByteRange last = parts.ranges().front();
  for (auto const part : parts.ranges()) {
    if (part.begin < last.end + least_gap) {
      last.end = part.end;
    } else {
      joined.add(last);
      last = part;
    }
  }
  joined.add(last);
  return joined;
}

ByteRanges along(Axis const& axis, ByteRanges const& pattern) {
  ByteRanges parts;
  for (std::size_t i = 0; i < axis.size(); ++i) {
    for (auto const part : pattern.ranges()) parts.add({part.begin + axis.offset(i), part.end + axis.offset(i)});
  }
  return without_small_gaps(parts);
}

ByteRange span_of(ByteRanges const& parts) {
  return {parts.ranges().front().begin, parts.ranges().back().end};
}

}  // namespace

ByteRanges written_parts(nb::handle object, int axis, nb::handle chosen) {
  auto* const array = reinterpret_cast<PyArrayObject*>(object.ptr());
  std::vector<Axis> axes;
  for (int i = 0; i < PyArray_NDIM(array); ++i) {
    auto const stride = PyArray_STRIDE(array, i);
    Axis one{
        static_cast<std::size_t>(PyArray_DIM(array, i)), static_cast<std::size_t>(std::abs(stride)), {}, stride < 0};
    if (i == axis && !chosen.is_none()) {
      auto* const indexes = reinterpret_cast<PyArrayObject*>(chosen.ptr());
      one.chosen = {static_cast<npy_intp const*>(PyArray_DATA(indexes)),
                    static_cast<std::size_t>(PyArray_SIZE(indexes))};
    }
    axes.push_back(one);
  }
  std::ranges::sort(axes, {}, &Axis::stride);
  ByteRanges parts{{0, static_cast<std::size_t>(PyArray_ITEMSIZE(array))}};
  for (auto const& one : axes) {
    if (one.size() > most_parts / parts.ranges().size()) parts = ByteRanges{span_of(parts)};
    auto const whole = span_of(parts);
    bool const gapless = parts.ranges().size() == 1 && one.stride < whole.size() + least_gap;
    bool const too_many = one.size() > most_parts;
    if (one.size() > 1 && ((gapless && one.chosen.empty()) || too_many)) {
      parts = ByteRanges{{whole.begin + one.offset(0), whole.end + one.offset(one.size() - 1)}};
    } else if (one.size() > 1 || !one.chosen.empty()) {
      parts = along(one, parts);
    }
  }
  return parts;
}

}  // namespace unimem::python
