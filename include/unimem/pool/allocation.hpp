#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/event.hpp>
#include <unimem/device/memory.hpp>

#include <cstddef>
#include <utility>

namespace unimem {

class Device;
class MemoryPool;

namespace detail {
struct Block;

/// What `Allocation::release` does with a block.
UNIMEM_API void release(Block& block, Event last_use) noexcept;
}  // namespace detail

/// A block of a pool while it is in use: move-only, gives the block back when it is destroyed. The handle is one
/// pointer to the block's descriptor, which never moves; the memory behind it may, unless its address was handed out.
///
/// A handle is used by one thread at a time; different handles are independent. It should not outlive its pool, whose
/// destructor complains of it, but may.
class UNIMEM_API Allocation {
 public:
  /// No memory: what `acquire(0)` returns.
  Allocation() = default;
  Allocation(Allocation&& other) noexcept
      : block_(std::exchange(other.block_, nullptr)), size_(std::exchange(other.size_, 0)), begin_(other.begin_) {}
  Allocation& operator=(Allocation&& other) noexcept;
  ~Allocation() { release(); }

  /// The address of the memory for code that runs where it is; null for an empty allocation, and under OpenCL, where
  /// memory has no address. On cpu, sim, and for host and pinned memory it is a host address.
  [[nodiscard]] void* data() const;

  /// The memory as its device's queues take it: exactly `size()` bytes.
  [[nodiscard]] DeviceMemory memory() const noexcept;

  /// The bytes asked for. There may be more (`capacity()`).
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t capacity() const noexcept;
  [[nodiscard]] bool empty() const noexcept { return block_ == nullptr; }
  explicit operator bool() const noexcept { return block_ != nullptr; }

  /// The device and location it came from. Must not be empty.
  [[nodiscard]] Device& device() const noexcept;
  [[nodiscard]] Location location() const noexcept;

  /// Gives the block back now. `last_use` is the last work that touches it: the block is not handed out for other work,
  /// nor returned to the driver, before that has ended. Without one the caller promises that no work is pending.
  /// Idempotent.
  void release(Event last_use = {}) noexcept {
    size_ = 0;
    if (auto* const block = std::exchange(block_, nullptr)) detail::release(*block, last_use);
  }

 private:
  friend class MemoryPool;
  Allocation(detail::Block* block, std::size_t size, std::size_t begin = 0) noexcept
      : block_(block), size_(size), begin_(begin) {}

  detail::Block* block_ = nullptr;
  std::size_t size_ = 0;
  std::size_t begin_ = 0;  ///< where they begin in the block, which is not where it does for a large alignment
};

}  // namespace unimem
