#include <unimem/pool/upstream.hpp>

#include <unimem/core/error.hpp>

#include <fmt/format.h>

#include <cstdint>

namespace unimem {

Upstream::~Upstream() = default;
ResourceUpstream::~ResourceUpstream() = default;

DeviceMemory ResourceUpstream::allocate(std::size_t bytes, Location location, Device& device) {
  if (!device.reaches_host_memory() || location == Location::pinned) {
    throw UnsupportedOperation("ResourceUpstream", fmt::format("{} {}", device.id(), to_string(location)),
                               "it gives ordinary memory of the host");
  }
  auto* const memory = resource_.allocate(bytes, device.info().alignment);
  return {reinterpret_cast<std::uintptr_t>(memory), 0, bytes};
}

void ResourceUpstream::release(DeviceMemory memory, Location, Device& device) noexcept {
  resource_.deallocate(reinterpret_cast<void*>(memory.object), memory.bytes, device.info().alignment);
}

}  // namespace unimem
