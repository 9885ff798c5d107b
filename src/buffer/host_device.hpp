#pragma once

#include <unimem/device/device.hpp>
#include <unimem/device/memory.hpp>

namespace unimem::detail {

/// The device whose memory is the host's.
[[nodiscard]] Device& host_device();

[[nodiscard]] inline void* host_address(DeviceMemory memory) noexcept {
  return reinterpret_cast<void*>(memory.object + memory.offset);
}

}  // namespace unimem::detail
