#pragma once

#include <unimem/device/device.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace unimem {

/// Where an allocation should live. `automatic` lets the manager decide; what it decided is never `automatic`.
enum class Placement : std::uint8_t {
  automatic,
  device_local,
  host_pinned,
  host_accessible,
  unified,
  read_only_optimized,
  write_only_optimized,
  streaming_optimized,
  random_access_optimized,
};

/// How an allocation will be used: a hint for placement.
enum class AccessPattern : std::uint8_t {
  unknown,
  sequential,
  random,
  streaming,
  strided,
  gather,
  scatter,
  read_only,
  write_only,
  read_write,
};

/// What `MemoryManager::allocate` is asked for besides the number of elements.
struct AllocationOptions {
  /// A demand: what the device does not serve is UnsupportedOperation. Pinned: the host side is page-locked. Nothing:
  /// the placement decides.
  std::optional<Location> location{};
  /// A wish: what the machine does not have is replaced by what comes nearest, and counted. Must not contradict the
  /// location.
  Placement placement = Placement::automatic;
  AccessPattern access = AccessPattern::unknown;
  Device* device = nullptr;  ///< null: default_device()
  std::string name{};        ///< shown in usage reports and out-of-memory messages
};

}  // namespace unimem
