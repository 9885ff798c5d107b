#include <unimem/report/prometheus.hpp>

#include <unimem/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <tuple>

namespace unimem {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

GlobalMemoryStatistics some_statistics() {
  GlobalMemoryStatistics statistics;
  statistics.total_allocations = 12;
  statistics.active_bytes = 4096;
  statistics.failed_reclaims = 3;
  statistics.waits = 5;
  statistics.refused_pinnings = 7;
  statistics.spilled_bytes = 21;
  statistics.restores = 22;
  statistics.spill_files = 23;
  statistics.spill_file_bytes = 24;
  PoolUsage pool;
  pool.device = "sim:0";
  pool.location = Location::pinned;
  pool.pool.pool_hits = 9;
  statistics.pools.push_back(pool);
  pool.device = "cpu";
  pool.pool.pool_hits = 11;
  statistics.pools.push_back(pool);
  return statistics;
}

TEST(Prometheus, HasEveryNumberByItsNameWithTypeAndHelp) {
  if (!can_expose_to_prometheus()) GTEST_SKIP() << "built without prometheus-cpp";
  auto const text = to_prometheus(some_statistics());
  EXPECT_THAT(text, HasSubstr("# TYPE unimem_allocations_total counter\nunimem_allocations_total 12"));
  EXPECT_THAT(text, HasSubstr("# TYPE unimem_active_bytes gauge\nunimem_active_bytes 4096"));
  EXPECT_THAT(text, HasSubstr("unimem_failed_reclaims_total 3"));
  EXPECT_THAT(text, HasSubstr("unimem_waits_total 5"));
  EXPECT_THAT(text, HasSubstr("unimem_refused_pinnings_total 7"));
  EXPECT_THAT(text, HasSubstr("# TYPE unimem_spilled_bytes_total counter\nunimem_spilled_bytes_total 21"));
  EXPECT_THAT(text, HasSubstr("unimem_restores_total 22"));
  EXPECT_THAT(text, HasSubstr("# TYPE unimem_spill_files gauge\nunimem_spill_files 23"));
  EXPECT_THAT(text, HasSubstr("# TYPE unimem_spill_file_bytes gauge\nunimem_spill_file_bytes 24"));
  EXPECT_THAT(text, HasSubstr("unimem_pool_hits_total{device=\"sim:0\",location=\"pinned\"} 9"));
  EXPECT_THAT(text, HasSubstr("unimem_pool_hits_total{device=\"cpu\",location=\"pinned\"} 11"));
}

TEST(Prometheus, OfEachFamilyTypeAndHelpAreSaidOnceBeforeItsNumbers) {
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
  EXPECT_EQ(families, 26U + 11U);
  EXPECT_EQ(numbers, 26U + 2 * 11U);
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

TEST(Prometheus, IsRefusedWithTheReasonWhereTheLibraryHasItNot) {
  if (can_expose_to_prometheus()) GTEST_SKIP() << "it has";
  EXPECT_THROW(std::ignore = to_prometheus(GlobalMemoryStatistics{}), UnsupportedOperation);
  EXPECT_THROW(std::ignore = to_prometheus(Usage{}), UnsupportedOperation);
}

}  // namespace
}  // namespace unimem
