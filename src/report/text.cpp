#include <unimem/core/size.hpp>
#include <unimem/report/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <utility>

namespace unimem {
namespace {

/// Rows of cells, each column as wide as its widest cell; the last column is not padded.
template <std::size_t columns>
std::string table(std::vector<std::array<std::string, columns>> const& rows) {
  std::array<std::size_t, columns> widths{};
  for (auto const& row : rows) {
    for (std::size_t i = 0; i < columns; ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (auto const& row : rows) {
    for (std::size_t i = 0; i + 1 < columns; ++i) text += fmt::format("{:<{}}  ", row[i], widths[i]);
    text += row[columns - 1];
    text += '\n';
  }
  return text;
}

/// What a device can do, in words; "nothing" would be a device no kernel runs on.
std::string abilities(DeviceSnapshot const& device) {
  std::string text;
  auto const say = [&text](bool holds, char const* what) {
    if (!holds) return;
    if (!text.empty()) text += ", ";
    text += what;
  };
  say(device.info.runs_host_form, "host kernels");
  say(device.info.compiles_source, "source kernels");
  say(device.info.doubles, "64-bit floating point");
  say(device.info.atomics64, "64-bit atomics");
  say(device.shares_storage_with_host, "memory shared with the host");
  say(device.maps_pages, "page mapping");
  return text.empty() ? "nothing" : text;
}

/// "host 1 GiB, pinned 256 MiB"; nothing where there are none.
std::string limits_of(DeviceSnapshot const& device) {
  std::string text;
  if (!device.limits) return text;
  for (auto const& limit : *device.limits) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", to_string(limit.location), format_size(limit.limit_bytes));
  }
  return text;
}

std::string paragraph(DeviceSnapshot const& device) {
  auto const& info = device.info;
  std::string text = fmt::format("{}  {}\n", device.id, info.name);
  auto const line = [&text](char const* what, std::string const& value) {
    if (!value.empty()) text += fmt::format("  {:<14} {}\n", what, value);
  };
  line("backend", std::string(to_string(device.backend)));
  line("kind", info.is_gpu ? (info.integrated ? "integrated GPU" : "GPU") : "processor");
  line("vendor", info.vendor);
  line("driver", info.driver);
  line("memory",
       fmt::format("{}, {} free", format_size(device.memory.total_bytes), format_size(device.memory.free_bytes)));
  line("limited by", info.limited_by);
  line("limits", limits_of(device));
  line("max allocation", format_size(info.max_allocation));
  line("alignment", format_size(info.alignment));
  line("compute units", fmt::format("{}", info.compute_units));
  line("can do", abilities(device));
  return text;
}

std::string time_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.2f} us", seconds * 1e6);
  return fmt::format("{:.2f} ms", seconds * 1e3);
}

std::string links_text(DeviceList const& list) {
  std::string text;
  std::vector<std::array<std::string, 5>> rows{{"from", "to", "bandwidth", "latency", "figures"}};
  for (auto const& link : *list.links) {
    auto const rate = std::isfinite(link.bytes_per_second) ? fmt::format("{:.2f} GB/s", link.bytes_per_second / 1e9)
                                                           : std::string("as memory");
    rows.push_back({link.from, link.to, rate, time_text(link.latency_seconds),
                    fmt::format("{}{}{}", to_string(link.source), link.via_host ? ", via the host" : "",
                                link.within_cache ? ", within the cache" : "")});
  }
  if (rows.size() > 1) text = '\n' + table(rows);
  for (auto const& device : list.devices) {
    if (device.shares_storage_with_host) text += fmt::format("no link to {}: its memory is the host's\n", device.id);
  }
  return text;
}

/// A number, and the bytes it is about.
std::string with_bytes(std::uint64_t count, std::size_t bytes) {
  return count == 0 ? std::string{} : fmt::format("{}, {}", count, format_size(bytes));
}

/// What was done to make room, and what went wrong: what never happened is not worth a line.
std::string events_text(GlobalMemoryStatistics const& statistics) {
  std::vector<std::array<std::string, 2>> rows;
  auto const add = [&rows](char const* name, std::string value) {
    if (!value.empty()) rows.push_back({name, std::move(value)});
  };
  auto const count = [&add](char const* name, std::uint64_t value) {
    if (value != 0) add(name, fmt::format("{}", value));
  };
  add("reclaims", with_bytes(statistics.reclaims, statistics.reclaimed_bytes));
  count("failed_reclaims", statistics.failed_reclaims);
  add("host_reclaims", with_bytes(statistics.host_reclaims, statistics.host_reclaimed_bytes));
  count("failed_host_reclaims", statistics.failed_host_reclaims);
  add("spills", with_bytes(statistics.spills, statistics.spilled_bytes));
  add("restores", with_bytes(statistics.restores, statistics.restored_bytes));
  add("direct_reads", with_bytes(statistics.direct_reads, statistics.direct_read_bytes));
  add("spill_files", with_bytes(statistics.spill_files, statistics.spill_file_bytes));
  add("file_reads", with_bytes(statistics.file_reads, statistics.file_read_bytes));
  if (statistics.file_direct_bytes != 0) add("file_direct_bytes", format_size(statistics.file_direct_bytes));
  if (statistics.file_uring_bytes != 0) add("file_uring_bytes", format_size(statistics.file_uring_bytes));
  if (statistics.file_mapped_bytes != 0) add("file_mapped_bytes", format_size(statistics.file_mapped_bytes));
  add("file_writes", with_bytes(statistics.file_writes, statistics.file_written_bytes));
  count("cache_trims", statistics.cache_trims);
  count("defragmentations", statistics.defragmentations);
  count("waits", statistics.waits);
  count("refusals", statistics.refusals);
  count("refused_pinnings", statistics.refused_pinnings);
  count("missing_unified", statistics.missing_unified);
  count("pressure_calls", statistics.pressure_calls);
  count("failed_pressure_calls", statistics.failed_pressure_calls);
  count("merged_crossings", statistics.merged_crossings);
  return table(rows);
}

std::string limits_text(std::vector<MemoryLimit> const& limits) {
  std::vector<std::array<std::string, 3>> rows{{"device", "location", "at most"}};
  for (auto const& limit : limits) {
    rows.push_back({limit.device, std::string(to_string(limit.location)), format_size(limit.limit_bytes)});
  }
  return table(rows);
}

}  // namespace

