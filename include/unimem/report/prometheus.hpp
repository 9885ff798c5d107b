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

/// The same of the memory of buffers, as `unimem_usage_<name>` with the labels `device`, `location` and `name`. A
/// program with many names has many series.
[[nodiscard]] UNIMEM_API std::string to_prometheus(Usage const& usage);

}  // namespace unimem
