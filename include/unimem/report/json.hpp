#pragma once

#include <unimem/core/export.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/manager/usage.hpp>
#include <unimem/pool/statistics.hpp>
#include <unimem/report/device_list.hpp>

#include <cstdint>
#include <string>

namespace unimem {

/// How much a report says of each device.
enum class ReportDetail : std::uint8_t {
  brief,  ///< what one needs to choose a device
  full,   ///< everything that is known of it
};

// Each function gives one JSON object (RFC 8259) on one line, keys in the order of the fields it is made from, sizes in
// bytes. Integers are exact; a number that is not finite is `null`, which is all JSON has for it; text that is not
// UTF-8 has its bad bytes replaced by U+FFFD. A text is returned, not a document of some library, so that users of
// these headers need none.

/// The counters by their names in the struct, `hit_rate`, and `size_classes`: one object per class, whose `limit_bytes`
/// is null for the last, unbounded one.
[[nodiscard]] UNIMEM_API std::string to_json(PoolStatistics const& statistics);

/// What `schema` says in the three below. Fields are added without a new number; one that changes its meaning or goes
/// counts it up.
inline constexpr int statistics_schema = 1;
inline constexpr int usage_schema = 1;
inline constexpr int snapshot_schema = 1;

/// `schema`, the totals by their names in the struct, and `pools`: one object per device and location, its statistics
/// under `pool`.
[[nodiscard]] UNIMEM_API std::string to_json(GlobalMemoryStatistics const& statistics);

/// `{"schema","total":{…},"places":[{"device","location",…}],"lines":[{"device","location","name",…}]}`, each with the
/// counts by their names in the struct.
[[nodiscard]] UNIMEM_API std::string to_json(Usage const& usage);

/// `{"schema","statistics":{…},"usage":{…},"live":{"bytes","allocations":[{"buffer","device","location","bytes","name",
/// "age_seconds","stack":[…]}]},"limits":[{"device","location","limit_bytes"}]}`: statistics and usage as above, with a
/// `schema` of their own, calls of a captured stack as `describe_address` puts them.
[[nodiscard]] UNIMEM_API std::string to_json(MemorySnapshot const& snapshot);

/// `{"devices":[{"id","backend","name","total_bytes","free_bytes"}],"unavailable":[{"backend","reason"}]}`; in full
/// also `vendor driver compute_units max_allocation alignment is_gpu integrated doubles atomics64 max_group_items
/// group_memory_bytes compiles_source runs_host_form shares_storage_with_host maps_pages limited_by` of each device.
/// Where a manager was asked, also
/// `"limits":{"host":…}` of each device, by location and empty where the manager may have all there is. Where links
/// were asked for, also
/// `"links":[{"from","to","bytes_per_second","latency_seconds","via_host","source","within_cache"}]`, the source being
/// `configured`, `measured` or `estimated`; a bandwidth that is infinite is null.
[[nodiscard]] UNIMEM_API std::string to_json(DeviceList const& list, ReportDetail detail = ReportDetail::brief);

}  // namespace unimem
