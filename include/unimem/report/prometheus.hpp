#pragma once

#include <unimem/core/export.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/manager/usage.hpp>

#include <string>

namespace unimem {

/// Whether the library was built with what writes Prometheus' format.
[[nodiscard]] UNIMEM_API bool can_expose_to_prometheus() noexcept;

/// A manager's memory in the text exposition format of Prometheus (version 0.0.4), for a program to serve at its own
/// `/metrics`: every number of the statistics as `unimem_<name>`, counts as counters that end in `_total` and bytes as
/// gauges that end in `_bytes`; of pools as `unimem_pool_<name>` with the labels `device` and `location`.
///
/// Throws UnsupportedOperation where the library was built without prometheus-cpp.
[[nodiscard]] UNIMEM_API std::string to_prometheus(GlobalMemoryStatistics const& statistics);

/// The same of the memory of buffers: every count of a line as `unimem_usage_<name>` with the labels `device`,
/// `location` and `name`, of a place as `unimem_usage_place_<name>` with `device` and `location`, and of all together
/// as `unimem_usage_all_<name>`. A program with many names has many series.
[[nodiscard]] UNIMEM_API std::string to_prometheus(Usage const& usage);

/// Both, and `unimem_limit_bytes` with the labels `device` and `location`. What is live is in the usage, piece by piece
/// it is not told.
[[nodiscard]] UNIMEM_API std::string to_prometheus(MemorySnapshot const& snapshot);

}  // namespace unimem
