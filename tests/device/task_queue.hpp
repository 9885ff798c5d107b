#pragma once

#include "device/host_queue.hpp"

#include <cstddef>
#include <memory>
#include <span>

namespace unimem::detail {

/// A queue whose only command is a function.
class TaskQueue final : public HostQueue {
 public:
  using HostQueue::submit;

  Event upload(DeviceMemory, void const*, std::size_t, CopyTerms const&) override { return {}; }
  Event download(void*, DeviceMemory, std::size_t, CopyTerms const&) override { return {}; }
  Event copy(DeviceMemory, DeviceMemory, std::size_t, CopyTerms const&) override { return {}; }
  Event fill(DeviceMemory, std::span<const std::byte>) override { return {}; }
  Event run(std::shared_ptr<Program const>, Range, std::span<const KernelArgument>, std::span<const Event>) override {
    return {};
  }
};

}  // namespace unimem::detail
