#pragma once

#include <unimem/device/program.hpp>

#include <bit>
#include <cstddef>
#include <span>
#include <utility>

namespace unimem {

/// One group of a launch, as the host form of a kernel is called for it. Its items take turns on one thread, phase by
/// phase, so what they share are variables of the callable, and the end of a phase is the barrier:
///
///     Kernel sums = Kernel("sums").group({256})
///         .host([](WorkGroup const& group, std::span<const float> x, std::span<float> sum) {
///           std::array<float, 256> part;
///           group.each([&](WorkItem item, WorkItem local) { part[local.x] = x[item.x]; });
///           sum[group.index().x] = group_sum(std::span(part));
///         });
///
/// For one thread.
class WorkGroup {
 public:
  /// The group with that index, of a range that has groups.
  constexpr WorkGroup(Range range, WorkItem index) noexcept : range_(range), index_(index) {}

  /// Which of the range's groups it is.
  [[nodiscard]] constexpr WorkItem index() const noexcept { return index_; }
  [[nodiscard]] constexpr GroupSize size() const noexcept { return range_.group_size; }
  [[nodiscard]] constexpr std::size_t items() const noexcept { return size().x * size().y * size().z; }
  [[nodiscard]] constexpr Range range() const noexcept { return range_; }
  /// The number of an item within the group, x fastest.
  [[nodiscard]] constexpr std::size_t number(WorkItem local) const noexcept {
    return (local.z * size().y + local.y) * size().x + local.x;
  }

  /// One phase: calls `visit(item, local)` for each item of the group, by its index in the range and in the group. When
  /// it returns, all of them have been there.
  template <class F>
  constexpr void each(F&& visit) const {
    auto const [x, y, z] = size();
    WorkItem const first{index_.x * x, index_.y * y, index_.z * z};
    for (std::size_t k = 0; k < z; ++k) {
      for (std::size_t j = 0; j < y; ++j) {
        for (std::size_t i = 0; i < x; ++i) visit(WorkItem{first.x + i, first.y + j, first.z + k}, WorkItem{i, j, k});
      }
    }
  }

 private:
  Range range_;
  WorkItem index_;
};

namespace detail {

/// In the order of the source form's functions (docs/kernels.md), so that floating point comes to the same.
template <class T, class Join>
constexpr T group_reduction(std::span<T> values, Join const& join) {
  if (values.empty()) return T{};
  for (auto half = std::bit_ceil(values.size()) / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half && i + half < values.size(); ++i) values[i] = join(values[i], values[i + half]);
  }
  return values.front();
}

}  // namespace detail

/// What `unimem_group_sum` gives each item of a group (docs/kernels.md), from the values of all of them, by number.
/// Uses `values` up. Of none: 0.
template <class T, std::size_t N>
constexpr T group_sum(std::span<T, N> values) {
  return detail::group_reduction(std::span<T>(values), [](T a, T b) { return static_cast<T>(a + b); });
}
template <class T, std::size_t N>
constexpr T group_min(std::span<T, N> values) {
  return detail::group_reduction(std::span<T>(values), [](T a, T b) { return b < a ? b : a; });
}
template <class T, std::size_t N>
constexpr T group_max(std::span<T, N> values) {
  return detail::group_reduction(std::span<T>(values), [](T a, T b) { return a < b ? b : a; });
}

/// Puts in the place of each value the sum of those up to it, as `unimem_group_inclusive_sum` gives it.
template <class T, std::size_t N>
constexpr void group_inclusive_sum(std::span<T, N> values) {
  for (std::size_t step = 1; step < values.size(); step *= 2) {
    for (auto i = values.size(); i-- > step;) values[i] = static_cast<T>(values[i - step] + values[i]);
  }
}

/// Puts in the place of each value the sum of those before it, as `unimem_group_exclusive_sum` gives it.
template <class T, std::size_t N>
constexpr void group_exclusive_sum(std::span<T, N> values) {
  group_inclusive_sum(values);
  T before{};
  for (auto& value : values) value = std::exchange(before, value);
}

}  // namespace unimem
