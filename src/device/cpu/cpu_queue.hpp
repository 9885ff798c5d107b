#pragma once

#include <unimem/device/device.hpp>

#include "device/host_queue.hpp"

namespace unimem::detail {

/// Work of the cpu device: copies are memmove, kernels their host form. A piece of work fails only if a kernel throws.
class CpuQueue final : public HostQueue {
 public:
  explicit CpuQueue(Device& device) : device_(device) {}

  Event upload(DeviceMemory to, void const* from, std::size_t bytes, CopyTerms const& terms) override;
  Event download(void* to, DeviceMemory from, std::size_t bytes, CopyTerms const& terms) override;
  Event copy(DeviceMemory to, DeviceMemory from, std::size_t bytes, CopyTerms const& terms) override;
  Event fill(DeviceMemory to, std::span<const std::byte> pattern) override;
  Event run(std::shared_ptr<Program const> program, Range range, std::span<const KernelArgument> arguments,
            std::span<const Event> needs) override;

 private:
  Device& device_;  ///< tasks refer to it and never to the queue, whose destructor runs the last of them
};

}  // namespace unimem::detail
