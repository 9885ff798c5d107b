#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/memory.hpp>

#include <cstddef>
#include <memory>
#include <utility>

namespace unimem {

namespace detail {
class FastLease;
class Replica;
}  // namespace detail

/// A hold on device memory: while it lives the memory stays where it is, is not evicted, and is not given back even if
/// its buffer is freed or destroyed. Move-only. Used by one thread at a time.
class UNIMEM_API DeviceLease {
 public:
  DeviceLease() = default;
  DeviceLease(std::shared_ptr<detail::Replica> replica, DeviceMemory memory);
  /// One that has entered `cell`.
  DeviceLease(detail::FastLease& cell, DeviceMemory memory) noexcept : cell_(&cell), memory_(memory) {}
  DeviceLease(DeviceLease&& other) noexcept
      : replica_(std::move(other.replica_)),
        cell_(std::exchange(other.cell_, nullptr)),
        memory_(std::exchange(other.memory_, {})) {}
  DeviceLease& operator=(DeviceLease&& other) noexcept;
  ~DeviceLease();

  [[nodiscard]] DeviceMemory memory() const noexcept { return memory_; }

  /// The address for code on the device; null where device memory has no address (OpenCL: use `memory()`).
  [[nodiscard]] void* address() const;

  /// Lets go. Idempotent.
  void end() noexcept;

 private:
  std::shared_ptr<detail::Replica> replica_;
  detail::FastLease* cell_ = nullptr;  ///< instead of the storage, where the lease was taken without a lock
  DeviceMemory memory_;
};

/// A share in the device memory of an operand while work that knows its address runs: no other owner gets the memory
/// before, whatever becomes of the buffer, and an evicting thread asks again later. Move-only.
class UNIMEM_API WorkHold {
 public:
  WorkHold() = default;
  explicit WorkHold(std::shared_ptr<detail::Replica> replica) noexcept;
  WorkHold(WorkHold&&) noexcept = default;
  WorkHold& operator=(WorkHold&&) = delete;
  ~WorkHold();

 private:
  std::shared_ptr<detail::Replica> replica_;
};

/// What may become a lease on the memory of an operand while work uses it, without the lock of its buffer. Until then
/// it keeps nothing: the memory is evicted, freed and recycled as if there were none. A plain value.
class UNIMEM_API LeaseOption {
 public:
  LeaseOption() = default;
  LeaseOption(std::weak_ptr<detail::Replica> replica, DeviceMemory memory) noexcept
      : replica_(std::move(replica)), memory_(memory) {}

  /// The lease; empty if the buffer has let the memory go. Thread-safe. Only by the work itself, before it ends: until
  /// then the memory has no other owner.
  [[nodiscard]] DeviceLease take() const;

  /// For the work itself, from its beginning to its end. Holds nothing if the buffer has let the memory go, nor of
  /// memory that serves the host as well: that is never evicted, and the last to let go of it may have to wait for that
  /// very work. Thread-safe.
  [[nodiscard]] WorkHold hold() const;

  /// Whether the buffer has let the memory go. Thread-safe; false may be old at once, true is for good.
  [[nodiscard]] bool gone() const noexcept { return replica_.expired(); }

 private:
  std::weak_ptr<detail::Replica> replica_;
  DeviceMemory memory_;
};

/// A typed lease: what `UnifiedBuffer::device()` returns. `T` is const for views.
template <class T>
class DeviceSpan {
 public:
  DeviceSpan() = default;
  explicit DeviceSpan(DeviceLease lease) : lease_(std::move(lease)) {}

  /// The address of the first element for code on the device; null under OpenCL.
  [[nodiscard]] T* data() const { return static_cast<T*>(lease_.address()); }
  [[nodiscard]] std::size_t size() const noexcept { return lease_.memory().bytes / sizeof(T); }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return lease_.memory().bytes; }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }

  /// The memory as the device's queues and its driver know it.
  [[nodiscard]] DeviceMemory native() const noexcept { return lease_.memory(); }

  /// Ends the lease early.
  void end() noexcept { lease_.end(); }

 private:
  DeviceLease lease_;
};

}  // namespace unimem
