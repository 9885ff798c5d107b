#include <unimem/report/prometheus.hpp>

#include <unimem/core/error.hpp>

#include "report/every_number.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <sstream>
#include <string>
#include <tuple>

namespace unimem {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Every number another one, from `first` on.
PoolStatistics pool_from(unsigned first) {
  PoolStatistics pool;
  pool.total_allocations = first + 0;
  pool.pool_hits = first + 1;
  pool.pool_misses = first + 2;
  pool.total_pooled_bytes = first + 3;
  pool.active_allocations = first + 4;
  pool.active_bytes = first + 5;
  pool.peak_active_bytes = first + 6;
  pool.slack_bytes = first + 7;
  pool.reserved_bytes = first + 8;
  pool.peak_reserved_bytes = first + 9;
  pool.failed_allocations = first + 10;
  pool.seizures = first + 11;
  pool.trims = first + 12;
  pool.waits = first + 13;
  return pool;
}

/// Every number another one.
GlobalMemoryStatistics some_statistics() {
  auto statistics = every_number();
  statistics.pools.push_back({.device = "sim:0", .location = Location::pinned, .pool = pool_from(200)});
  statistics.pools.push_back({.device = "cpu", .location = Location::pinned, .pool = pool_from(300)});
  return statistics;
}

/// Each number by its name and labels.
std::map<std::string, double> numbers_of(std::string const& text) {
  std::map<std::string, double> numbers;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    auto const blank = line.rfind(' ');
    EXPECT_TRUE(numbers.emplace(line.substr(0, blank), std::stod(line.substr(blank + 1))).second) << "twice: " << line;
  }
  return numbers;
}

TEST(Prometheus, HasEveryNumberWithTypeAndHelp) {
  if (!can_expose_to_prometheus()) GTEST_SKIP() << "built without prometheus-cpp";
  auto const text = to_prometheus(some_statistics());
  std::map<std::string, double> expected{
      {"unimem_allocations_total", 101},
      {"unimem_active_allocations", 102},
      {"unimem_active_bytes", 103},
      {"unimem_cached_bytes", 104},
      {"unimem_reserved_bytes", 105},
      {"unimem_reclaims_total", 106},
      {"unimem_failed_reclaims_total", 107},
      {"unimem_reclaimed_bytes_total", 108},
      {"unimem_host_reclaims_total", 109},
      {"unimem_failed_host_reclaims_total", 110},
      {"unimem_host_reclaimed_bytes_total", 111},
      {"unimem_spills_total", 112},
      {"unimem_spilled_bytes_total", 113},
      {"unimem_restores_total", 114},
      {"unimem_restored_bytes_total", 115},
      {"unimem_direct_reads_total", 127},
      {"unimem_direct_read_bytes_total", 128},
      {"unimem_spill_files", 116},
      {"unimem_spill_file_bytes", 117},
      {"unimem_file_reads_total", 129},
      {"unimem_file_read_bytes_total", 130},
      {"unimem_file_direct_bytes_total", 133},
      {"unimem_file_uring_bytes_total", 134},
      {"unimem_file_mapped_bytes", 135},
      {"unimem_file_writes_total", 131},
      {"unimem_file_written_bytes_total", 132},
      {"unimem_cache_trims_total", 118},
      {"unimem_defragmentations_total", 119},
      {"unimem_waits_total", 120},
      {"unimem_refusals_total", 121},
      {"unimem_refused_pinnings_total", 122},
      {"unimem_missing_unified_total", 123},
      {"unimem_pressure_calls_total", 124},
      {"unimem_failed_pressure_calls_total", 125},
      {"unimem_merged_crossings_total", 126},
  };
  unsigned first = 200;
  for (std::string const labels : {R"({device="sim:0",location="pinned"})", R"({device="cpu",location="pinned"})"}) {
    expected["unimem_pool_allocations_total" + labels] = first + 0;
    expected["unimem_pool_hits_total" + labels] = first + 1;
    expected["unimem_pool_misses_total" + labels] = first + 2;
    expected["unimem_pool_cached_bytes" + labels] = first + 3;
    expected["unimem_pool_active_allocations" + labels] = first + 4;
    expected["unimem_pool_active_bytes" + labels] = first + 5;
    expected["unimem_pool_peak_active_bytes" + labels] = first + 6;
    expected["unimem_pool_slack_bytes" + labels] = first + 7;
    expected["unimem_pool_reserved_bytes" + labels] = first + 8;
    expected["unimem_pool_peak_reserved_bytes" + labels] = first + 9;
    expected["unimem_pool_failed_allocations_total" + labels] = first + 10;
    expected["unimem_pool_seizures_total" + labels] = first + 11;
    expected["unimem_pool_trims_total" + labels] = first + 12;
    expected["unimem_pool_waits_total" + labels] = first + 13;
    first = 300;
  }
  EXPECT_EQ(numbers_of(text), expected);
  EXPECT_THAT(text, HasSubstr("# HELP unimem_allocations_total Blocks handed out by all pools\n"
                              "# TYPE unimem_allocations_total counter\nunimem_allocations_total 101\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE unimem_active_bytes gauge\nunimem_active_bytes 103\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE unimem_spilled_bytes_total counter\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE unimem_spill_files gauge\n"));
}

