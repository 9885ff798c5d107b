#pragma once

#include <unimem/core/export.hpp>
#include <unimem/core/name.hpp>
#include <unimem/core/stack.hpp>
#include <unimem/device/memory.hpp>
#include <unimem/manager/placement.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace unimem {

class Device;

/// What the memory of some buffers has come to. Invariants: `allocations - releases` are live, and hold `live_bytes`;
/// `peak_bytes >= live_bytes`; `allocated_bytes >= peak_bytes`.
///
/// Bytes are those that buffers asked for. A peak is the most there was at one time: exact as long as one thread
/// allocates, and else within 64 KiB for each thread that does.
struct UsageCounts {
  std::uint64_t allocations = 0;
  std::uint64_t releases = 0;
  std::size_t live_bytes = 0;
  std::size_t peak_bytes = 0;
  std::uint64_t allocated_bytes = 0;  ///< all that was ever taken
  double seconds_alive = 0;           ///< the sum of the lives that have ended, to within a tick of the system's clock
  double longest_seconds = 0;         ///< the longest of these
  std::uint64_t copies_in = 0;        ///< copies that ended there, from the host or another device
  std::uint64_t bytes_in = 0;
  std::uint64_t copies_out = 0;  ///< copies that began there
  std::uint64_t bytes_out = 0;
  std::uint64_t host_reads = 0;  ///< uses, as `RecordedUse` counts them
  std::uint64_t host_writes = 0;
  std::uint64_t device_reads = 0;
  std::uint64_t device_writes = 0;

  [[nodiscard]] std::uint64_t live() const noexcept { return allocations - releases; }
};

/// What buffers of one name have at one location of one device.
struct UsageLine {
  std::string device;  ///< "cpu" for the host's memory
  Location location = Location::device;
  std::string name;  ///< or where in the program they were made; empty: those of which neither is known
  UsageCounts counts{};
};

/// What all buffers have at one location of one device.
struct PlaceUsage {
  std::string device;
  Location location = Location::device;
  UsageCounts counts{};
};

/// The memory of all buffers of a manager at one moment. Invariant: of everything but peaks, the lines of a place sum
/// to the place, and the places to the total.
struct Usage {
  std::vector<UsageLine> lines;    ///< most live bytes first
  std::vector<PlaceUsage> places;  ///< likewise
  UsageCounts total{};
};

/// One piece of memory of a buffer. A buffer that is on the host and on a device has two.
struct LiveAllocation {
  std::uint64_t buffer = 0;  ///< the same for all memory of one buffer: its number in this process
  Device const* device = nullptr;
  Location location = Location::device;
  std::size_t bytes = 0;                ///< as asked for
  Name name{};                          ///< likewise
  double age_seconds = 0;               ///< to within a tick of the system's clock, a few milliseconds
  std::vector<std::uintptr_t> stack{};  ///< where it was taken, the innermost call first; empty: not captured
};

/// What has not been given back.
struct LeakReport {
  std::vector<LiveAllocation> allocations;  ///< largest first
  std::size_t bytes = 0;                    ///< of all of them

  [[nodiscard]] bool empty() const noexcept { return allocations.empty(); }

  /// For people: a line that sums up, then each allocation's size, device, location, age and name, with its stack
  /// below it where there is one, at most `most` of them. Nothing at all if nothing is live.
  [[nodiscard]] UNIMEM_API std::string text(std::size_t most = 100) const;
};

}  // namespace unimem
