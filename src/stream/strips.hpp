#pragma once

#include <algorithm>
#include <cstddef>

namespace unimem::detail {

/// Reductions cut a chunk into strips, one work item each: enough of them to occupy a device, each long enough that its
/// partial result costs next to nothing, and short enough to stay in a core's cache for a second pass. Rusticl
/// ends the loops of an item after 65,535 iterations in all, without a word: all passes over a strip together stay
/// below that. Their length does not depend on the device, so neither does the order in which anything is
/// added up.
inline constexpr std::size_t strip_bytes = std::size_t{16} << 10;

/// The strips of a chunk of `bytes` bytes; the last may be shorter.
[[nodiscard]] constexpr std::size_t strip_count(std::size_t bytes) noexcept {
  return (bytes + strip_bytes - 1) / strip_bytes;
}

/// The bytes of strip `index` of such a chunk.
[[nodiscard]] constexpr std::size_t bytes_of_strip(std::size_t bytes, std::size_t index) noexcept {
  return std::min(strip_bytes, bytes - index * strip_bytes);
}

}  // namespace unimem::detail
