#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>

namespace unimem::detail {

// Near-exact classes: powers of two would waste a quarter of all memory on average, and exact sizes would never meet
// again.

inline constexpr std::size_t smallest_block = 256;
inline constexpr std::size_t exact_from = std::size_t{1} << 20;

/// The bytes to ask the driver for: at least `smallest_block`, then sixteen steps per doubling (at most 6.25 % more
/// than needed), and from `exact_from` on just what is needed, since there the waste would be felt and best fit finds a
/// match anyway.
[[nodiscard]] constexpr std::size_t block_capacity(std::size_t bytes) noexcept {
  if (bytes <= smallest_block) return smallest_block;
  if (bytes >= exact_from) return bytes;
  auto const step = std::bit_floor(bytes - 1) / 16;  // a power of two
  return (bytes + step - 1) & ~(step - 1);
}

/// The largest cached block that may serve a request: an eighth more than asked for, or 4 KiB where that is more.
[[nodiscard]] constexpr std::size_t largest_fit(std::size_t bytes) noexcept {
  auto const slack = std::max<std::size_t>(bytes / 8, 4096);
  return bytes > std::numeric_limits<std::size_t>::max() - slack ? std::numeric_limits<std::size_t>::max()
                                                                 : bytes + slack;
}

}  // namespace unimem::detail
