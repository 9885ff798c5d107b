#pragma once

#include <unimem/device/device.hpp>
#include <unimem/device/memory.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/stream/stream_file.hpp>

#include <cstddef>
#include <optional>

namespace unimem::detail {

/// Where the memory of a stream's chunks is, and which manager it comes from. Used by one thread at a time.
class StreamMemory {
 public:
  /// `options` outlive it.
  explicit StreamMemory(StreamOptions const& options);

  [[nodiscard]] Device& device() const noexcept { return device_; }
  [[nodiscard]] Location location() const noexcept;

  /// The manager that was given, else one of the stream's own, which holds its limit.
  [[nodiscard]] MemoryManager& manager();
  /// The most device memory that the stream may use, by its own limit and the manager's.
  [[nodiscard]] std::size_t limit();
  /// Bytes that another manager may take of the device besides what that one holds, whose limit bounds both.
  [[nodiscard]] std::size_t room_beside(Location location);

 private:
  StreamOptions const& options_;
  Device& device_;
  std::optional<MemoryManager> own_;
};

}  // namespace unimem::detail
