#include <unimem/report/text.hpp>

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
  return {{cpu, opencl}, {{Backend::metal, "Metal needs macOS"}}};
}

TEST(Text, ADeviceListIsATableWithItsColumnsAligned) {
  EXPECT_EQ(to_text(devices_of_unequal_width()),
            "device     memory  free      name\n"
            "cpu        1 GiB   1 MiB     Processor\n"
            "opencl:10  2 KiB   1.50 KiB  Accelerator\n"
            "no metal device: Metal needs macOS\n");
}

TEST(Text, InFullADeviceSaysWhatItCanDoAndLeavesOutWhatIsUnknown) {
  auto const text = to_text(devices_of_unequal_width(), ReportDetail::full);
  EXPECT_THAT(text, HasSubstr("opencl:10  Accelerator\n  backend        opencl\n  kind           GPU\n"
                              "  driver         OpenCL 3.0\n  memory         2 KiB, 1.50 KiB free\n"));
  EXPECT_THAT(text, HasSubstr("  can do         host kernels, 64-bit floating point, memory shared with the host\n"));
  EXPECT_THAT(text, HasSubstr("  can do         source kernels\n"));
  EXPECT_THAT(text, Not(HasSubstr("vendor")));
}

TEST(Text, LinksAreATableAndWhoHasNoneIsNamed) {
  auto list = devices_of_unequal_width();
  list.links =
      std::vector<Link>{{.from = "host", .to = "opencl:10", .bytes_per_second = 12.34e9, .latency_seconds = 10.5e-6},
                        {.from = "opencl:10",
                         .to = "host",
                         .bytes_per_second = std::numeric_limits<double>::infinity(),
                         .latency_seconds = 2e-3,
                         .via_host = true,
                         .source = LinkSource::configured}};
  EXPECT_THAT(to_text(list), HasSubstr("no metal device: Metal needs macOS\n"
                                       "\n"
                                       "from       to         bandwidth   latency   figures\n"
                                       "host       opencl:10  12.34 GB/s  10.50 us  measured\n"
                                       "opencl:10  host       as memory   2.00 ms   configured, via the host\n"
                                       "no link to cpu: its memory is the host's\n"));
}

TEST(Text, InFullADeviceSaysWhatLimitsIt) {
  auto list = devices_of_unequal_width();
  list.devices[0].info.limited_by = "the container's memory limit of 1 GiB";
  EXPECT_THAT(to_text(list, ReportDetail::full),
              HasSubstr("\n  limited by     the container's memory limit of 1 GiB\n"));
}

TEST(Text, PoolStatisticsAreOneLineThatCountsInWords) {
  PoolStatistics statistics;
  EXPECT_EQ(to_text(statistics), "0 allocations, 0 from the pool; 0 B in use, 0 B cached, at most 0 B reserved\n");
  statistics.total_allocations = 1;
  statistics.pool_hits = 1;
  statistics.active_bytes = 4'096;
  statistics.peak_reserved_bytes = std::size_t{1} << 20;
  EXPECT_EQ(to_text(statistics), "1 allocation, 1 from the pool; 4 KiB in use, 0 B cached, at most 1 MiB reserved\n");
}

TEST(Text, UsageIsATableByDeviceLocationAndName) {
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
