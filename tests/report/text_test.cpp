#include <unimem/report/text.hpp>

#include <unimem/device/discovery.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace unimem {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

DeviceList devices_of_unequal_width() {
  DeviceSnapshot cpu{.id = "cpu", .backend = Backend::cpu, .info = {}, .memory = {1 << 20, 1 << 30}};
  cpu.info.name = "Processor";
  cpu.info.runs_host_form = true;
  cpu.shares_storage_with_host = true;
  DeviceSnapshot opencl{.id = "opencl:10", .backend = Backend::opencl, .info = {}, .memory = {1'536, 2'048}};
  opencl.info.name = "Accelerator";
  opencl.info.driver = "OpenCL 3.0";
  opencl.info.compiles_source = true;
  opencl.info.is_gpu = true;
  opencl.info.doubles = false;
  opencl.info.atomics64 = false;
  return {{cpu, opencl}, {{Backend::metal, "Metal needs macOS"}}};
}

TEST(Text, ADeviceListIsAnAlignedTable) {
  EXPECT_EQ(to_text(devices_of_unequal_width()),
            "device     memory  free      name\n"
            "cpu        1 GiB   1 MiB     Processor\n"
            "opencl:10  2 KiB   1.50 KiB  Accelerator\n"
            "no metal device: Metal needs macOS\n");
}

TEST(Text, AFullListLeavesOutWhatIsUnknown) {
  auto const text = to_text(devices_of_unequal_width(), ReportDetail::full);
  EXPECT_THAT(text, HasSubstr("opencl:10  Accelerator\n  backend        opencl\n  kind           GPU\n"
                              "  driver         OpenCL 3.0\n  memory         2 KiB, 1.50 KiB free\n"));
  EXPECT_THAT(
      text,
      HasSubstr("  can do         host kernels, 64-bit floating point, 64-bit atomics, memory shared with the host\n"));
  EXPECT_THAT(text, HasSubstr("  can do         source kernels\n"));
  EXPECT_THAT(text, Not(HasSubstr("vendor")));
}

TEST(Text, LinksAreATable) {
  auto list = devices_of_unequal_width();
  list.links = std::vector<Link>{{.from = "host",
                                  .to = "opencl:10",
                                  .bytes_per_second = 12.34e9,
                                  .latency_seconds = 10.5e-6,
                                  .within_cache = true},
                                 {.from = "opencl:10",
                                  .to = "host",
                                  .bytes_per_second = std::numeric_limits<double>::infinity(),
                                  .latency_seconds = 2e-3,
                                  .via_host = true,
                                  .source = LinkSource::configured}};
  EXPECT_THAT(to_text(list), HasSubstr("no metal device: Metal needs macOS\n"
                                       "\n"
                                       "from       to         bandwidth   latency   figures\n"
                                       "host       opencl:10  12.34 GB/s  10.50 us  measured, within the cache\n"
                                       "opencl:10  host       as memory   2.00 ms   configured, via the host\n"
                                       "no link to cpu: its memory is the host's\n"));
}

TEST(Text, InFullADeviceSaysWhatLimitsIt) {
  auto list = devices_of_unequal_width();
  list.devices[0].info.limited_by = "the container's memory limit of 1 GiB";
  EXPECT_THAT(to_text(list, ReportDetail::full),
              HasSubstr("\n  limited by     the container's memory limit of 1 GiB\n"));
}

