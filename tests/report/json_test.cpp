#include <unimem/report/json.hpp>

#include <unimem/core/name.hpp>
#include <unimem/device/discovery.hpp>

#include "report/every_number.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <limits>
#include <string>
#include <vector>

namespace unimem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::vector<std::string> keys_of(nlohmann::ordered_json const& json) {
  std::vector<std::string> keys;
  for (auto const& [key, value] : json.items()) keys.push_back(key);
  return keys;
}

DeviceList two_devices() {
  DeviceSnapshot cpu{.id = "cpu", .backend = Backend::cpu, .info = {}, .memory = {3'000, 4'096}};
  cpu.info.name = "A \"quoted\" processor";
  cpu.info.vendor = "Maker";
  cpu.info.driver = "1.2";
  cpu.info.compute_units = 8;
  cpu.info.max_allocation = 2'048;
  cpu.info.alignment = 64;
  cpu.info.runs_host_form = true;
  cpu.info.limited_by = "a container";
  cpu.shares_storage_with_host = true;
  DeviceSnapshot sim{.id = "sim:0", .backend = Backend::sim, .info = {}, .memory = {7, 8}};
  sim.info.name = "Simulated";
  sim.maps_pages = true;
  return {{cpu, sim}, {{Backend::metal, "Metal needs macOS"}}};
}

TEST(Json, ADeviceListIsOneLine) {
  EXPECT_EQ(to_json(two_devices()),
            R"({"devices":[)"
            R"({"id":"cpu","backend":"cpu","name":"A \"quoted\" processor","total_bytes":4096,"free_bytes":3000},)"
            R"({"id":"sim:0","backend":"sim","name":"Simulated","total_bytes":8,"free_bytes":7}],)"
            R"("unavailable":[{"backend":"metal","reason":"Metal needs macOS"}]})");
}

