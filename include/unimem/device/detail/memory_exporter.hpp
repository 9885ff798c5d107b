#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/memory.hpp>

#include <cstddef>

namespace unimem {

/// Memory of a device that processes hand to each other by descriptors, which travel by sockets as those of files do.
/// Every piece is memory of its own, shared with nothing else, counted against the device's capacity in each process
/// that has it. Thread-safe.
class UNIMEM_API MemoryExporter {
 public:
  MemoryExporter() = default;
  MemoryExporter(MemoryExporter const&) = delete;
  MemoryExporter& operator=(MemoryExporter const&) = delete;
  virtual ~MemoryExporter();

  /// Fresh memory of `bytes` (at least 1), and more where the driver has whole pages only. Throws OutOfMemory.
  [[nodiscard]] virtual DeviceMemory create(std::size_t bytes) = 0;
  /// A descriptor of what `create` gave, the caller's to close. The memory stays as long as it is open, `release` or
  /// not.
  [[nodiscard]] virtual int descriptor_of(DeviceMemory memory) = 0;
  /// What a process has created with that many bytes on the same hardware (`Device::hardware_id`); the descriptor stays
  /// the caller's. Throws InvalidArgument for one of other memory, or none, OutOfMemory.
  [[nodiscard]] virtual DeviceMemory open(int descriptor, std::size_t bytes) = 0;
  /// Ends what `create` or `open` gave. All work of this process on it must have ended.
  virtual void release(DeviceMemory memory) noexcept = 0;
};

}  // namespace unimem
