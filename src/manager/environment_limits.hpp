#pragma once

#include <unimem/device/memory.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace unimem {
class Device;
}

namespace unimem::detail {

/// Limits that whoever starts a program sets for it, by the text of `UNIMEM_LIMITS`: `sim:0=1GiB;cpu/pinned=256MiB`. A
/// location that is not named is where work of the device has its memory: the host's of the cpu, else the device's.
class EnvironmentLimits {
 public:
  EnvironmentLimits() = default;
  /// Throws InvalidArgument naming what cannot be read, and what can.
  explicit EnvironmentLimits(std::string_view text);

  /// What `UNIMEM_LIMITS` says now.
  [[nodiscard]] static EnvironmentLimits read();

  /// Bytes; all there are where nothing is said.
  [[nodiscard]] std::size_t of(Device const& device, Location location) const noexcept;

 private:
  struct Limit {
    std::string device;
    Location location;
    std::size_t bytes;
  };
  std::vector<Limit> all_;
};

}  // namespace unimem::detail
