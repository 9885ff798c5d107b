#pragma once

#include <unimem/manager/memory_manager.hpp>
#include <unimem/manager/usage.hpp>

namespace unimem {

/// A manager's own numbers, every one another, so that two that change places are noticed. No pools.
inline GlobalMemoryStatistics every_number() {
  GlobalMemoryStatistics statistics;
  statistics.total_allocations = 101;
  statistics.active_allocations = 102;
  statistics.active_bytes = 103;
  statistics.pooled_bytes = 104;
  statistics.reserved_bytes = 105;
  statistics.reclaims = 106;
  statistics.failed_reclaims = 107;
  statistics.reclaimed_bytes = 108;
  statistics.host_reclaims = 109;
  statistics.failed_host_reclaims = 110;
  statistics.host_reclaimed_bytes = 111;
  statistics.spills = 112;
  statistics.spilled_bytes = 113;
  statistics.restores = 114;
  statistics.restored_bytes = 115;
  statistics.direct_reads = 127;
  statistics.direct_read_bytes = 128;
  statistics.spill_files = 116;
  statistics.spill_file_bytes = 117;
  statistics.file_reads = 129;
  statistics.file_read_bytes = 130;
  statistics.file_direct_bytes = 133;
  statistics.file_uring_bytes = 134;
  statistics.file_mapped_bytes = 135;
  statistics.file_writes = 131;
  statistics.file_written_bytes = 132;
  statistics.cache_trims = 118;
  statistics.defragmentations = 119;
  statistics.waits = 120;
  statistics.refusals = 121;
  statistics.refused_pinnings = 122;
  statistics.missing_unified = 123;
  statistics.pressure_calls = 124;
  statistics.failed_pressure_calls = 125;
  statistics.merged_crossings = 126;
  return statistics;
}

/// Every count another number, from `first` on.
inline UsageCounts counts_from(unsigned first) {
  return {.allocations = first,
          .releases = first + 1,
          .live_bytes = first + 2,
          .peak_bytes = first + 3,
          .allocated_bytes = first + 4,
          .seconds_alive = first + 5.5,
          .longest_seconds = first + 6.25,
          .copies_in = first + 7,
          .bytes_in = first + 8,
          .copies_out = first + 9,
          .bytes_out = first + 10,
          .host_reads = first + 11,
          .host_writes = first + 12,
          .device_reads = first + 13,
          .device_writes = first + 14};
}

}  // namespace unimem
