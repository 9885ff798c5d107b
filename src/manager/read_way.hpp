#pragma once

#include <unimem/manager/file_access.hpp>

#include "file/file_reader.hpp"

namespace unimem::detail {

/// How a file's bytes are read where an access was asked for. `mapped` says how the host looks at them; what is read
/// all the same, for a device with memory of its own, comes as it costs least.
[[nodiscard]] constexpr ReadWay read_way(FileAccess access) noexcept {
  switch (access) {
    case FileAccess::direct:
      return ReadWay::direct;
    case FileAccess::cached:
      return ReadWay::cached;
    case FileAccess::automatic:
    case FileAccess::mapped:
      break;
  }
  return ReadWay::by_residency;
}

}  // namespace unimem::detail
