#include <unimem/report/prometheus.hpp>

#include <unimem/core/error.hpp>

#include <string>

#ifdef UNIMEM_PROMETHEUS
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <string_view>
#include <utility>
#include <vector>
#endif

namespace unimem {

#ifdef UNIMEM_PROMETHEUS

namespace {

using Labels = std::vector<prometheus::ClientMetric::Label>;

/// Families of metrics, each begun when its first number comes.
class Exposition {
 public:
  void count(std::string_view name, std::string_view help, std::uint64_t value, Labels const& labels = {}) {
    counter(name, help, static_cast<double>(value), labels);
  }
  void seconds(std::string_view name, std::string_view help, double value, Labels const& labels = {}) {
    counter(name, help, value, labels);
  }
  void gauge(std::string_view name, std::string_view help, double value, Labels const& labels = {}) {
    prometheus::ClientMetric metric;
    metric.gauge.value = value;
    add(std::string(name), help, prometheus::MetricType::Gauge, std::move(metric), labels);
  }
  void bytes(std::string_view name, std::string_view help, std::size_t value, Labels const& labels = {}) {
    gauge(std::string(name) + "_bytes", help, static_cast<double>(value), labels);
  }
  [[nodiscard]] std::string text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  void counter(std::string_view name, std::string_view help, double value, Labels const& labels) {
    prometheus::ClientMetric metric;
    metric.counter.value = value;
    add(std::string(name) + "_total", help, prometheus::MetricType::Counter, std::move(metric), labels);
  }
  void add(std::string name, std::string_view help, prometheus::MetricType type, prometheus::ClientMetric metric,
           Labels const& labels) {
    name.insert(0, "unimem_");
    metric.label = labels;
    for (auto& family : families_) {
      if (family.name != name) continue;
      family.metric.push_back(std::move(metric));
      return;
    }
    prometheus::MetricFamily family;
    family.name = std::move(name);
    family.help = std::string(help);
    family.type = type;
    family.metric.push_back(std::move(metric));
    families_.push_back(std::move(family));
  }

