#pragma once

#include <unimem/core/export.hpp>
#include <unimem/pool/allocation_log.hpp>
#include <unimem/pool/memory_pool.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace unimem {

/// What became of an allocation log in a pool.
struct ReplayResult {
  std::uint64_t operations = 0;            ///< allocations and releases in the log
  std::optional<std::uint64_t> failed_at;  ///< the first that did not fit, counted from 0: so many were carried out
  double nanoseconds_per_operation = 0;    ///< of those carried out; not a number if there were none
  std::size_t peak_live_bytes = 0;         ///< most bytes asked for and not released at once, of those carried out
  std::size_t peak_reserved_bytes = 0;     ///< most bytes the pool held from its device at once
  double hit_rate = 0;                     ///< of the pool

  [[nodiscard]] bool completed() const noexcept { return !failed_at.has_value(); }

  /// What the pool took for what was asked of it; not a number if that was nothing.
  [[nodiscard]] double overhead() const noexcept {
    return static_cast<double>(peak_reserved_bytes) / static_cast<double>(peak_live_bytes);
  }
};

/// Carries a log out in a pool that has not been used yet, and touches no block. The order is the log's, across threads
/// too. Each of its threads is one here, from its first event to its last; each stream but 0 is a queue of the pool's
/// device: what is allocated on it is acquired for that queue, and what is released on it carries the event that the
/// queue records then, as in a program that releases ahead of its device. No work is run, so the events are done.
/// Stops at the first allocation that throws OutOfMemory. What is live at the end is released then.
///
/// A log of one thread is timed as a whole. With several, each run of events of one thread is timed by itself and the
/// time of reading the clock taken off: handing over from one thread to the next is not the pool's. Throws what the
/// device throws if it fails for another reason than memory.
[[nodiscard]] UNIMEM_API ReplayResult replay(AllocationLog const& log, MemoryPool& pool);

}  // namespace unimem
