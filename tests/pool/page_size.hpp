#pragma once

#include "core/sizes.hpp"

#include <cstddef>

namespace unimem {

/// Bytes of a page of simulated devices, and of the pages that tests of arenas script.
inline constexpr std::size_t page = 64 * KiB;

}  // namespace unimem
