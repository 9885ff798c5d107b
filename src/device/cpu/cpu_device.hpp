#pragma once

#include <unimem/device/device.hpp>

#include "device/cpu/container_limit.hpp"
#include "device/host_pages.hpp"

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>

namespace unimem::detail {

/// The machine itself as a device: its memory is host memory, its kernels are host forms on the shared thread pool.
///
/// All four locations are the same memory here; `pinned` is locked in place besides. Sizes are counted against what the
/// machine, or the container around it, has, because a container's limit does not refuse, it kills. What else is in the
/// container counts too: what is left is looked at before memory is taken, and small requests are booked against a
/// small part of what the last look has found.
class CpuDevice final : public Device, private PageOwner {
 public:
  explicit CpuDevice(ContainerLimit container = ContainerLimit{});

  [[nodiscard]] MemoryInfo memory_info() const override;
  [[nodiscard]] std::size_t headroom() const override;
  [[nodiscard]] DeviceMemory allocate(std::size_t bytes, Location location) override;
  void release(DeviceMemory memory, Location location) noexcept override;
  [[nodiscard]] PageSource* pages() noexcept override;
  [[nodiscard]] bool shares_storage_with_host() const noexcept override { return true; }
  [[nodiscard]] bool reaches_host_memory() const noexcept override { return true; }
  [[nodiscard]] void* address(DeviceMemory memory) override;
  [[nodiscard]] std::shared_ptr<Program const> compile(ProgramSource const& source) override;

 protected:
  [[nodiscard]] std::unique_ptr<QueueBackend> make_queue() override;

 private:
  /// Counts `bytes` as live, unless that would pass the capacity or what the container has left: then throws
  /// OutOfMemory.
  void take(std::size_t bytes, Location location);

  /// Throws OutOfMemory if the container has no room for what is live, these `bytes` included.
  void ask_container(std::size_t bytes, Location location);

  /// How the container stands when all that is live has been touched; nothing if there is no limit.
  [[nodiscard]] std::optional<ContainerLimit::Standing> container() const;

  void take_for_pages(std::size_t bytes) override { take(bytes, Location::device); }
  void give_back_from_pages(std::size_t bytes) noexcept override { live_bytes_ -= bytes; }
  void pages_created(std::uintptr_t, std::size_t) override {}
  void pages_moved(std::uintptr_t, std::uintptr_t, std::size_t) override {}
  void pages_freed(std::uintptr_t, std::size_t) noexcept override {}

  ContainerLimit const container_;
  std::size_t const resident_before_;  ///< what the process had in memory when nothing of it was handed out here
  // Sums alone; nothing is published through them.
  std::atomic<std::size_t> live_bytes_{0};
  std::atomic<std::size_t> unasked_bytes_{0};  ///< that may be taken before the container is looked at again
  HostPages pages_;
};

}  // namespace unimem::detail
