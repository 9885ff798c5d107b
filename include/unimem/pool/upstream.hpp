#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/memory.hpp>

#include <cstddef>
#include <memory_resource>

namespace unimem {

/// Where a pool has its memory from if that is not to be its device (`PoolOptions::upstream`): another allocator, a
/// file that is mapped, another library's pool. Each block is then one object of the upstream's, and goes back to it
/// as it came, once its last work has ended.
///
/// What it gives is checked before it is used, and what it throws reaches the caller of the pool:
///
/// - a `std::bad_alloc` (OutOfMemory is one), or an empty DeviceMemory, says that it has no more just now: the pool
///   gives back what it has cached and asks again, and throws an OutOfMemory of its own if that does not help;
/// - every other Error of the library passes through as it is;
/// - anything else becomes a DeviceError of the backend "upstream", with what was thrown nested in it
///   (`std::rethrow_if_nested`);
/// - memory of another size, or badly aligned, goes back at once and is such a DeviceError as well.
///
/// Called by whichever thread acquires, releases or trims, several at once, with no lock held: it must be thread-safe
/// if the pool is used by several threads. It must not use the pool it serves.
class UNIMEM_API Upstream {
 public:
  Upstream() = default;
  Upstream(Upstream const&) = delete;
  Upstream& operator=(Upstream const&) = delete;
  virtual ~Upstream();

  /// Memory of exactly `bytes` (at least 1) bytes that the queues of `device` take for their own at `location`: an
  /// address, under OpenCL a `cl_mem`, and an offset. It begins where `device.info().alignment` divides the address, or
  /// the offset where there is no address. `device` and `location` are the pool's: one upstream may serve many.
  [[nodiscard]] virtual DeviceMemory allocate(std::size_t bytes, Location location, Device& device) = 0;

  /// Has back what `allocate` has given, exactly. No work on it is pending.
  virtual void release(DeviceMemory memory, Location location, Device& device) noexcept = 0;
};

/// An upstream over a `std::pmr::memory_resource`, for pools of ordinary host memory:
///
///     PoolOptions options;
///     options.upstream = std::make_shared<ResourceUpstream>(huge_pages);
///     MemoryPool pool{device("cpu"), Location::host, options};
///
/// Not for page-locked memory, which such a resource does not promise, nor for devices that do not work on the host's
/// memory: that is UnsupportedOperation when memory is first asked for. The resource must outlive the pool and all its
/// blocks.
class UNIMEM_API ResourceUpstream final : public Upstream {
 public:
  explicit ResourceUpstream(std::pmr::memory_resource& resource) noexcept : resource_(resource) {}
  ~ResourceUpstream() override;

  [[nodiscard]] DeviceMemory allocate(std::size_t bytes, Location location, Device& device) override;
  void release(DeviceMemory memory, Location location, Device& device) noexcept override;

 private:
  std::pmr::memory_resource& resource_;
};

}  // namespace unimem
