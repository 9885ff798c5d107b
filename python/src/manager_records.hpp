#pragma once

#include <unimem/manager/links.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/manager/pressure.hpp>

#include <tuple>

#include "records.hpp"

namespace unimem::python {

// Names and fields as in unimem._manager_records.

template <>
struct EnumName<Location> {
  static constexpr char const* name = "Location";
};
template <>
struct EnumName<Placement> {
  static constexpr char const* name = "Placement";
};
template <>
struct EnumName<PlacementRule> {
  static constexpr char const* name = "PlacementRule";
};
template <>
struct EnumName<Optimization> {
  static constexpr char const* name = "Optimization";
};

template <>
struct Record<SizeClassStatistics> {
  using S = SizeClassStatistics;
  static constexpr char const* name = "SizeClassStatistics";
  static constexpr std::tuple fields{Field{"allocations", &S::allocations}, Field{"hits", &S::hits},
                                     Field{"active_bytes", &S::active_bytes}, Field{"pooled_bytes", &S::pooled_bytes}};
};

template <>
struct Record<PoolStatistics> {
  using S = PoolStatistics;
  static constexpr char const* name = "BlockStatistics";
  static constexpr std::tuple fields{Field{"total_allocations", &S::total_allocations},
                                     Field{"pool_hits", &S::pool_hits},
                                     Field{"pool_misses", &S::pool_misses},
                                     Field{"total_pooled_bytes", &S::total_pooled_bytes},
                                     Field{"active_allocations", &S::active_allocations},
                                     Field{"active_bytes", &S::active_bytes},
                                     Field{"peak_active_bytes", &S::peak_active_bytes},
                                     Field{"slack_bytes", &S::slack_bytes},
                                     Field{"reserved_bytes", &S::reserved_bytes},
                                     Field{"peak_reserved_bytes", &S::peak_reserved_bytes},
                                     Field{"failed_allocations", &S::failed_allocations},
                                     Field{"seizures", &S::seizures},
                                     Field{"trims", &S::trims},
                                     Field{"waits", &S::waits},
                                     Field{"size_classes", &S::size_classes}};
};

template <>
struct Record<PoolFragmentation> {
  using S = PoolFragmentation;
  static constexpr char const* name = "PoolFragmentation";
  static constexpr std::tuple fields{Field{"largest_free_block", &S::largest_free_block},
                                     Field{"total_free", &S::total_free}};
};

template <>
struct Record<PoolDefragmentation> {
  using S = PoolDefragmentation;
  static constexpr char const* name = "PoolDefragmentation";
  static constexpr std::tuple fields{Field{"bytes_moved", &S::bytes_moved},
                                     Field{"blocks_moved", &S::blocks_moved},
                                     Field{"bytes_copied", &S::bytes_copied},
                                     Field{"largest_free_before", &S::largest_free_before},
                                     Field{"largest_free_after", &S::largest_free_after},
                                     Field{"seconds", &S::seconds}};
};

template <>
struct Record<PoolUsage> {
  using S = PoolUsage;
  static constexpr char const* name = "PoolUsage";
  static constexpr std::tuple fields{Field{"device", &S::device}, Field{"location", &S::location},
                                     Field{"pool", &S::pool}};
};

template <>
struct Record<GlobalMemoryStatistics> {
  using S = GlobalMemoryStatistics;
  static constexpr char const* name = "GlobalMemoryStatistics";
  static constexpr std::tuple fields{Field{"total_allocations", &S::total_allocations},
                                     Field{"active_allocations", &S::active_allocations},
                                     Field{"active_bytes", &S::active_bytes},
                                     Field{"pooled_bytes", &S::pooled_bytes},
                                     Field{"reserved_bytes", &S::reserved_bytes},
                                     Field{"reclaims", &S::reclaims},
                                     Field{"failed_reclaims", &S::failed_reclaims},
                                     Field{"reclaimed_bytes", &S::reclaimed_bytes},
                                     Field{"host_reclaims", &S::host_reclaims},
                                     Field{"failed_host_reclaims", &S::failed_host_reclaims},
                                     Field{"host_reclaimed_bytes", &S::host_reclaimed_bytes},
                                     Field{"spills", &S::spills},
                                     Field{"spilled_bytes", &S::spilled_bytes},
                                     Field{"restores", &S::restores},
                                     Field{"restored_bytes", &S::restored_bytes},
                                     Field{"direct_reads", &S::direct_reads},
                                     Field{"direct_read_bytes", &S::direct_read_bytes},
                                     Field{"spill_files", &S::spill_files},
                                     Field{"spill_file_bytes", &S::spill_file_bytes},
                                     Field{"file_reads", &S::file_reads},
                                     Field{"file_read_bytes", &S::file_read_bytes},
                                     Field{"file_direct_bytes", &S::file_direct_bytes},
                                     Field{"file_uring_bytes", &S::file_uring_bytes},
                                     Field{"file_mapped_bytes", &S::file_mapped_bytes},
                                     Field{"file_writes", &S::file_writes},
                                     Field{"file_written_bytes", &S::file_written_bytes},
                                     Field{"cache_trims", &S::cache_trims},
                                     Field{"defragmentations", &S::defragmentations},
                                     Field{"waits", &S::waits},
                                     Field{"refusals", &S::refusals},
                                     Field{"refused_pinnings", &S::refused_pinnings},
                                     Field{"missing_unified", &S::missing_unified},
                                     Field{"pressure_calls", &S::pressure_calls},
                                     Field{"failed_pressure_calls", &S::failed_pressure_calls},
                                     Field{"merged_crossings", &S::merged_crossings},
                                     Field{"pools", &S::pools}};
};

template <>
struct Record<UsageCounts> {
  using S = UsageCounts;
  static constexpr char const* name = "UsageCounts";
  static constexpr std::tuple fields{Field{"allocations", &S::allocations},
                                     Field{"releases", &S::releases},
                                     Field{"live_bytes", &S::live_bytes},
                                     Field{"peak_bytes", &S::peak_bytes},
                                     Field{"allocated_bytes", &S::allocated_bytes},
                                     Field{"seconds_alive", &S::seconds_alive},
                                     Field{"longest_seconds", &S::longest_seconds},
                                     Field{"copies_in", &S::copies_in},
                                     Field{"bytes_in", &S::bytes_in},
                                     Field{"copies_out", &S::copies_out},
                                     Field{"bytes_out", &S::bytes_out},
                                     Field{"host_reads", &S::host_reads},
                                     Field{"host_writes", &S::host_writes},
                                     Field{"device_reads", &S::device_reads},
                                     Field{"device_writes", &S::device_writes}};
};

template <>
struct Record<UsageLine> {
  using S = UsageLine;
  static constexpr char const* name = "UsageLine";
  static constexpr std::tuple fields{Field{"device", &S::device}, Field{"location", &S::location},
                                     Field{"name", &S::name}, Field{"counts", &S::counts}};
};

template <>
struct Record<PlaceUsage> {
  using S = PlaceUsage;
  static constexpr char const* name = "PlaceUsage";
  static constexpr std::tuple fields{Field{"device", &S::device}, Field{"location", &S::location},
                                     Field{"counts", &S::counts}};
};

template <>
struct Record<Usage> {
  using S = Usage;
  static constexpr char const* name = "Usage";
  static constexpr std::tuple fields{Field{"lines", &S::lines}, Field{"places", &S::places}, Field{"total", &S::total}};
};

template <>
struct Record<LiveAllocation> {
  using S = LiveAllocation;
  static constexpr char const* name = "LiveAllocation";
  static constexpr std::tuple fields{Field{"buffer", &S::buffer},     Field{"device", &S::device},
                                     Field{"location", &S::location}, Field{"bytes", &S::bytes},
                                     Field{"name", &S::name},         Field{"age_seconds", &S::age_seconds},
                                     Field{"stack", &S::stack}};
};

template <>
struct Record<LeakReport> {
  using S = LeakReport;
  static constexpr char const* name = "LeakReport";
  static constexpr std::tuple fields{Field{"allocations", &S::allocations}, Field{"bytes", &S::bytes}};
};

template <>
struct Record<MemoryLimit> {
  using S = MemoryLimit;
  static constexpr char const* name = "MemoryLimit";
  static constexpr std::tuple fields{Field{"device", &S::device}, Field{"location", &S::location},
                                     Field{"limit_bytes", &S::limit_bytes}};
};

template <>
struct Record<MemorySnapshot> {
  using S = MemorySnapshot;
  static constexpr char const* name = "MemorySnapshot";
  static constexpr std::tuple fields{Field{"statistics", &S::statistics}, Field{"usage", &S::usage},
                                     Field{"live", &S::live}, Field{"limits", &S::limits}};
};

template <>
struct Record<RecordedUse> {
  using S = RecordedUse;
  static constexpr char const* name = "RecordedUse";
  static constexpr std::tuple fields{Field{"buffers", &S::buffers},
                                     Field{"host_reads", &S::host_reads},
                                     Field{"host_writes", &S::host_writes},
                                     Field{"device_reads", &S::device_reads},
                                     Field{"device_writes", &S::device_writes},
                                     Field{"uploads", &S::uploads},
                                     Field{"uploaded_bytes", &S::uploaded_bytes},
                                     Field{"downloads", &S::downloads},
                                     Field{"downloaded_bytes", &S::downloaded_bytes},
                                     Field{"seconds_alive", &S::seconds_alive}};
};

template <>
struct Record<PlacementDecision> {
  using S = PlacementDecision;
  static constexpr char const* name = "PlacementDecision";
  static constexpr std::tuple fields{Field{"asked", &S::asked},
                                     Field{"placement", &S::placement},
                                     Field{"location", &S::location},
                                     Field{"rule", &S::rule},
                                     Field{"wanted", &S::wanted},
                                     Field{"bytes", &S::bytes},
                                     Field{"available_bytes", &S::available_bytes},
                                     Field{"pageable_seconds", &S::pageable_seconds},
                                     Field{"pinned_seconds", &S::pinned_seconds},
                                     Field{"use", &S::use}};
};

template <>
struct Record<PlacementRecommendations> {
  using S = PlacementRecommendations;
  static constexpr char const* name = "PlacementRecommendations";
  static constexpr std::tuple fields{
      Field{"small_buffers", &S::small_buffers}, Field{"medium_buffers", &S::medium_buffers},
      Field{"large_buffers", &S::large_buffers}, Field{"frequently_accessed", &S::frequently_accessed},
      Field{"read_only", &S::read_only},         Field{"hints", &S::hints}};
};

template <>
struct Record<OptimizationStep> {
  using S = OptimizationStep;
  static constexpr char const* name = "OptimizationStep";
  static constexpr std::tuple fields{Field{"what", &S::what},        Field{"buffer", &S::buffer},
                                     Field{"name", &S::name},        Field{"device", &S::device},
                                     Field{"bytes", &S::bytes},      Field{"seconds_saved", &S::seconds_saved},
                                     Field{"deferred", &S::deferred}};
};

template <>
struct Record<OptimizationReport> {
  using S = OptimizationReport;
  static constexpr char const* name = "OptimizationReport";
  static constexpr std::tuple fields{
      Field{"steps", &S::steps},
      Field{"pinned_bytes", &S::pinned_bytes},
      Field{"released_bytes", &S::released_bytes},
      Field{"placed_bytes", &S::placed_bytes},
      Field{"trimmed_bytes", &S::trimmed_bytes},
      Field{"seconds_saved", &S::seconds_saved},
  };
};

template <>
struct EnumName<PressureLevel> {
  static constexpr char const* name = "PressureLevel";
};
template <>
struct EnumName<LinkSource> {
  static constexpr char const* name = "LinkSource";
};

template <>
struct Record<PressureChange> {
  using S = PressureChange;
  static constexpr char const* name = "PressureChange";
  static constexpr std::tuple fields{Field{"device", &S::device},         Field{"location", &S::location},
                                     Field{"before", &S::before},         Field{"now", &S::now},
                                     Field{"live_bytes", &S::live_bytes}, Field{"limit_bytes", &S::limit_bytes}};
};

template <>
struct Record<Link> {
  using S = Link;
  static constexpr char const* name = "Link";
  static constexpr std::tuple fields{Field{"source", &S::from},
                                     Field{"target", &S::to},
                                     Field{"bytes_per_second", &S::bytes_per_second},
                                     Field{"latency_seconds", &S::latency_seconds},
                                     Field{"via_host", &S::via_host},
                                     Field{"known_by", &S::source}};
};

}  // namespace unimem::python
