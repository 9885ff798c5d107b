#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/device.hpp>
#include <unimem/manager/options.hpp>
#include <unimem/manager/resident.hpp>
#include <unimem/pool/memory_pool.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace unimem {

template <class T>
class UnifiedBuffer;
class Ownership;

/// How a manager behaves.
struct ManagerOptions {
  PoolOptions pools{};  ///< for every pool it makes; limits are set with `set_limit`
};

/// One (device, location) pair's share of a manager's memory.
struct PoolUsage {
  std::string device;
  Location location = Location::device;
  PoolStatistics pool;
};

/// All memory of one manager. Invariant: the totals are the sums over `pools`, each of which is consistent in itself;
/// pools are looked at one after the other, so what other threads do meanwhile may show in one and not yet in the next.
struct GlobalMemoryStatistics {
  std::uint64_t total_allocations = 0;
  std::uint64_t active_allocations = 0;
  std::size_t active_bytes = 0;
  std::size_t pooled_bytes = 0;
  std::size_t reserved_bytes = 0;
  std::uint64_t reclaims = 0;         ///< times a resident gave device memory back under pressure
  std::uint64_t failed_reclaims = 0;  ///< times one could not, because saving what only the device holds failed
  std::size_t reclaimed_bytes = 0;    ///< what the reclaims freed
  std::vector<PoolUsage> pools;
};

/// Memory of every device and location, with limits, for everything that lives on it. Makes pools on demand, and when a
/// device is full asks the cheapest residents to give their copies back before it gives up.
///
/// Thread-safe. Must outlive everything allocated from it; the default manager lives as long as the process.
class UNIMEM_API MemoryManager {
 public:
  explicit MemoryManager(ManagerOptions options = {});
  MemoryManager(MemoryManager const&) = delete;
  MemoryManager& operator=(MemoryManager const&) = delete;
  ~MemoryManager();

  /// A buffer of `count` elements, contents undefined. Defined in <unimem/buffer/unified_buffer.hpp>.
  template <class T>
  [[nodiscard]] UnifiedBuffer<T> allocate(std::size_t count, AllocationOptions const& options = {});

  /// A buffer holding a copy of `data`.
  template <class T>
  [[nodiscard]] UnifiedBuffer<T> allocate(std::span<const T> data, AllocationOptions const& options = {});

  /// A buffer over `count` elements of existing host memory (`Location::host` or `Location::pinned`), without copying;
  /// its contents are current. Throws InvalidArgument for null or misaligned memory, UnsupportedOperation for other
  /// locations. Defined in <unimem/buffer/unified_buffer.hpp>.
  template <class T>
  [[nodiscard]] UnifiedBuffer<T> wrap(T* pointer, std::size_t count, Location location, Ownership ownership);

  /// The pool that serves a location of a device. Host and pinned memory of every device come from the cpu device's
  /// pools.
  [[nodiscard]] MemoryPool& pool(Device& device, Location location);

  /// Memory from that pool. If it is full, the device's other pools give their caches back, and if it is device memory,
  /// residents are asked to make room, cheapest per byte first, until it fits; none is asked if all of them could not
  /// make enough. Then throws OutOfMemory with the largest holders, and with why a resident could not give back, if one
  /// failed to.
  [[nodiscard]] Allocation acquire(Device& device, Location location, std::size_t bytes,
                                   AcquireOptions const& options = {});

  /// Bytes that could still be allocated on a device: its limit (or capacity) less what is live there from this
  /// manager; cached blocks count as free.
  [[nodiscard]] std::size_t available_memory(Device& device) const;
  /// The limit, or the device's capacity if none is set or it is smaller.
  [[nodiscard]] std::size_t total_memory(Device& device) const;
  /// Bounds the memory this manager reserves at Location::device of a device; cached blocks are given back if need be.
  /// Throws InvalidArgument, and changes nothing, if it is below what is live.
  void set_limit(Device& device, std::size_t bytes);

  [[nodiscard]] GlobalMemoryStatistics statistics() const;

  /// Gives all cached blocks back; returns the bytes. Never touches live memory.
  std::size_t cleanup();

  /// For residents: known to the manager between the two calls. `remove` returns only when no call into the resident is
  /// running, but for one on the calling thread's own stack: a resident may remove itself while it is being reclaimed.
  void add_resident(Resident& resident);
  void remove_resident(Resident& resident) noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The manager used when none is named. Lives as long as the process.
[[nodiscard]] UNIMEM_API MemoryManager& default_manager();

}  // namespace unimem
