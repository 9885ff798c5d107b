#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/manager/memory_manager.hpp>

#include <string>

namespace unimem {

/// What a suite of kernels has beside its cases: a device, a manager of its own, and buffers of both.
class OnDevice {
 protected:
  explicit OnDevice(std::string const& id) : on(device(id)) {}

  [[nodiscard]] BufferOptions here() {
    BufferOptions options;
    options.manager = &manager;
    options.device = &on;
    return options;
  }

  Device& on;
  MemoryManager manager;
};

}  // namespace unimem