TEST(Json, InFullADeviceSaysEverything) {
  auto const json = nlohmann::ordered_json::parse(to_json(two_devices(), ReportDetail::full));
  auto const& cpu = json["devices"][0];
  EXPECT_THAT(keys_of(cpu),
              ElementsAre("id", "backend", "name", "total_bytes", "free_bytes", "vendor", "driver", "compute_units",
                          "max_allocation", "alignment", "is_gpu", "integrated", "doubles", "atomics64",
                          "max_group_items", "group_memory_bytes", "compiles_source", "runs_host_form",
                          "shares_storage_with_host", "maps_pages", "limited_by"));
  EXPECT_EQ(cpu["vendor"], "Maker");
  EXPECT_EQ(cpu["driver"], "1.2");
  EXPECT_EQ(cpu["compute_units"], 8);
  EXPECT_EQ(cpu["max_allocation"], 2'048);
  EXPECT_EQ(cpu["alignment"], 64);
  EXPECT_EQ(cpu["is_gpu"], false);
  EXPECT_EQ(cpu["runs_host_form"], true);
  EXPECT_EQ(cpu["compiles_source"], false);
  EXPECT_EQ(cpu["shares_storage_with_host"], true);
  EXPECT_EQ(cpu["maps_pages"], false);
  EXPECT_EQ(cpu["limited_by"], "a container");
  EXPECT_EQ(json["devices"][1]["maps_pages"], true);
}

TEST(Json, LimitsAreByLocation) {
  auto list = two_devices();
  list.devices[0].limits = {{Location::host, 1'024}, {Location::pinned, 512}};
  list.devices[1].limits.emplace();
  for (auto const detail : {ReportDetail::brief, ReportDetail::full}) {
    auto const json = nlohmann::ordered_json::parse(to_json(list, detail));
    EXPECT_EQ(json["devices"][0]["limits"].dump(), R"({"host":1024,"pinned":512})");
    EXPECT_EQ(json["devices"][1]["limits"].dump(), "{}") << "asked for, and none";
  }
}

TEST(Json, LinksAreListedWhereTheyWereAskedFor) {
  auto list = two_devices();
  list.links = std::vector<Link>{{.from = "host",
                                  .to = "sim:0",
                                  .bytes_per_second = 12e9,
                                  .latency_seconds = 1e-5,
                                  .source = LinkSource::configured},
                                 {.from = "sim:0",
                                  .to = "host",
                                  .bytes_per_second = std::numeric_limits<double>::infinity(),
                                  .latency_seconds = 0.5,
                                  .via_host = true,
                                  .source = LinkSource::estimated}};
  auto const json = nlohmann::ordered_json::parse(to_json(list));
  EXPECT_THAT(keys_of(json), ElementsAre("devices", "unavailable", "links"));
  EXPECT_EQ(json["links"].dump(),
            R"([{"from":"host","to":"sim:0","bytes_per_second":12000000000.0,"latency_seconds":1e-05,)"
            R"("via_host":false,"source":"configured","within_cache":false},)"
            R"({"from":"sim:0","to":"host","bytes_per_second":null,"latency_seconds":0.5,)"
            R"("via_host":true,"source":"estimated","within_cache":false}])");
  list.links->clear();
  EXPECT_EQ(nlohmann::json::parse(to_json(list))["links"], nlohmann::json::array()) << "asked for, and none";
}

TEST(Json, NothingIsAnEmptyListNotNull) {
  EXPECT_EQ(to_json(DeviceList{}), R"({"devices":[],"unavailable":[]})");
}

TEST(Json, InvalidUtf8IsReplaced) {
  DeviceList list;
  list.unavailable.push_back({Backend::opencl, "bad \xff byte\nand a line"});
  auto const text = to_json(list);
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  EXPECT_EQ(nlohmann::json::parse(text)["unavailable"][0]["reason"], "bad \xef\xbf\xbd byte\nand a line");
}

PoolStatistics some_statistics() {
  PoolStatistics statistics;
  statistics.total_allocations = 4;
  statistics.pool_hits = 3;
  statistics.pool_misses = 1;
  statistics.total_pooled_bytes = 100;
  statistics.active_allocations = 2;
  statistics.active_bytes = 200;
  statistics.peak_active_bytes = 250;
  statistics.slack_bytes = 20;
  statistics.reserved_bytes = 320;
  statistics.peak_reserved_bytes = std::numeric_limits<std::size_t>::max();
  statistics.failed_allocations = 5;
  statistics.seizures = 6;
  statistics.trims = 7;
  statistics.waits = 8;
  statistics.size_classes[0] = {.allocations = 3, .hits = 2, .active_bytes = 150, .pooled_bytes = 100};
  statistics.size_classes[20] = {.allocations = 1, .hits = 1, .active_bytes = 50, .pooled_bytes = 0};
  return statistics;
}

TEST(Json, PoolStatisticsAreExact) {
  auto const json = nlohmann::ordered_json::parse(to_json(some_statistics()));
  EXPECT_THAT(keys_of(json),
              ElementsAre("total_allocations", "pool_hits", "pool_misses", "hit_rate", "total_pooled_bytes",
                          "active_allocations", "active_bytes", "peak_active_bytes", "slack_bytes", "reserved_bytes",
                          "peak_reserved_bytes", "failed_allocations", "seizures", "trims", "waits", "size_classes"));
  EXPECT_EQ(json["total_allocations"], 4);
  EXPECT_EQ(json["pool_hits"], 3);
  EXPECT_EQ(json["pool_misses"], 1);
  EXPECT_EQ(json["hit_rate"], 0.75);
  EXPECT_EQ(json["total_pooled_bytes"], 100);
  EXPECT_EQ(json["active_allocations"], 2);
  EXPECT_EQ(json["active_bytes"], 200);
  EXPECT_EQ(json["peak_active_bytes"], 250);
  EXPECT_EQ(json["slack_bytes"], 20);
  EXPECT_EQ(json["reserved_bytes"], 320);
  EXPECT_EQ(json["peak_reserved_bytes"].get<std::size_t>(), std::numeric_limits<std::size_t>::max());
  EXPECT_EQ(json["failed_allocations"], 5);
  EXPECT_EQ(json["seizures"], 6);
  EXPECT_EQ(json["trims"], 7);
  EXPECT_EQ(json["waits"], 8);
}

TEST(Json, EverySizeClassIsListed) {
  auto const classes = nlohmann::json::parse(to_json(some_statistics()))["size_classes"];
  ASSERT_EQ(classes.size(), size_class_count);
  for (std::size_t k = 0; k + 1 < size_class_count; ++k) {
    EXPECT_EQ(classes[k]["limit_bytes"], std::size_t{4'096} << k) << k;
  }
  EXPECT_TRUE(classes[20]["limit_bytes"].is_null());
  EXPECT_EQ(classes[0], nlohmann::json::parse(
                            R"({"limit_bytes":4096,"allocations":3,"hits":2,"active_bytes":150,"pooled_bytes":100})"));
  EXPECT_EQ(classes[20]["active_bytes"], 50);
}

TEST(Json, GlobalStatisticsHaveEachPool) {
  auto statistics = every_number();
  statistics.pools.push_back({.device = "sim:0", .location = Location::pinned, .pool = some_statistics()});
  auto const text = to_json(statistics);
  EXPECT_THAT(text, StartsWith(R"({"schema":1,"total_allocations":101,"active_allocations":102,"active_bytes":103,)"
                               R"("pooled_bytes":104,"reserved_bytes":105,"reclaims":106,"failed_reclaims":107,)"
                               R"("reclaimed_bytes":108,"host_reclaims":109,"failed_host_reclaims":110,)"
                               R"("host_reclaimed_bytes":111,"spills":112,"spilled_bytes":113,"restores":114,)"
                               R"("restored_bytes":115,"direct_reads":127,"direct_read_bytes":128,)"
                               R"("spill_files":116,"spill_file_bytes":117,"file_reads":129,"file_read_bytes":130,)"
                               R"("file_direct_bytes":133,"file_uring_bytes":134,"file_mapped_bytes":135,)"
                               R"("file_writes":131,"file_written_bytes":132,"cache_trims":118,)"
                               R"("defragmentations":119,"waits":120,"refusals":121,"refused_pinnings":122,)"
                               R"("missing_unified":123,"pressure_calls":124,"failed_pressure_calls":125,)"
                               R"("merged_crossings":126,)"));
  auto const json = nlohmann::ordered_json::parse(text);
  EXPECT_EQ(json.size(), 37U) << "the numbers, schema and pools";
  ASSERT_EQ(json["pools"].size(), 1U);
  EXPECT_EQ(json["pools"][0]["device"], "sim:0");
  EXPECT_EQ(json["pools"][0]["location"], "pinned");
  EXPECT_EQ(json["pools"][0]["pool"], nlohmann::ordered_json::parse(to_json(some_statistics())));
}

/// What `counts_from(first)` is to be, after `before`.
nlohmann::ordered_json json_from(nlohmann::ordered_json before, unsigned first) {
  before["allocations"] = first;
  before["releases"] = first + 1;
  before["live_bytes"] = first + 2;
  before["peak_bytes"] = first + 3;
  before["allocated_bytes"] = first + 4;
  before["seconds_alive"] = first + 5.5;
  before["longest_seconds"] = first + 6.25;
  before["copies_in"] = first + 7;
  before["bytes_in"] = first + 8;
  before["copies_out"] = first + 9;
  before["bytes_out"] = first + 10;
  before["host_reads"] = first + 11;
  before["host_writes"] = first + 12;
  before["device_reads"] = first + 13;
  before["device_writes"] = first + 14;
  return before;
}

TEST(Json, UsageHasEveryCount) {
  Usage usage;
  usage.lines.push_back({.device = "cpu", .location = Location::pinned, .name = "x", .counts = counts_from(100)});
  usage.places.push_back({.device = "sim:0", .location = Location::host, .counts = counts_from(200)});
  usage.total = counts_from(300);
  auto const json = nlohmann::ordered_json::parse(to_json(usage));
  EXPECT_THAT(keys_of(json), ElementsAre("schema", "total", "places", "lines"));
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["total"], json_from(nlohmann::ordered_json::object(), 300));
  ASSERT_EQ(json["places"].size(), 1U);
  EXPECT_EQ(json["places"][0], json_from({{"device", "sim:0"}, {"location", "host"}}, 200));
  ASSERT_EQ(json["lines"].size(), 1U);
  EXPECT_EQ(json["lines"][0], json_from({{"device", "cpu"}, {"location", "pinned"}, {"name", "x"}}, 100));
}

TEST(Json, ASnapshotHasItsPartsAndASchema) {
  MemorySnapshot snapshot;
  snapshot.statistics.total_allocations = 4;
  snapshot.usage.total.allocations = 3;
  snapshot.live.bytes = 700;
  snapshot.live.allocations.push_back({.buffer = 42,
                                       .device = &device("cpu"),
                                       .location = Location::pinned,
                                       .bytes = 700,
                                       .name = Name("kept"),
                                       .age_seconds = 1.5});
  snapshot.live.allocations.back().stack = {1, 2};
  snapshot.limits.push_back({.device = "sim:0", .location = Location::device, .limit_bytes = 1'024});
  auto const text = to_json(snapshot);
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  auto const json = nlohmann::ordered_json::parse(text);
  EXPECT_THAT(keys_of(json), ElementsAre("schema", "statistics", "usage", "live", "limits"));
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["statistics"], nlohmann::ordered_json::parse(to_json(snapshot.statistics)));
  EXPECT_EQ(json["usage"], nlohmann::ordered_json::parse(to_json(snapshot.usage)));
  EXPECT_EQ(json["live"]["bytes"], 700);
  ASSERT_EQ(json["live"]["allocations"].size(), 1U);
  auto const& live = json["live"]["allocations"][0];
  EXPECT_THAT(keys_of(live), ElementsAre("buffer", "device", "location", "bytes", "name", "age_seconds", "stack"));
  EXPECT_EQ(live["buffer"], 42);
  EXPECT_EQ(live["device"], "cpu");
  EXPECT_EQ(live["location"], "pinned");
  EXPECT_EQ(live["bytes"], 700);
  EXPECT_EQ(live["name"], "kept");
  EXPECT_EQ(live["age_seconds"], 1.5);
  ASSERT_EQ(live["stack"].size(), 2U);
  EXPECT_EQ(live["stack"][1], describe_address(2));
  EXPECT_EQ(json["limits"].dump(), R"([{"device":"sim:0","location":"device","limit_bytes":1024}])");
}

}  // namespace
}  // namespace unimem
