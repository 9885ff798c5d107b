#pragma once

#include <unimem/device/device.hpp>

#include <cstddef>
#include <memory>

namespace unimem::detail {

/// Files as a device, so that a buffer's bytes in a file are a replica like any other: its memory is files
/// (`FileMemory`), and its queues copy between those and the host's memory, on a thread of their own. It runs no
/// kernels, and no list of devices has it.
class FileDevice final : public Device {
 public:
  /// This process's.
  [[nodiscard]] static FileDevice& instance();

  FileDevice();

  [[nodiscard]] MemoryInfo memory_info() const override { return {}; }
  /// UnsupportedOperation: what a file is for says which folder it is in.
  [[nodiscard]] DeviceMemory allocate(std::size_t bytes, Location location) override;
  void release(DeviceMemory /*memory*/, Location /*location*/) noexcept override {}
  [[nodiscard]] bool shares_storage_with_host() const noexcept override { return false; }
  [[nodiscard]] void* address(DeviceMemory /*memory*/) override { return nullptr; }
  [[nodiscard]] std::shared_ptr<Program const> compile(ProgramSource const& source) override;
  /// What disks do, to be compared with other places alone.
  static constexpr LinkCost disk{100e-6, 1e9};
  [[nodiscard]] LinkCost link_cost() const noexcept override { return disk; }

 protected:
  [[nodiscard]] std::unique_ptr<QueueBackend> make_queue() override;
};

}  // namespace unimem::detail
