#pragma once

#include "kernel/known_answer.hpp"

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace unimem::detail {

/// A work group of the most items that the OpenCL backend makes, and 19 more: compilers have code for whole vectors of
/// items and other code for what is left, and either may be wrong.
inline constexpr std::size_t known_items = 256 + 19;

/// How many elements a run takes: `wanted`, or the largest half, quarter, … of it that needs no more than half of
/// `room` bytes, which leaves the other half for what pools round up to; one at least.
template <class BytesOf>
[[nodiscard]] std::size_t elements_within(std::size_t room, std::size_t wanted, BytesOf const& bytes_of) {
  while (wanted > 1 && bytes_of(wanted) > room / 2) wanted /= 2;
  return wanted;
}

/// Elements on which arithmetic may go wrong, the same ones each time. Each stretch of `stretch` is of one kind, eight
/// kinds by turns, of which one has infinities and one a NaN, where the element has them: both hide all other faults of
/// the stretch they are in. Subnormals are left out, which devices may take for zero.
template <class T>
[[nodiscard]] std::vector<T> known_elements(std::size_t count, std::size_t stretch) {
  using Limits = std::numeric_limits<T>;
  std::mt19937_64 random{17};  // NOLINT(cert-msc51-cpp): the answer is to be known
  std::vector<T> elements(count);
  for (std::size_t i = 0; i < count; ++i) {
    auto const bits = random();
    auto const kind = i / stretch % 8;
    if constexpr (std::floating_point<T>) {
      bool const marked = i % stretch == stretch / 2;
      auto const fraction = static_cast<double>(bits >> 11U) * 0x1p-53;  // from 0 to 1
      auto const small = static_cast<T>(fraction * 2000 - 1000);
      elements[i] = kind == 5             ? static_cast<T>((fraction - 0.5) * static_cast<double>(Limits::max()) / 4)
                    : kind == 6 && marked ? (bits % 2 == 0 ? Limits::infinity() : -Limits::infinity())
                    : kind == 7 && marked ? Limits::quiet_NaN()
                    : kind % 2 == 0       ? static_cast<T>(1e6 + fraction)
                                          : small;
    } else {
      constexpr std::array edges{Limits::min(), Limits::max(), T{0}, T{1}, static_cast<T>(-1)};
      elements[i] = kind == 5   ? edges[bits % edges.size()]
                    : kind == 6 ? static_cast<T>(static_cast<int>(bits % 100) - 50)
                                : static_cast<T>(bits);
    }
  }
  return elements;
}

}  // namespace unimem::detail
