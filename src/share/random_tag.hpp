#pragma once

#include <cstdint>
#include <random>

namespace unimem::detail {

/// What tells the ids of one registry, or one process, from all others'; never 0.
[[nodiscard]] inline std::uint64_t random_tag() {
  std::random_device source;
  std::uint64_t tag = 0;
  while (tag == 0) tag = (std::uint64_t{source()} << 32U) | source();
  return tag;
}

}  // namespace unimem::detail
