#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/pool/memory_pool.hpp>
#include <unimem/pool/upstream.hpp>

#include "core/sizes.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace unimem {

/// A place that pools serve. `most` bounds what the tests take there: page-locked memory is scarce.
struct PoolHome {
  char const* name;
  Device& (*device)();
  Location location;
  std::size_t most;
  PoolBacking backing = PoolBacking::allocations;
  std::shared_ptr<Upstream> (*upstream)() = nullptr;  ///< null: the memory is the device's
  bool may_be_missing = false;                        ///< not all hardware has such memory
};

/// The device of a home, or why this machine has none with such memory: what runs there is then skipped and says so,
/// and until it is, the cpu device stands in.
struct FoundHome {
  Device& place;
  std::string missing{};
};

inline FoundHome found(PoolHome const& home) {
  if (!home.may_be_missing) return {home.device()};
  try {
    auto& place = home.device();
    place.release(place.allocate(1, home.location), home.location);
    return {place};
  } catch (UnsupportedOperation const& reason) {
    return {device("cpu"), reason.what()};
  }
}

inline std::vector<std::uint64_t> pattern(std::size_t count, std::uint64_t seed) {
  std::vector<std::uint64_t> words(count);
  for (std::size_t i = 0; i < count; ++i) words[i] = seed * 0x9E3779B97F4A7C15U + i;
  return words;
}

}  // namespace unimem