  std::vector<prometheus::MetricFamily> families_;
};

void expose(Exposition& to, PoolUsage const& usage) {
  Labels const labels{{"device", usage.device}, {"location", std::string(to_string(usage.location))}};
  auto const& pool = usage.pool;
  to.count("pool_allocations", "Blocks handed out", pool.total_allocations, labels);
  to.count("pool_hits", "Blocks handed out that had been in use before", pool.pool_hits, labels);
  to.count("pool_misses", "Blocks handed out of new memory", pool.pool_misses, labels);
  to.count("pool_failed_allocations", "Requests without memory", pool.failed_allocations, labels);
  to.count("pool_seizures", "Times that what threads keep was brought back", pool.seizures, labels);
  to.count("pool_trims", "Times that cached memory made room for a request", pool.trims, labels);
  to.count("pool_waits", "Times that a request waited for cached blocks", pool.waits, labels);
  to.gauge("pool_active_allocations", "Blocks in use", static_cast<double>(pool.active_allocations), labels);
  to.bytes("pool_active", "Blocks in use", pool.active_bytes, labels);
  to.bytes("pool_peak_active", "The most that blocks in use have come to", pool.peak_active_bytes, labels);
  to.bytes("pool_cached", "Blocks that are kept for reuse", pool.total_pooled_bytes, labels);
  to.bytes("pool_slack", "Free parts of pages beside blocks", pool.slack_bytes, labels);
  to.bytes("pool_reserved", "Taken from the device", pool.reserved_bytes, labels);
  to.bytes("pool_peak_reserved", "The most ever taken from the device", pool.peak_reserved_bytes, labels);
}

/// Families of what lines, places and all of them count, each by its own `prefix`: sums of the lines say nothing of
/// peaks.
void expose(Exposition& to, std::string const& prefix, UsageCounts const& counts, Labels const& labels) {
  to.count(prefix + "allocations", "Pieces of memory that buffers took", counts.allocations, labels);
  to.count(prefix + "releases", "Pieces of memory that buffers gave back", counts.releases, labels);
  to.bytes(prefix + "live", "What buffers have", counts.live_bytes, labels);
  to.bytes(prefix + "peak", "The most that buffers had", counts.peak_bytes, labels);
  to.count(prefix + "allocated_bytes", "All that buffers ever took", counts.allocated_bytes, labels);
  to.seconds(prefix + "seconds_alive", "The lives that have ended, together", counts.seconds_alive, labels);
  to.gauge(prefix + "longest_seconds", "The longest of the lives that have ended", counts.longest_seconds, labels);
  to.count(prefix + "copies_in", "Copies that ended here", counts.copies_in, labels);
  to.count(prefix + "bytes_in", "Bytes copied here", counts.bytes_in, labels);
  to.count(prefix + "copies_out", "Copies that began here", counts.copies_out, labels);
  to.count(prefix + "bytes_out", "Bytes copied from here", counts.bytes_out, labels);
  to.count(prefix + "host_reads", "Reads by the host", counts.host_reads, labels);
  to.count(prefix + "host_writes", "Writes by the host", counts.host_writes, labels);
  to.count(prefix + "device_reads", "Reads by devices", counts.device_reads, labels);
  to.count(prefix + "device_writes", "Writes by devices", counts.device_writes, labels);
}

void expose(Exposition& to, GlobalMemoryStatistics const& statistics) {
  to.count("allocations", "Blocks handed out by all pools", statistics.total_allocations);
  to.gauge("active_allocations", "Blocks in use", static_cast<double>(statistics.active_allocations));
  to.bytes("active", "Blocks in use", statistics.active_bytes);
  to.bytes("cached", "Blocks that are kept for reuse", statistics.pooled_bytes);
  to.bytes("reserved", "Taken from devices", statistics.reserved_bytes);
  to.count("reclaims", "Device copies that were evicted to make room", statistics.reclaims);
  to.count("failed_reclaims", "Evictions that failed, with nothing lost", statistics.failed_reclaims);
  to.count("reclaimed_bytes", "What evictions freed", statistics.reclaimed_bytes);
  to.count("host_reclaims", "Buffers that gave host memory back to make room", statistics.host_reclaims);
  to.count("failed_host_reclaims", "Of host memory, that failed with nothing lost", statistics.failed_host_reclaims);
  to.count("host_reclaimed_bytes", "What buffers gave back of host memory", statistics.host_reclaimed_bytes);
  to.count("spills", "Copies written to files", statistics.spills);
  to.count("spilled_bytes", "Bytes written to files", statistics.spilled_bytes);
  to.count("restores", "Copies read from files", statistics.restores);
  to.count("restored_bytes", "Bytes read from files", statistics.restored_bytes);
  to.count("direct_reads", "Reads from files to memory of the caller's", statistics.direct_reads);
  to.count("direct_read_bytes", "Bytes read from files to memory of the caller's", statistics.direct_read_bytes);
  to.gauge("spill_files", "Copies that are in files", static_cast<double>(statistics.spill_files));
  to.bytes("spill_file", "Copies that are in files", statistics.spill_file_bytes);
  to.count("file_reads", "Ranges read from files that buffers were made from", statistics.file_reads);
  to.count("file_read_bytes", "Bytes read from files that buffers were made from", statistics.file_read_bytes);
  to.count("file_direct_bytes", "Of these, past the page cache", statistics.file_direct_bytes);
  to.count("file_uring_bytes", "Of those, by io_uring", statistics.file_uring_bytes);
  to.bytes("file_mapped", "Of such files, in memory as their own pages", statistics.file_mapped_bytes);
  to.count("file_writes", "Ranges written to files that buffers were made from", statistics.file_writes);
  to.count("file_written_bytes", "Bytes written to files that buffers were made from", statistics.file_written_bytes);
  to.count("cache_trims", "Times other pools' caches made room", statistics.cache_trims);
  to.count("defragmentations", "Times blocks in use were moved together to make room", statistics.defragmentations);
  to.count("waits", "Times an operation was begun again after others in its way", statistics.waits);
  to.count("refusals", "Times nothing helped: out of memory", statistics.refusals);
  to.count("refused_pinnings", "Times no host memory could be locked", statistics.refused_pinnings);
  to.count("missing_unified", "Times a device lacked unified memory", statistics.missing_unified);
  to.count("pressure_calls", "Calls of callbacks for memory pressure", statistics.pressure_calls);
  to.count("failed_pressure_calls", "Of these, that threw", statistics.failed_pressure_calls);
  to.count("merged_crossings", "Crossings told with others, behind a callback that was stuck",
           statistics.merged_crossings);
  for (auto const& pool : statistics.pools) expose(to, pool);
}

void expose(Exposition& to, Usage const& usage) {
  for (auto const& line : usage.lines) {
    expose(to, "usage_", line.counts,
           {{"device", line.device}, {"location", std::string(to_string(line.location))}, {"name", line.name}});
  }
  for (auto const& place : usage.places) {
    expose(to, "usage_place_", place.counts,
           {{"device", place.device}, {"location", std::string(to_string(place.location))}});
  }
  expose(to, "usage_all_", usage.total, {});
}

void expose(Exposition& to, MemoryLimit const& limit) {
  to.bytes("limit", "The most that may be taken from the device", limit.limit_bytes,
           {{"device", limit.device}, {"location", std::string(to_string(limit.location))}});
}

template <class Looked>
std::string exposed(Looked const& looked) {
  Exposition to;
  expose(to, looked);
  return to.text();
}

}  // namespace

bool can_expose_to_prometheus() noexcept {
  return true;
}

std::string to_prometheus(GlobalMemoryStatistics const& statistics) {
  return exposed(statistics);
}

std::string to_prometheus(Usage const& usage) {
  return exposed(usage);
}

std::string to_prometheus(MemorySnapshot const& snapshot) {
  Exposition to;
  expose(to, snapshot.statistics);
  expose(to, snapshot.usage);
  for (auto const& limit : snapshot.limits) expose(to, limit);
  return to.text();
}

#else

namespace {

[[noreturn]] void refuse() {
  throw UnsupportedOperation("to_prometheus", "this build of unimem", "prometheus-cpp was not found when it was built");
}

}  // namespace

bool can_expose_to_prometheus() noexcept {
  return false;
}

std::string to_prometheus(GlobalMemoryStatistics const& /*statistics*/) {
  refuse();
}

std::string to_prometheus(Usage const& /*usage*/) {
  refuse();
}

std::string to_prometheus(MemorySnapshot const& /*snapshot*/) {
  refuse();
}

#endif

}  // namespace unimem