TEST(Prometheus, HasTypeAndHelpOncePerFamily) {
  if (!can_expose_to_prometheus()) GTEST_SKIP() << "built without prometheus-cpp";
  std::istringstream lines(to_prometheus(some_statistics()));
  std::string family;
  std::size_t families = 0, numbers = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# HELP ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      ++families;
    } else if (!line.starts_with("# TYPE ")) {
      EXPECT_THAT(line, StartsWith(family));
      ++numbers;
    }
  }
  EXPECT_EQ(families, 35U + 14U);
  EXPECT_EQ(numbers, 35U + 2 * 14U);
}

/// What `counts_from(first)` is to be exposed as.
void add_counts(std::map<std::string, double>& numbers, std::string const& prefix, std::string const& labels,
                unsigned first) {
  numbers[prefix + "allocations_total" + labels] = first;
  numbers[prefix + "releases_total" + labels] = first + 1;
  numbers[prefix + "live_bytes" + labels] = first + 2;
  numbers[prefix + "peak_bytes" + labels] = first + 3;
  numbers[prefix + "allocated_bytes_total" + labels] = first + 4;
  numbers[prefix + "seconds_alive_total" + labels] = first + 5.5;
  numbers[prefix + "longest_seconds" + labels] = first + 6.25;
  numbers[prefix + "copies_in_total" + labels] = first + 7;
  numbers[prefix + "bytes_in_total" + labels] = first + 8;
  numbers[prefix + "copies_out_total" + labels] = first + 9;
  numbers[prefix + "bytes_out_total" + labels] = first + 10;
  numbers[prefix + "host_reads_total" + labels] = first + 11;
  numbers[prefix + "host_writes_total" + labels] = first + 12;
  numbers[prefix + "device_reads_total" + labels] = first + 13;
  numbers[prefix + "device_writes_total" + labels] = first + 14;
}

TEST(Prometheus, UsageHasEveryCount) {
  if (!can_expose_to_prometheus()) GTEST_SKIP() << "built without prometheus-cpp";
  Usage usage;
  usage.lines.push_back({.device = "cpu", .location = Location::host, .name = "x", .counts = counts_from(100)});
  usage.lines.push_back({.device = "cpu", .location = Location::host, .name = "y", .counts = counts_from(200)});
  usage.places.push_back({.device = "cpu", .location = Location::host, .counts = counts_from(300)});
  usage.total = counts_from(400);
  std::map<std::string, double> expected;
  add_counts(expected, "unimem_usage_", R"({device="cpu",location="host",name="x"})", 100);
  add_counts(expected, "unimem_usage_", R"({device="cpu",location="host",name="y"})", 200);
  add_counts(expected, "unimem_usage_place_", R"({device="cpu",location="host"})", 300);
  add_counts(expected, "unimem_usage_all_", "", 400);
  EXPECT_EQ(numbers_of(to_prometheus(usage)), expected);
}

TEST(Prometheus, NamesOfBuffersAreEscaped) {
  if (!can_expose_to_prometheus()) GTEST_SKIP() << "built without prometheus-cpp";
  Usage usage;
  UsageLine line;
  line.device = "cpu";
  line.location = Location::host;
  line.name = "a \"quoted\" name\nof two lines";
  line.counts.live_bytes = 77;
  usage.lines.push_back(line);
  EXPECT_THAT(to_prometheus(usage), HasSubstr("unimem_usage_live_bytes{device=\"cpu\",location=\"host\",name=\"a "
                                              "\\\"quoted\\\" name\\nof two lines\"} 77"));
}

TEST(Prometheus, OfASnapshotHasAllItsParts) {
  if (!can_expose_to_prometheus()) GTEST_SKIP() << "built without prometheus-cpp";
  MemorySnapshot snapshot;
  snapshot.statistics = some_statistics();
  UsageLine line;
  line.device = "cpu";
  line.counts.live_bytes = 77;
  snapshot.usage.lines.push_back(line);
  snapshot.limits.push_back({.device = "sim:0", .location = Location::pinned, .limit_bytes = 5'000});
  EXPECT_EQ(to_prometheus(snapshot), to_prometheus(snapshot.statistics) + to_prometheus(snapshot.usage) +
                                         "# HELP unimem_limit_bytes The most that may be taken from the device\n"
                                         "# TYPE unimem_limit_bytes gauge\n"
                                         "unimem_limit_bytes{device=\"sim:0\",location=\"pinned\"} 5000\n");
}

TEST(Prometheus, IsRefusedWhereTheLibraryLacksIt) {
  if (can_expose_to_prometheus()) GTEST_SKIP() << "it has";
  EXPECT_THROW(std::ignore = to_prometheus(GlobalMemoryStatistics{}), UnsupportedOperation);
  EXPECT_THROW(std::ignore = to_prometheus(Usage{}), UnsupportedOperation);
  EXPECT_THROW(std::ignore = to_prometheus(MemorySnapshot{}), UnsupportedOperation);
}

}  // namespace
}  // namespace unimem
