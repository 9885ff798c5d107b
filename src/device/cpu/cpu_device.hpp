#pragma once

#include <unimem/device/device.hpp>

#include "core/container_limit.hpp"
#include "core/fork.hpp"
#include "device/host_pages.hpp"

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>

namespace unimem::detail {

/// The machine itself as a device: its memory is host memory, its kernels are host forms on the shared thread pool.
///
/// All four locations are the same memory here; `pinned` is locked in place besides. Sizes are counted against what the
/// machine, or the container around it, has, because a container's limit does not refuse, it kills. What else is in the
/// container counts too: what is left is looked at before memory is taken, and small requests are booked against a
/// small part of what the last look has found.
///
/// In a forked child it goes on with pages and locks of its own.
class CpuDevice final : public Device, private PageOwner {
 public:
  explicit CpuDevice(ContainerLimit container = ContainerLimit{});
  CpuDevice(CpuDevice const&) = delete;
  CpuDevice& operator=(CpuDevice const&) = delete;
  ~CpuDevice() override;

  [[nodiscard]] MemoryInfo memory_info() const override;
  [[nodiscard]] std::size_t headroom() const override;
  [[nodiscard]] DeviceMemory allocate(std::size_t bytes, Location location) override;
  void release(DeviceMemory memory, Location location) noexcept override;
  [[nodiscard]] DeviceMemory allocate_undumped(std::size_t bytes, Location location) override;
  void release_undumped(DeviceMemory memory, Location location) noexcept override;
  [[nodiscard]] PageSource* pages() noexcept override;
  [[nodiscard]] bool shares_storage_with_host() const noexcept override { return true; }
  [[nodiscard]] bool reaches_host_memory() const noexcept override { return true; }
  [[nodiscard]] void* address(DeviceMemory memory) override;
  [[nodiscard]] std::shared_ptr<Program const> compile(ProgramSource const& source) override;

 protected:
  [[nodiscard]] std::unique_ptr<QueueBackend> make_queue() override;

 private:
  [[nodiscard]] DeviceMemory allocate(std::size_t bytes, Location location, bool undumped);
  void release(DeviceMemory memory, Location location, bool own_pages) noexcept;

  /// Counts `bytes` as live, unless that would pass the capacity or what the container has left: then throws
  /// OutOfMemory.
  void take(std::size_t bytes, Location location);

  /// Whether they are booked against what may be taken unasked; then they are.
  [[nodiscard]] bool is_unasked(std::size_t bytes) noexcept;

  /// Throws OutOfMemory if the capacity does not hold these beside what is live.
  void check_capacity(std::size_t bytes, Location location, std::size_t live) const;
  void count_live(std::size_t bytes, Location location);

  /// What of the memory handed out here is there already, or may be: by how much more the process has in memory than it
  /// ever had at least. The least and not the first: what the program itself gives back after its start is not taken
  /// for ours for ever.
  [[nodiscard]] std::size_t touched_bytes() const noexcept;

  /// How the container stands when all that is live, and so many more, has been touched; nothing if there is no limit.
  [[nodiscard]] std::optional<ContainerLimit::Standing> container(std::size_t more) const;

  /// This process's. Throws std::bad_alloc.
  [[nodiscard]] HostPages& own_pages();

  void take_for_pages(std::size_t bytes) override { take(bytes, Location::device); }
  void give_back_from_pages(std::size_t bytes) noexcept override { live_bytes_ -= bytes; }
  void pages_created(std::uintptr_t, std::size_t) override {}
  void pages_moved(std::uintptr_t, std::uintptr_t, std::size_t) override {}
  void pages_freed(std::uintptr_t, std::size_t) noexcept override {}

  ContainerLimit const container_;
  PerProcess<std::mutex> asking_;  ///< while the container is asked for more; taken under the lock of `pages_`
  // Numbers alone; nothing is published through them.
  mutable std::atomic<std::size_t> least_resident_;  ///< what the process had in memory, as seen so far
  std::atomic<std::size_t> live_bytes_{0};
  std::atomic<std::size_t> unasked_bytes_{0};  ///< that may be taken before the container is looked at again
  PerProcess<HostPages> pages_;
};

}  // namespace unimem::detail
