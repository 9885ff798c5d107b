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

/// The number of the near-exact class of a size: class 0 is up to `smallest_block`, then sixteen for each doubling.
/// Monotone, and defined from `exact_from` on as well, where blocks are no longer rounded to their class.
[[nodiscard]] constexpr std::size_t near_exact_class(std::size_t bytes) noexcept {
  if (bytes <= smallest_block) return 0;
  auto const doubling = static_cast<std::size_t>(std::bit_width(bytes - 1)) - 1;  // at least that of smallest_block
  return 1 + (doubling - std::bit_width(smallest_block) + 1) * 16 + (((bytes - 1) >> (doubling - 4)) & 15);
}

/// The largest size of a near-exact class.
[[nodiscard]] constexpr std::size_t near_exact_limit(std::size_t index) noexcept {
  if (index == 0) return smallest_block;
  auto const doubling = (index - 1) / 16 + std::bit_width(smallest_block) - 1;
  return ((index - 1) % 16 + 17) << (doubling - 4);
}

/// The largest block that may serve a large request at once, where there may be a better one: a thirty-second more.
[[nodiscard]] constexpr std::size_t close_fit(std::size_t bytes) noexcept {
  auto const slack = bytes / 32;
  return bytes > std::numeric_limits<std::size_t>::max() - slack ? std::numeric_limits<std::size_t>::max()
                                                                 : bytes + slack;
}

/// The largest that may serve a request rather than a new allocation: an eighth more than asked for, or 4 KiB where
/// that is more.
[[nodiscard]] constexpr std::size_t largest_fit(std::size_t bytes) noexcept {
  auto const slack = std::max<std::size_t>(bytes / 8, 4096);
  return bytes > std::numeric_limits<std::size_t>::max() - slack ? std::numeric_limits<std::size_t>::max()
                                                                 : bytes + slack;
}

}  // namespace unimem::detail
