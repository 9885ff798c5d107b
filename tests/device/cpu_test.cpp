#include <unimem/device/discovery.hpp>

#include "device/cpu/machine.hpp"
#include "device/device_conformance.hpp"
#include "device/without_locking.hpp"
#include "resident_bytes.hpp"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

namespace unimem {
namespace {

Device& cpu() {
  return device("cpu");
}

ProgramSource throwing_kernel() {
  return {"throws", "", [](Range, std::size_t, std::size_t, std::span<const HostArgument>) {
            throw std::out_of_range("the kernel's own words");
          }};
}

INSTANTIATE_TEST_SUITE_P(Cpu, DeviceConformance,
                         ::testing::Values(DeviceCase{
                             "cpu", cpu,
                             [](Queue& queue) { return queue.run(cpu().compile(throwing_kernel()), Range{1}, {}); }}),
                         case_name);

TEST(Cpu, IsTheHost) {
  EXPECT_EQ(cpu().id(), "cpu");
  EXPECT_EQ(cpu().backend(), Backend::cpu);
  EXPECT_TRUE(cpu().shares_storage_with_host());
  EXPECT_TRUE(cpu().info().runs_host_form);
  EXPECT_FALSE(cpu().info().compiles_source);
  EXPECT_FALSE(cpu().info().is_gpu);
  auto const physical =
      static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  EXPECT_LE(cpu().info().total_bytes, physical);
  EXPECT_LE(cpu().memory_info().free_bytes, cpu().info().total_bytes);
}

TEST(Cpu, HandsOutAddressesTheHostCanUse) {
  for (auto const location : {Location::device, Location::host, Location::unified}) {
    Allocated const piece{cpu(), 300'000, location};
    auto const news = noise(300'000, 1);
    std::memcpy(cpu().address(piece.memory()), news.data(), news.size());
    Bytes result(news.size());
    cpu().default_queue().download(result.data(), piece.memory(), result.size()).wait();
    EXPECT_EQ(result, news);
  }
}

TEST(Cpu, LargeMemoryReturnsToTheSystemWhenReleased) {
  constexpr std::size_t bytes = std::size_t{64} << 20;
  auto const before = testing::resident_bytes();
  {
    Allocated const piece{cpu(), bytes};
    EXPECT_LT(testing::resident_bytes(), before + bytes / 2) << "nothing is touched yet";
    std::memset(cpu().address(piece.memory()), 1, bytes);
    EXPECT_GE(testing::resident_bytes(), before + bytes / 2);
  }
  EXPECT_LT(testing::resident_bytes(), before + bytes / 2);
}

TEST(Cpu, HasNoNativeQueue) {
  EXPECT_THROW(static_cast<void>(cpu().default_queue().native<void*>()), UnsupportedOperation);
}

TEST(CpuKernel, ExceptionsBecomeTheRunsError) {
  auto queue = cpu().create_queue();
  auto const event = queue.run(cpu().compile(throwing_kernel()), Range{1}, {});
  try {
    event.wait();
    FAIL() << "the kernel's exception was lost";
  } catch (std::out_of_range const& error) {
    EXPECT_STREQ(error.what(), "the kernel's own words");
  }
}

TEST(CpuKernel, AThreadsExceptionIsTheRunsError) {
  Allocated const piece{cpu(), 8 << 20};
  auto queue = cpu().create_queue();
  auto const program = cpu().compile({"one_bad_item", "", [](Range, std::size_t begin, std::size_t end, auto) {
                                        if (begin <= 777 && 777 < end) throw std::out_of_range("item 777");
                                      }});
  for (int round = 0; round < 20; ++round) {
    std::array const arguments{memory_argument(piece.memory())};
    auto const event = queue.run(program, Range{100'000}, arguments);
    EXPECT_EQ(message_of(event.wait_for_error()), "item 777");
  }
}

/// Which parts of a range a loop was called for.
struct Parts {
  std::mutex mutex;
  std::vector<std::pair<std::size_t, std::size_t>> parts;
  std::set<std::thread::id> threads;

  ProgramSource kernel() {
    return {"parts", "", [this](Range, std::size_t begin, std::size_t end, std::span<const HostArgument>) {
              std::lock_guard const lock{mutex};
              parts.emplace_back(begin, end);
              threads.insert(std::this_thread::get_id());
            }};
  }
};

TEST(CpuKernel, IsSplitForLargeMemoryOnly) {
  auto queue = cpu().create_queue();
  Allocated const large{cpu(), 1 << 20};
  struct Case {
    std::size_t bytes;
    Range range;
    bool split;
  };
  for (auto const& [bytes, range, split] : {Case{(1 << 20) - 1, {100'000}, false}, Case{1 << 20, {1}, false},
                                            Case{1 << 20, {100'000}, cpu().info().compute_units > 1}}) {
    Parts seen;
    std::array const arguments{memory_argument(large.window(0, bytes))};
    queue.run(cpu().compile(seen.kernel()), range, arguments).wait();
    EXPECT_EQ(seen.parts.size() > 1, split) << bytes << " bytes, " << range.x << " items";
  }
}

TEST(CpuKernel, PartsAreDisjointAndCoverTheRange) {
  auto queue = cpu().create_queue();
  Allocated const piece{cpu(), 2 << 20};
  for (auto const range :
       {Range{2}, Range{3}, Range{17}, Range{1000}, Range{65'537}, Range{7, 11, 13}, Range{1, 1, 5}}) {
    SCOPED_TRACE(::testing::Message() << range.x << " x " << range.y << " x " << range.z);
    Parts seen;
    std::array const arguments{memory_argument(piece.memory())};
    queue.run(cpu().compile(seen.kernel()), range, arguments).wait();
    std::sort(seen.parts.begin(), seen.parts.end());
    std::size_t next = 0;
    for (auto const& [begin, end] : seen.parts) {
      ASSERT_EQ(begin, next);
      ASSERT_LT(begin, end);
      next = end;
    }
    EXPECT_EQ(next, range.items());
  }
}

TEST(CpuKernel, IsHandedAddressesWindowsAndScalars) {
  Allocated const piece{cpu(), 1000};
  std::array const arguments{memory_argument(piece.window(100, 200)), scalar_argument(3.5),
                             scalar_argument(std::int8_t{-7}), memory_argument(piece.window(7, 0))};
  std::vector<HostArgument> seen;
  double number = 0;
  std::int8_t small = 0;
  auto const program =
      cpu().compile({"look", "", [&](Range, std::size_t, std::size_t, std::span<const HostArgument> given) {
                       seen.assign(given.begin(), given.end());
                       std::memcpy(&number, given[1].data, sizeof number);
                       std::memcpy(&small, given[2].data, sizeof small);
                     }});
  cpu().default_queue().run(program, Range{1}, arguments).wait();
  ASSERT_EQ(seen.size(), 4U);
  EXPECT_EQ(seen[0].data, cpu().address(piece.window(100, 200)));
  EXPECT_EQ(seen[0].bytes, 200U);
  EXPECT_EQ(seen[1].bytes, sizeof(double));
  EXPECT_EQ(number, 3.5);
  EXPECT_EQ(seen[2].bytes, 1U);
  EXPECT_EQ(small, -7);
  EXPECT_EQ(seen[3].bytes, 0U);
}

TEST(CpuPinned, PagesStayInMemory) {
  // The system's own account of it: a mapping's locked bytes.
  constexpr std::size_t bytes = 64 << 10;
  Allocated const piece{cpu(), bytes, Location::pinned};
  auto const address = reinterpret_cast<std::uintptr_t>(cpu().address(piece.memory()));
  std::ifstream maps{"/proc/self/smaps"};
  bool inside = false;
  std::size_t locked_kib = 0;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) inside = begin <= address && address < end;
    if (inside) std::sscanf(line.c_str(), "Locked: %zu kB", &locked_kib);
  }
  if (!locks_memory) GTEST_SKIP() << "sanitizers make mlock do nothing";
  EXPECT_GE(locked_kib * 1024, bytes);
}

TEST(CpuPinned, RefusedPinningNamesTheLimit) {
  if (!locks_memory) GTEST_SKIP() << "sanitizers make mlock do nothing";
  auto const free = cpu().memory_info().total_bytes;
  std::string reason;
  std::size_t requested = 0;
  without_locking([&] {
    try {
      Allocated const piece{cpu(), 1 << 20, Location::pinned};
    } catch (OutOfMemory const& error) {
      reason = error.facts().reason;
      requested = error.requested();
    }
  });
  EXPECT_THAT(reason, ::testing::HasSubstr("RLIMIT_MEMLOCK"));
  EXPECT_THAT(reason, ::testing::HasSubstr("64 KiB"));
  EXPECT_EQ(requested, std::size_t{1} << 20);
  Allocated const everything{cpu(), free};  // the refusal took nothing
}

TEST(Machine, KnowsItsProcessorAndMemory) {
  EXPECT_FALSE(detail::processor_name().empty());
  EXPECT_GT(detail::physical_memory_bytes(), std::size_t{64} << 20);
  EXPECT_LE(detail::available_memory_bytes(),
            static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
  EXPECT_TRUE(detail::system_release().starts_with("Linux"));
}

}  // namespace
}  // namespace unimem
