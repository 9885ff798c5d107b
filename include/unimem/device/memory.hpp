#pragma once

#include <unimem/core/export.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace unimem {

/// Which kind of memory an allocation is taken from.
enum class Location : std::uint8_t {
  device,   ///< the device's own memory
  host,     ///< ordinary pageable host memory
  pinned,   ///< page-locked host memory
  unified,  ///< one address for host and device, moved by the driver
};

[[nodiscard]] UNIMEM_API std::string_view to_string(Location location) noexcept;

/// Memory as only its device understands it: on cpu and sim `object` is an address, under OpenCL a `cl_mem`. Everything
/// above the device floor passes it on without looking inside. A plain value: it owns nothing.
struct DeviceMemory {
  std::uintptr_t object = 0;
  std::size_t offset = 0;  ///< bytes into the object
  std::size_t bytes = 0;   ///< how much of the object, from the offset on, this value stands for

  /// The window `[from, from + count)` of this memory. The caller has checked that it fits.
  [[nodiscard]] constexpr DeviceMemory window(std::size_t from, std::size_t count) const noexcept {
    return {object, offset + from, count};
  }
  [[nodiscard]] constexpr bool empty() const noexcept { return bytes == 0; }

  friend constexpr bool operator==(DeviceMemory, DeviceMemory) = default;
};

/// One of the pieces that a copy moves at once: where it goes to and comes from, as offsets into the two memories.
struct CopyPiece {
  std::size_t to = 0;
  std::size_t from = 0;
  std::size_t bytes = 0;

  friend constexpr bool operator==(CopyPiece, CopyPiece) = default;
};

}  // namespace unimem
