#pragma once

#include <unimem/core/export.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/manager/usage.hpp>
#include <unimem/pool/statistics.hpp>
#include <unimem/report/device_list.hpp>
#include <unimem/report/json.hpp>

#include <string>

namespace unimem {

// For people: lines that end in a newline, sizes as `format_size` spells them. The wording may change between versions;
// programs read the JSON.

/// One line: allocations and how many of them the pool served itself, memory in use, and the most ever reserved.
[[nodiscard]] UNIMEM_API std::string to_text(PoolStatistics const& statistics);

/// A table with one line per device and location, and one of all: blocks in use of how many there have been, how many
/// of them the pool served itself, memory in use, cached and reserved. Then the other numbers that are not 0, by the
/// names they have in the struct.
[[nodiscard]] UNIMEM_API std::string to_text(GlobalMemoryStatistics const& statistics);

/// A table with one line per device, location and name, and one of all: what is live, the most there was, how many
/// pieces live of how many there have been, and the bytes copied there.
[[nodiscard]] UNIMEM_API std::string to_text(Usage const& usage);

/// The statistics, the usage, the limits and what is live, one below the other, under headings of one word. Of what is
/// live a hundred pieces at most.
[[nodiscard]] UNIMEM_API std::string to_text(MemorySnapshot const& snapshot);

/// A table with one line per device, and a line per backend without one; in full, a paragraph per device. Where a
/// manager was asked, what it is limited to on each, if that is less than there is. Where links
/// were asked for, a table of them, and which devices have none since their memory is the host's.
[[nodiscard]] UNIMEM_API std::string to_text(DeviceList const& list, ReportDetail detail = ReportDetail::brief);

}  // namespace unimem