TEST(Text, LimitsAreNamedByDeviceAndLocation) {
  auto list = devices_of_unequal_width();
  list.devices[0].limits = {{Location::host, 1 << 20}, {Location::pinned, 4'096}};
  list.devices[1].limits.emplace();
  EXPECT_EQ(to_text(list),
            "device     memory  free      name\n"
            "cpu        1 GiB   1 MiB     Processor\n"
            "opencl:10  2 KiB   1.50 KiB  Accelerator\n"
            "limits of cpu: host 1 MiB, pinned 4 KiB\n"
            "no metal device: Metal needs macOS\n");
  auto const full = to_text(list, ReportDetail::full);
  EXPECT_THAT(full, HasSubstr("\n  limits         host 1 MiB, pinned 4 KiB\n"));
  EXPECT_EQ(full.find("  limits "), full.rfind("  limits ")) << "of one alone";
}

TEST(Text, PoolStatisticsAreOneLine) {
  PoolStatistics statistics;
  EXPECT_EQ(to_text(statistics), "0 allocations, 0 from the pool; 0 B in use, 0 B cached, at most 0 B reserved\n");
  statistics.total_allocations = 1;
  EXPECT_EQ(to_text(statistics), "1 allocation, 0 from the pool; 0 B in use, 0 B cached, at most 0 B reserved\n");
  statistics.total_allocations = 3;
  statistics.pool_hits = 2;
  statistics.active_bytes = 4'096;
  statistics.total_pooled_bytes = 2'048;
  statistics.peak_reserved_bytes = std::size_t{1} << 20;
  EXPECT_EQ(to_text(statistics),
            "3 allocations, 2 from the pool; 4 KiB in use, 2 KiB cached, at most 1 MiB reserved\n");
}

GlobalMemoryStatistics some_statistics() {
  GlobalMemoryStatistics statistics;
  statistics.total_allocations = 7;
  statistics.active_allocations = 3;
  statistics.active_bytes = 4'608;
  statistics.pooled_bytes = 8'192;
  statistics.reserved_bytes = 16'384;
  PoolUsage sim{.device = "sim:0", .location = Location::device, .pool = {}};
  sim.pool.total_allocations = 5;
  sim.pool.active_allocations = 2;
  sim.pool.pool_hits = 4;
  sim.pool.active_bytes = 4'096;
  sim.pool.total_pooled_bytes = 8'192;
  sim.pool.reserved_bytes = 15'360;
  PoolUsage cpu{.device = "cpu", .location = Location::pinned, .pool = {}};
  cpu.pool.total_allocations = 2;
  cpu.pool.active_allocations = 1;
  cpu.pool.pool_hits = 1;
  cpu.pool.active_bytes = 512;
  cpu.pool.reserved_bytes = 1'024;
  statistics.pools = {sim, cpu};
  return statistics;
}

TEST(Text, StatisticsAreATableByDeviceAndLocation) {
  EXPECT_EQ(to_text(some_statistics()),
            "device  location  blocks  from the pool  in use    cached  reserved\n"
            "sim:0   device    2 of 5  4              4 KiB     8 KiB   15 KiB\n"
            "cpu     pinned    1 of 2  1              512 B     0 B     1 KiB\n"
            "all               3 of 7  5              4.50 KiB  8 KiB   16 KiB\n");
}

TEST(Text, StatisticsNameWhatHappenedAndNothingElse) {
  auto statistics = some_statistics();
  auto const table = to_text(statistics);
  statistics.reclaims = 6;
  statistics.reclaimed_bytes = 1'024;
  statistics.waits = 13;
  EXPECT_EQ(to_text(statistics), table + "reclaims  6, 1 KiB\nwaits     13\n");

  statistics.failed_reclaims = 11;
  statistics.host_reclaims = 20;
  statistics.host_reclaimed_bytes = 2'048;
  statistics.failed_host_reclaims = 21;
  statistics.spills = 23;
  statistics.spilled_bytes = 3'072;
  statistics.restores = 25;
  statistics.restored_bytes = 4'096;
  statistics.direct_reads = 26;
  statistics.direct_read_bytes = 1'024;
  statistics.spill_files = 27;
  statistics.spill_file_bytes = 5'120;
  statistics.file_reads = 30;
  statistics.file_read_bytes = 6'144;
  statistics.file_direct_bytes = 2'048;
  statistics.file_uring_bytes = 1'024;
  statistics.file_mapped_bytes = 8'192;
  statistics.file_writes = 31;
  statistics.file_written_bytes = 7'168;
  statistics.cache_trims = 12;
  statistics.defragmentations = 29;
  statistics.refusals = 14;
  statistics.refused_pinnings = 15;
  statistics.missing_unified = 16;
  statistics.pressure_calls = 8;
  statistics.failed_pressure_calls = 9;
  statistics.merged_crossings = 10;
  EXPECT_EQ(to_text(statistics), table +
                                     "reclaims               6, 1 KiB\n"
                                     "failed_reclaims        11\n"
                                     "host_reclaims          20, 2 KiB\n"
                                     "failed_host_reclaims   21\n"
                                     "spills                 23, 3 KiB\n"
                                     "restores               25, 4 KiB\n"
                                     "direct_reads           26, 1 KiB\n"
                                     "spill_files            27, 5 KiB\n"
                                     "file_reads             30, 6 KiB\n"
                                     "file_direct_bytes      2 KiB\n"
                                     "file_uring_bytes       1 KiB\n"
                                     "file_mapped_bytes      8 KiB\n"
                                     "file_writes            31, 7 KiB\n"
                                     "cache_trims            12\n"
                                     "defragmentations       29\n"
                                     "waits                  13\n"
                                     "refusals               14\n"
                                     "refused_pinnings       15\n"
                                     "missing_unified        16\n"
                                     "pressure_calls         8\n"
                                     "failed_pressure_calls  9\n"
                                     "merged_crossings       10\n");
}

TEST(Text, ASnapshotIsItsParts) {
  MemorySnapshot snapshot;
  snapshot.statistics = some_statistics();
  snapshot.limits = {{.device = "sim:0", .location = Location::device, .limit_bytes = 1 << 20}};
  EXPECT_EQ(to_text(snapshot), "statistics\n" + to_text(snapshot.statistics) + "\nusage\n" + to_text(snapshot.usage) +
                                   "\nlimits\ndevice  location  at most\nsim:0   device    1 MiB\n\nlive\nnothing\n");
  snapshot.live.bytes = 700;
  snapshot.live.allocations.push_back(
      {.buffer = 42, .device = &device("cpu"), .location = Location::host, .bytes = 700});
  EXPECT_THAT(to_text(snapshot), HasSubstr("\nlive\n" + snapshot.live.text()));
}

TEST(Text, UsageIsATable) {
  Usage usage;
  UsageLine line{.device = "sim:0", .location = Location::device, .name = "weights", .counts = {}};
  line.counts = {.allocations = 3, .releases = 1, .live_bytes = 4'096, .peak_bytes = 8'192, .bytes_in = 512};
  usage.lines.push_back(line);
  line.device = "cpu";
  line.location = Location::host;
  line.name.clear();
  usage.lines.push_back(line);
  usage.total = {.allocations = 6, .releases = 2, .live_bytes = 8'192, .peak_bytes = 16'384, .bytes_in = 1'024};
  EXPECT_EQ(to_text(usage),
            "device  location  live   peak    pieces  copied in  name\n"
            "sim:0   device    4 KiB  8 KiB   2 of 3  512 B      weights\n"
            "cpu     host      4 KiB  8 KiB   2 of 3  512 B      -\n"
            "all               8 KiB  16 KiB  4 of 6  1 KiB      \n");
}

}  // namespace
}  // namespace unimem
