#pragma once

#include <unimem/device/memory.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unimem {
class Device;
}

namespace unimem::detail {

/// Limits that the environment sets for a program, by the text of `UNIMEM_LIMITS`: `sim:0=1GiB;cpu/pinned=256MiB`.
/// Where no location is named it is the device's memory, of the cpu all of the host's.
class EnvironmentLimits {
 public:
  EnvironmentLimits() = default;
  /// Throws InvalidArgument naming what cannot be read, and what can.
  explicit EnvironmentLimits(std::string_view text);

  /// What `UNIMEM_LIMITS` says now.
  [[nodiscard]] static EnvironmentLimits read();

  /// Bytes; all there are where nothing is said.
  [[nodiscard]] std::size_t of(Device const& device, Location location) const noexcept;
  /// The same of all of the host's memory together.
  [[nodiscard]] std::size_t of_the_host() const noexcept;

 private:
  struct Limit {
    std::string device;
    std::optional<Location> location;  ///< none: all of the host's
    std::size_t bytes;
  };
  [[nodiscard]] std::size_t least(std::string_view device, std::optional<Location> location) const noexcept;

  std::vector<Limit> all_;
};

}  // namespace unimem::detail
