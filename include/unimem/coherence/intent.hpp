#pragma once

#include <cstdint>

namespace unimem {

/// What an access will do with the bytes it names.
enum class Intent : std::uint8_t {
  read,        ///< look at them: the place must hold the current bytes
  write,       ///< overwrite every one of them: nothing has to be brought in
  read_write,  ///< look at them and change some
};

}  // namespace unimem
