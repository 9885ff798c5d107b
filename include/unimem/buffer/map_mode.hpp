#pragma once

#include <cstdint>

namespace unimem {

/// What a mapping is for.
enum class MapMode : std::uint8_t {
  read,        ///< look: the window is current, nothing counts as written
  write,       ///< change some of it: the window is current, and counts as written when it is unmapped
  read_write,  ///< the same
  discard,     ///< overwrite all of it: nothing is brought in, and it counts as written from the start
};

}  // namespace unimem
