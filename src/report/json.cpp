#include <unimem/report/json.hpp>

#include <nlohmann/json.hpp>

#include <string_view>
#include <utility>

namespace unimem {
namespace {

/// Keeps keys in the order they are written here: the order the documents list them in.
using Json = nlohmann::ordered_json;

std::string on_one_line(Json const& json) {
  // Device names come from drivers and paths from users: neither is sure to be UTF-8, and a report must not throw.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json class_json(PoolStatistics const& statistics, std::size_t index) {
  auto const& one = statistics.size_classes[index];
  Json json;
  if (index + 1 < size_class_count) {
    json["limit_bytes"] = size_class_limit(index);
  } else {
    json["limit_bytes"] = nullptr;
  }
  json["allocations"] = one.allocations;
  json["hits"] = one.hits;
  json["active_bytes"] = one.active_bytes;
  json["pooled_bytes"] = one.pooled_bytes;
  return json;
}

Json pool_json(PoolStatistics const& statistics) {
  Json json;
  json["total_allocations"] = statistics.total_allocations;
  json["pool_hits"] = statistics.pool_hits;
  json["pool_misses"] = statistics.pool_misses;
  json["hit_rate"] = statistics.hit_rate();
  json["total_pooled_bytes"] = statistics.total_pooled_bytes;
  json["active_allocations"] = statistics.active_allocations;
  json["active_bytes"] = statistics.active_bytes;
  json["peak_active_bytes"] = statistics.peak_active_bytes;
  json["slack_bytes"] = statistics.slack_bytes;
  json["reserved_bytes"] = statistics.reserved_bytes;
  json["peak_reserved_bytes"] = statistics.peak_reserved_bytes;
  json["failed_allocations"] = statistics.failed_allocations;
  json["seizures"] = statistics.seizures;
  json["trims"] = statistics.trims;
  json["waits"] = statistics.waits;
  auto& classes = json["size_classes"] = Json::array();
  for (std::size_t index = 0; index < size_class_count; ++index) classes.push_back(class_json(statistics, index));
  return json;
}

Json limits_json(std::vector<LocationLimit> const& limits) {
  auto json = Json::object();
  for (auto const& limit : limits) json[std::string(to_string(limit.location))] = limit.limit_bytes;
  return json;
}

Json device_json(DeviceSnapshot const& device, ReportDetail detail) {
  Json json;
  json["id"] = device.id;
  json["backend"] = to_string(device.backend);
  json["name"] = device.info.name;
  json["total_bytes"] = device.memory.total_bytes;
  json["free_bytes"] = device.memory.free_bytes;
  if (device.limits) json["limits"] = limits_json(*device.limits);
  if (detail == ReportDetail::brief) return json;
  json["vendor"] = device.info.vendor;
  json["driver"] = device.info.driver;
  json["compute_units"] = device.info.compute_units;
  json["max_allocation"] = device.info.max_allocation;
  json["alignment"] = device.info.alignment;
  json["is_gpu"] = device.info.is_gpu;
  json["integrated"] = device.info.integrated;
  json["doubles"] = device.info.doubles;
  json["atomics64"] = device.info.atomics64;
  json["max_group_items"] = device.info.max_group_items;
  json["group_memory_bytes"] = device.info.group_memory_bytes;
  json["compiles_source"] = device.info.compiles_source;
  json["runs_host_form"] = device.info.runs_host_form;
  json["shares_storage_with_host"] = device.shares_storage_with_host;
  json["maps_pages"] = device.maps_pages;
  json["limited_by"] = device.info.limited_by;
  return json;
}

Json counts_json(UsageCounts const& counts) {
  Json json;
  json["allocations"] = counts.allocations;
  json["releases"] = counts.releases;
  json["live_bytes"] = counts.live_bytes;
  json["peak_bytes"] = counts.peak_bytes;
  json["allocated_bytes"] = counts.allocated_bytes;
  json["seconds_alive"] = counts.seconds_alive;
  json["longest_seconds"] = counts.longest_seconds;
  json["copies_in"] = counts.copies_in;
  json["bytes_in"] = counts.bytes_in;
  json["copies_out"] = counts.copies_out;
  json["bytes_out"] = counts.bytes_out;
  json["host_reads"] = counts.host_reads;
  json["host_writes"] = counts.host_writes;
  json["device_reads"] = counts.device_reads;
  json["device_writes"] = counts.device_writes;
  return json;
}

Json link_json(Link const& link) {
  Json json;
  json["from"] = link.from;
  json["to"] = link.to;
  json["bytes_per_second"] = link.bytes_per_second;
  json["latency_seconds"] = link.latency_seconds;
  json["via_host"] = link.via_host;
  json["source"] = to_string(link.source);
  json["within_cache"] = link.within_cache;
  return json;
}

Json statistics_json(GlobalMemoryStatistics const& statistics) {
  Json json;
  json["schema"] = statistics_schema;
  json["total_allocations"] = statistics.total_allocations;
  json["active_allocations"] = statistics.active_allocations;
  json["active_bytes"] = statistics.active_bytes;
  json["pooled_bytes"] = statistics.pooled_bytes;
  json["reserved_bytes"] = statistics.reserved_bytes;
  json["reclaims"] = statistics.reclaims;
  json["failed_reclaims"] = statistics.failed_reclaims;
  json["reclaimed_bytes"] = statistics.reclaimed_bytes;
  json["host_reclaims"] = statistics.host_reclaims;
  json["failed_host_reclaims"] = statistics.failed_host_reclaims;
  json["host_reclaimed_bytes"] = statistics.host_reclaimed_bytes;
  json["spills"] = statistics.spills;
  json["spilled_bytes"] = statistics.spilled_bytes;
  json["restores"] = statistics.restores;
  json["restored_bytes"] = statistics.restored_bytes;
  json["direct_reads"] = statistics.direct_reads;
  json["direct_read_bytes"] = statistics.direct_read_bytes;
  json["spill_files"] = statistics.spill_files;
  json["spill_file_bytes"] = statistics.spill_file_bytes;
  json["file_reads"] = statistics.file_reads;
  json["file_read_bytes"] = statistics.file_read_bytes;
  json["file_direct_bytes"] = statistics.file_direct_bytes;
  json["file_uring_bytes"] = statistics.file_uring_bytes;
  json["file_mapped_bytes"] = statistics.file_mapped_bytes;
  json["file_writes"] = statistics.file_writes;
  json["file_written_bytes"] = statistics.file_written_bytes;
  json["cache_trims"] = statistics.cache_trims;
  json["defragmentations"] = statistics.defragmentations;
  json["waits"] = statistics.waits;
  json["refusals"] = statistics.refusals;
  json["refused_pinnings"] = statistics.refused_pinnings;
  json["missing_unified"] = statistics.missing_unified;
  json["pressure_calls"] = statistics.pressure_calls;
  json["failed_pressure_calls"] = statistics.failed_pressure_calls;
  json["merged_crossings"] = statistics.merged_crossings;
  auto& pools = json["pools"] = Json::array();
  for (auto const& usage : statistics.pools) {
    Json one;
    one["device"] = usage.device;
    one["location"] = to_string(usage.location);
    one["pool"] = pool_json(usage.pool);
    pools.push_back(std::move(one));
  }
  return json;
}

Json usage_json(Usage const& usage) {
  Json json;
  json["schema"] = usage_schema;
  json["total"] = counts_json(usage.total);
  auto& places = json["places"] = Json::array();
  for (auto const& place : usage.places) {
    Json one;
    one["device"] = place.device;
    one["location"] = to_string(place.location);
    one.update(counts_json(place.counts));
    places.push_back(std::move(one));
  }
  auto& lines = json["lines"] = Json::array();
  for (auto const& line : usage.lines) {
    Json one;
    one["device"] = line.device;
    one["location"] = to_string(line.location);
    one["name"] = line.name;
    one.update(counts_json(line.counts));
    lines.push_back(std::move(one));
  }
  return json;
}

Json live_json(LiveAllocation const& live) {
  Json json;
  json["buffer"] = live.buffer;
  json["device"] = live.device == nullptr ? std::string_view{} : live.device->id();
  json["location"] = to_string(live.location);
  json["bytes"] = live.bytes;
  json["name"] = live.name.view();
  json["age_seconds"] = live.age_seconds;
  auto& stack = json["stack"] = Json::array();
  for (auto const address : live.stack) stack.push_back(describe_address(address));
  return json;
}

Json leaks_json(LeakReport const& report) {
  Json json;
  json["bytes"] = report.bytes;
  auto& allocations = json["allocations"] = Json::array();
  for (auto const& one : report.allocations) allocations.push_back(live_json(one));
  return json;
}

Json limit_json(MemoryLimit const& limit) {
  Json json;
  json["device"] = limit.device;
  json["location"] = to_string(limit.location);
  json["limit_bytes"] = limit.limit_bytes;
  return json;
}

}  // namespace

std::string to_json(PoolStatistics const& statistics) {
  return on_one_line(pool_json(statistics));
}

std::string to_json(GlobalMemoryStatistics const& statistics) {
  return on_one_line(statistics_json(statistics));
}

std::string to_json(Usage const& usage) {
  return on_one_line(usage_json(usage));
}

std::string to_json(MemorySnapshot const& snapshot) {
  Json json;
  json["schema"] = snapshot_schema;
  json["statistics"] = statistics_json(snapshot.statistics);
  json["usage"] = usage_json(snapshot.usage);
  json["live"] = leaks_json(snapshot.live);
  auto& limits = json["limits"] = Json::array();
  for (auto const& limit : snapshot.limits) limits.push_back(limit_json(limit));
  return on_one_line(json);
}

std::string to_json(DeviceList const& list, ReportDetail detail) {
  Json json;
  auto& devices = json["devices"] = Json::array();
  for (auto const& device : list.devices) devices.push_back(device_json(device, detail));
  auto& unavailable = json["unavailable"] = Json::array();
  for (auto const& [backend, reason] : list.unavailable) {
    Json one;
    one["backend"] = to_string(backend);
    one["reason"] = reason;
    unavailable.push_back(std::move(one));
  }
  if (list.links) {
    auto& links = json["links"] = Json::array();
    for (auto const& link : *list.links) links.push_back(link_json(link));
  }
  return on_one_line(json);
}

}  // namespace unimem
