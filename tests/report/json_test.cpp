#include <unimem/report/json.hpp>

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

TEST(Json, ADeviceListIsTheObjectOfTheContractOnOneLine) {
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
                          "max_allocation", "alignment", "is_gpu", "integrated", "doubles", "compiles_source",
                          "runs_host_form", "shares_storage_with_host", "maps_pages", "limited_by"));
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
            R"("via_host":false,"source":"configured"},)"
            R"({"from":"sim:0","to":"host","bytes_per_second":null,"latency_seconds":0.5,)"
            R"("via_host":true,"source":"estimated"}])");
  list.links->clear();
  EXPECT_EQ(nlohmann::json::parse(to_json(list))["links"], nlohmann::json::array()) << "asked for, and none";
}

TEST(Json, NothingIsAnEmptyListNotNull) {
  EXPECT_EQ(to_json(DeviceList{}), R"({"devices":[],"unavailable":[]})");
}

TEST(Json, BytesThatAreNotUtf8AreReplacedAndLineBreaksEscaped) {
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
  statistics.size_classes[0] = {.allocations = 3, .hits = 2, .active_bytes = 150, .pooled_bytes = 100};
  statistics.size_classes[20] = {.allocations = 1, .hits = 1, .active_bytes = 50, .pooled_bytes = 0};
  return statistics;
}

TEST(Json, PoolStatisticsAreExactUpToTheLargestNumber) {
  auto const json = nlohmann::ordered_json::parse(to_json(some_statistics()));
  EXPECT_THAT(keys_of(json),
              ElementsAre("total_allocations", "pool_hits", "pool_misses", "hit_rate", "total_pooled_bytes",
                          "active_allocations", "active_bytes", "peak_active_bytes", "slack_bytes", "reserved_bytes",
                          "peak_reserved_bytes", "failed_allocations", "size_classes"));
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
}

TEST(Json, EverySizeClassIsListedAndTheLastHasNoLimit) {
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

TEST(Json, GlobalStatisticsCarryEachPoolUnderItsDeviceAndLocation) {
  GlobalMemoryStatistics statistics;
  statistics.total_allocations = 4;
  statistics.active_allocations = 2;
  statistics.active_bytes = 200;
  statistics.pooled_bytes = 100;
  statistics.reserved_bytes = 300;
  statistics.reclaims = 6;
  statistics.failed_reclaims = 11;
  statistics.host_reclaims = 20;
  statistics.failed_host_reclaims = 21;
  statistics.host_reclaimed_bytes = 22;
  statistics.spills = 23;
  statistics.spilled_bytes = 24;
  statistics.restores = 25;
  statistics.restored_bytes = 26;
  statistics.spill_files = 27;
  statistics.spill_file_bytes = 28;
  statistics.cache_trims = 12;
  statistics.defragmentations = 29;
  statistics.waits = 13;
  statistics.refusals = 14;
  statistics.refused_pinnings = 15;
  statistics.missing_unified = 16;
  statistics.reclaimed_bytes = 700;
  statistics.pressure_calls = 8;
  statistics.failed_pressure_calls = 9;
  statistics.merged_crossings = 10;
  statistics.pools.push_back({.device = "sim:0", .location = Location::pinned, .pool = some_statistics()});
  auto const json = nlohmann::ordered_json::parse(to_json(statistics));
  EXPECT_THAT(
      keys_of(json),
      ElementsAre("schema", "total_allocations", "active_allocations", "active_bytes", "pooled_bytes", "reserved_bytes",
                  "reclaims", "failed_reclaims", "reclaimed_bytes", "host_reclaims", "failed_host_reclaims",
                  "host_reclaimed_bytes", "spills", "spilled_bytes", "restores", "restored_bytes", "spill_files",
                  "spill_file_bytes", "cache_trims", "defragmentations", "waits", "refusals", "refused_pinnings",
                  "missing_unified", "pressure_calls", "failed_pressure_calls", "merged_crossings", "pools"));
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["reclaims"], 6);
  EXPECT_EQ(json["failed_reclaims"], 11);
  EXPECT_EQ(json["host_reclaims"], 20);
  EXPECT_EQ(json["failed_host_reclaims"], 21);
  EXPECT_EQ(json["host_reclaimed_bytes"], 22);
  EXPECT_EQ(json["spills"], 23);
  EXPECT_EQ(json["spilled_bytes"], 24);
  EXPECT_EQ(json["restores"], 25);
  EXPECT_EQ(json["restored_bytes"], 26);
  EXPECT_EQ(json["spill_files"], 27);
  EXPECT_EQ(json["spill_file_bytes"], 28);
  EXPECT_EQ(json["cache_trims"], 12);
  EXPECT_EQ(json["defragmentations"], 29);
  EXPECT_EQ(json["waits"], 13);
  EXPECT_EQ(json["refusals"], 14);
  EXPECT_EQ(json["refused_pinnings"], 15);
  EXPECT_EQ(json["missing_unified"], 16);
  EXPECT_EQ(json["reclaimed_bytes"], 700);
  EXPECT_EQ(json["pressure_calls"], 8);
  EXPECT_EQ(json["failed_pressure_calls"], 9);
  EXPECT_EQ(json["merged_crossings"], 10);
  ASSERT_EQ(json["pools"].size(), 1U);
  EXPECT_EQ(json["pools"][0]["device"], "sim:0");
  EXPECT_EQ(json["pools"][0]["location"], "pinned");
  EXPECT_EQ(json["pools"][0]["pool"], nlohmann::ordered_json::parse(to_json(some_statistics())));
}

TEST(Json, UsageHasEveryCountByDeviceLocationAndName) {
  Usage usage;
  UsageCounts const counts{.allocations = 3,
                           .releases = 1,
                           .live_bytes = 200,
                           .peak_bytes = 300,
                           .allocated_bytes = 400,
                           .seconds_alive = 1.5,
                           .longest_seconds = 1.25,
                           .copies_in = 4,
                           .bytes_in = 5,
                           .copies_out = 6,
                           .bytes_out = 7,
                           .host_reads = 8,
                           .host_writes = 9,
                           .device_reads = 10,
                           .device_writes = 11};
  usage.lines.push_back({.device = "cpu", .location = Location::pinned, .name = "x", .counts = counts});
  usage.places.push_back({.device = "cpu", .location = Location::pinned, .counts = counts});
  usage.total = counts;
  auto const json = nlohmann::ordered_json::parse(to_json(usage));
  EXPECT_THAT(keys_of(json), ElementsAre("schema", "total", "places", "lines"));
  EXPECT_THAT(keys_of(json["total"]),
              ElementsAre("allocations", "releases", "live_bytes", "peak_bytes", "allocated_bytes", "seconds_alive",
                          "longest_seconds", "copies_in", "bytes_in", "copies_out", "bytes_out", "host_reads",
                          "host_writes", "device_reads", "device_writes"));
  EXPECT_EQ(json["total"]["longest_seconds"], 1.25);
  EXPECT_EQ(json["total"]["device_writes"], 11);
  EXPECT_EQ(json["places"][0]["location"], "pinned");
  EXPECT_EQ(json["lines"][0]["name"], "x");
  EXPECT_EQ(json["lines"][0]["bytes_out"], 7);
}

}  // namespace
}  // namespace unimem
