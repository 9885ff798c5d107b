#pragma once

#include <unimem/device/detail/memory_exporter.hpp>

#include "device/cuda/context.hpp"
#include "device/cuda/health.hpp"
#include "device/host_pages.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace unimem::detail::cuda {

/// Memory of a GPU that goes to other processes as file descriptors: allocations of virtual memory management, each
/// mapped as a whole.
class CudaExporter final : public MemoryExporter {
 public:
  /// The context is current. Throws DeviceError.
  CudaExporter(ContextRef const& gpu, Health& health, Device device, PageOwner& owner);

  [[nodiscard]] DeviceMemory create(std::size_t bytes) override;
  [[nodiscard]] int descriptor_of(DeviceMemory memory) override;
  [[nodiscard]] DeviceMemory open(int descriptor, std::size_t bytes) override;
  void release(DeviceMemory memory) noexcept override;

 private:
  /// What the driver has, while it is put together and taken apart again: whatever of it there is.
  struct Piece {
    std::size_t bytes = 0;  ///< whole pages
    AllocationHandle handle = 0;
    DevicePointer reserved = 0;
    bool counted = false, mapped = false;
  };
  /// Counts it and lets `take` get its handle, and gives it an address. All or nothing.
  template <class Take>
  [[nodiscard]] DeviceMemory put_together(std::size_t bytes, Take const& take);
  void map(Piece& piece);
  void take_apart(Piece const& piece) noexcept;

  ContextRef const& gpu_;
  Health& health_;
  PageOwner& owner_;
  AllocationProperties properties_;
  std::size_t page_bytes_ = 0;
  std::mutex mutex_;
  std::map<std::uintptr_t, Piece> pieces_;  ///< by address
};

}  // namespace unimem::detail::cuda