std::string to_text(PoolStatistics const& statistics) {
  return fmt::format("{} allocation{}, {} from the pool; {} in use, {} cached, at most {} reserved\n",
                     statistics.total_allocations, statistics.total_allocations == 1 ? "" : "s", statistics.pool_hits,
                     format_size(statistics.active_bytes), format_size(statistics.total_pooled_bytes),
                     format_size(statistics.peak_reserved_bytes));
}

std::string to_text(GlobalMemoryStatistics const& statistics) {
  std::vector<std::array<std::string, 7>> rows{
      {"device", "location", "blocks", "from the pool", "in use", "cached", "reserved"}};
  auto const blocks = [](std::uint64_t active, std::uint64_t total) { return fmt::format("{} of {}", active, total); };
  std::uint64_t hits = 0;
  for (auto const& [device, location, pool] : statistics.pools) {
    hits += pool.pool_hits;
    rows.push_back({device, std::string(to_string(location)), blocks(pool.active_allocations, pool.total_allocations),
                    fmt::format("{}", pool.pool_hits), format_size(pool.active_bytes),
                    format_size(pool.total_pooled_bytes), format_size(pool.reserved_bytes)});
  }
  rows.push_back({"all", "", blocks(statistics.active_allocations, statistics.total_allocations),
                  fmt::format("{}", hits), format_size(statistics.active_bytes), format_size(statistics.pooled_bytes),
                  format_size(statistics.reserved_bytes)});
  return table(rows) + events_text(statistics);
}

std::string to_text(MemorySnapshot const& snapshot) {
  auto const live = snapshot.live.text();
  return fmt::format("statistics\n{}\nusage\n{}\nlimits\n{}\nlive\n{}", to_text(snapshot.statistics),
                     to_text(snapshot.usage), limits_text(snapshot.limits), live.empty() ? "nothing\n" : live);
}

std::string to_text(Usage const& usage) {
  std::vector<std::array<std::string, 7>> rows{{"device", "location", "live", "peak", "pieces", "copied in", "name"}};
  auto const row = [&rows](std::string const& device, std::string_view location, UsageCounts const& counts,
                           std::string const& name) {
    rows.push_back({device, std::string(location), format_size(counts.live_bytes), format_size(counts.peak_bytes),
                    fmt::format("{} of {}", counts.live(), counts.allocations), format_size(counts.bytes_in), name});
  };
  for (auto const& line : usage.lines) {
    row(line.device, to_string(line.location), line.counts, line.name.empty() ? std::string("-") : line.name);
  }
  row("all", "", usage.total, "");
  return table(rows);
}

std::string to_text(DeviceList const& list, ReportDetail detail) {
  std::string text;
  if (detail == ReportDetail::full) {
    for (auto const& device : list.devices) text += paragraph(device);
  } else {
    std::vector<std::array<std::string, 4>> rows{{"device", "memory", "free", "name"}};
    for (auto const& device : list.devices) {
      rows.push_back(
          {device.id, format_size(device.memory.total_bytes), format_size(device.memory.free_bytes), device.info.name});
    }
    text = table(rows);
    for (auto const& device : list.devices) {
      if (auto const limits = limits_of(device); !limits.empty()) {
        text += fmt::format("limits of {}: {}\n", device.id, limits);
      }
    }
  }
  for (auto const& [backend, reason] : list.unavailable) {
    text += fmt::format("no {} device: {}\n", to_string(backend), reason);
  }
  if (list.links) text += links_text(list);
  return text;
}

}  // namespace unimem
