#include <unimem/core/error.hpp>

#include "core/container_limit.hpp"
#include "core/sanitizers.hpp"
#include "core/sizes.hpp"
#include "device/container_tree.hpp"
#include "device/cpu/cpu_device.hpp"
#include "device/cpu/machine.hpp"
#include "device/host_memory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace unimem {
namespace {

using detail::ContainerLimit;
using ::testing::HasSubstr;

class Container : public ::testing::Test {
 protected:
  [[nodiscard]] ContainerLimit limit() const { return ContainerLimit{tree.groups(), tree.membership()}; }

  ContainerTree tree;
};

TEST_F(Container, NoGroupsAreNoLimit) {
  EXPECT_FALSE(limit().exists()) << "nothing is there to be read";
  tree.belong_to("garbage\n4:memory\n::\n0::/\n");
  auto const none = limit();
  EXPECT_FALSE(none.exists());
  EXPECT_FALSE(none.smallest());
  EXPECT_FALSE(none.tightest());
}

TEST_F(Container, EachVersionsWordForNone) {
  tree.belong_to("4:memory:/first\n0::/second\n");
  tree.add_first("first", "9223372036854771712", 5 * MiB);
  tree.add_second("second", "max", 5 * MiB);
  EXPECT_FALSE(limit().exists());
}

TEST_F(Container, ALimitOfNothingIsNone) {
  tree.belong_to("4:memory:/first\n0::/outer/second\n");
  tree.add_first("first", "0", 0);
  tree.add_second("outer/second", "0", 0);
  EXPECT_FALSE(limit().exists());
  tree.add_second("outer", std::to_string(GiB), 0);
  auto const found = limit().smallest();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->limit, GiB);
}

TEST_F(Container, UseExcludesCachedFiles) {
  tree.belong_to("9:name=systemd:/x\n4:memory:/first\n");
  tree.add_first("first", std::to_string(GiB), 300 * MiB, 100 * MiB);
  auto found = limit().smallest();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->limit, GiB);
  EXPECT_EQ(found->used, 200 * MiB);
  EXPECT_EQ(found->room(), 824 * MiB);
  EXPECT_EQ(found->group, tree.groups() / "memory" / "first");

  tree.belong_to("0::/second\n");
  tree.add_second("second", std::to_string(2 * GiB), 300 * MiB, 50 * MiB);
  found = limit().smallest();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->limit, 2 * GiB);
  EXPECT_EQ(found->used, 250 * MiB);
  EXPECT_EQ(found->group, tree.groups() / "second");
}

TEST_F(Container, TheSmallestNestedLimitCounts) {
  tree.belong_to("0::/outer/middle/inner\n");
  tree.add_second("outer", std::to_string(2 * GiB), 0);
  tree.add_second("outer/middle", std::to_string(GiB), 0);
  tree.add_second("outer/middle/inner", "max", 0);
  tree.add_second("elsewhere", std::to_string(MiB), 0);
  EXPECT_EQ(limit().smallest().value().limit, GiB);
  tree.add_second("outer/middle/inner", std::to_string(512 * MiB), 0);
  EXPECT_EQ(limit().smallest().value().limit, 512 * MiB);
}

TEST_F(Container, AFilledParentGroupLeavesLess) {
  tree.belong_to("4:memory:/outer/inner\n");
  tree.add_first("outer", std::to_string(4 * GiB), 4 * GiB - 10 * MiB);
  tree.add_first("outer/inner", std::to_string(GiB), 100 * MiB);
  EXPECT_EQ(limit().smallest().value().limit, GiB);
  auto const tightest = limit().tightest();
  ASSERT_TRUE(tightest);
  EXPECT_EQ(tightest->room(), 10 * MiB);
  EXPECT_EQ(tightest->group, tree.groups() / "memory" / "outer");
}

TEST_F(Container, APartlyMountedPathCounts) {
  tree.belong_to("4:memory:/docker/0123456789\n");
  tree.add_first("", std::to_string(GiB), 0);
  EXPECT_EQ(limit().smallest().value().limit, GiB);
  EXPECT_EQ(limit().smallest().value().group, tree.groups() / "memory");
}

TEST_F(Container, BothVersionsAtOnceBindTogether) {
  tree.belong_to("4:memory:/a\n0::/b\n");
  tree.add_first("a", std::to_string(2 * GiB), 0);
  tree.add_second("b", std::to_string(GiB), 0);
  EXPECT_EQ(limit().smallest().value().limit, GiB);
}

TEST_F(Container, LimitAndUseAreReadAtEachQuestion) {
  tree.belong_to("0::/a\n");
  tree.add_second("a", std::to_string(GiB), 0);
  auto const one = limit();
  EXPECT_EQ(one.tightest().value().room(), GiB);
  tree.add_second("a", std::to_string(GiB / 2), 2 * GiB);
  EXPECT_EQ(one.tightest().value().limit, GiB / 2);
  EXPECT_EQ(one.tightest().value().room(), 0U) << "not less than nothing";
  tree.add_second("a", "max", 0);
  EXPECT_FALSE(one.tightest());
}

/// The cpu device in a container of 1 GiB, of which others use some.
class CpuInContainer : public Container {
 protected:
  CpuInContainer() { use(0); }

  void use(std::size_t bytes) const {
    tree.belong_to("0::/a\n");
    tree.add_second("a", std::to_string(GiB), bytes);
  }

  static std::optional<OutOfMemory> refusal(Device& device, std::size_t bytes, Location location) {
    try {
      device.release(device.allocate(bytes, location), location);
      return std::nullopt;
    } catch (OutOfMemory const& error) {
      return error;
    }
  }
};

TEST_F(CpuInContainer, IsAsLargeAsTheContainer) {
  detail::CpuDevice cpu{limit()};
  EXPECT_EQ(cpu.info().total_bytes, std::min(GiB, detail::physical_memory_bytes()));
  EXPECT_EQ(cpu.memory_info().total_bytes, cpu.info().total_bytes);
  EXPECT_THAT(cpu.info().limited_by, HasSubstr("container's memory limit of 1 GiB"));
  EXPECT_THAT(cpu.info().limited_by, HasSubstr((tree.groups() / "a").string()));
}

TEST_F(CpuInContainer, RefusesMoreThanTheContainerAndNamesIt) {
  detail::CpuDevice cpu{limit()};
  for (auto const location : {Location::device, Location::host, Location::pinned, Location::unified}) {
    auto const error = refusal(cpu, 4 * GiB, location);
    ASSERT_TRUE(error) << to_string(location);
    EXPECT_EQ(error->limit(), cpu.info().total_bytes);
    EXPECT_THAT(error->facts().reason, HasSubstr("the container's memory limit of 1 GiB"));
  }
}

TEST_F(CpuInContainer, RefusesBeforeAnythingIsTaken) {
  use(600 * MiB);
  detail::CpuDevice cpu{limit()};
  EXPECT_EQ(cpu.headroom(), 424 * MiB);
  EXPECT_LE(cpu.memory_info().free_bytes, 424 * MiB);
  for (auto const location : {Location::host, Location::pinned}) {
    auto const error = refusal(cpu, 700 * MiB, location);
    ASSERT_TRUE(error) << to_string(location);
    EXPECT_EQ(error->requested(), 700 * MiB);
    EXPECT_EQ(error->limit(), GiB);
    EXPECT_EQ(error->live(), 0U);
    EXPECT_THAT(error->facts().reason, HasSubstr("the container's memory limit of 1 GiB"));
    EXPECT_THAT(error->facts().reason, HasSubstr("leaves"));
  }
  EXPECT_EQ(cpu.headroom(), 424 * MiB);
  use(100 * MiB);
  EXPECT_FALSE(refusal(cpu, 700 * MiB, Location::host)) << "they have gone";
}

/// A shared file's pages are counted where they are, and not once more as the block that stands for them in a pool.
TEST_F(CpuInContainer, CountsMemoryElsewhereOnce) {
  detail::CpuDevice cpu{limit()};
  auto const block = cpu.allocate(300 * MiB, Location::host);
  auto const before = cpu.headroom();
  EXPECT_LE(before, 724 * MiB);
  use(300 * MiB);
  detail::count_elsewhere(300 * MiB);
  auto const with = cpu.headroom();
  EXPECT_GE(with + MiB, before);
  EXPECT_LE(with, 724 * MiB);
  detail::count_elsewhere_no_more(300 * MiB);
  use(0);
  cpu.release(block, Location::host);
}

TEST_F(CpuInContainer, CountsUntouchedMemory) {
  auto const others = 300 * MiB;
  use(others);
  detail::CpuDevice cpu{limit()};
  auto const first = cpu.allocate(500 * MiB, Location::host);  // the kernel's figure has not moved
  EXPECT_TRUE(refusal(cpu, 240 * MiB, Location::host)) << "500 MiB are promised";
  EXPECT_FALSE(refusal(cpu, 200 * MiB, Location::host));
  cpu.release(first, Location::host);
  EXPECT_FALSE(refusal(cpu, 700 * MiB, Location::host)) << "and given back";
}

TEST_F(CpuInContainer, SmallRequestsComeToTheLimitToo) {
  if (detail::under_thread_sanitizer) GTEST_SKIP() << "what it notes of the memory is resident too, and passes for it";
  use(GiB - 64 * MiB);
  detail::CpuDevice cpu{limit()};
  std::vector<DeviceMemory> taken;
  constexpr std::size_t piece = 64 << 10;
  try {
    while (taken.size() * piece < 2 * GiB) taken.push_back(cpu.allocate(piece, Location::host));
  } catch (OutOfMemory const& error) {
    EXPECT_THAT(error.facts().reason, HasSubstr("the container's memory limit"));
  }
  EXPECT_GE(taken.size() * piece, 62 * MiB);
  EXPECT_LE(taken.size() * piece, 128 * MiB)
      << "what the test, or AddressSanitizer, takes meanwhile may pass for as much of them";
  for (auto const memory : taken) cpu.release(memory, Location::host);
}

TEST_F(CpuInContainer, ServesOneOfTwoThatDoNotFit) {
  use(GiB - 300 * MiB);
  detail::CpuDevice cpu{limit()};
  constexpr int rounds = 50;
  std::barrier both{2};
  std::atomic<int> granted{0};
  auto const ask = [&] {
    for (int round = 0; round < rounds; ++round) {
      std::optional<DeviceMemory> memory;
      both.arrive_and_wait();
      try {
        memory = cpu.allocate(200 * MiB, Location::host);
        ++granted;
      } catch (OutOfMemory const&) {
      }
      both.arrive_and_wait();
      EXPECT_EQ(granted, round + 1);
      if (memory) cpu.release(*memory, Location::host);
      both.arrive_and_wait();
    }
  };
  {
    std::jthread const other{ask};
    ask();
  }
  EXPECT_EQ(cpu.headroom() / (16 * MiB), 300 / 16) << "nothing is left of those that were refused";
}

TEST_F(CpuInContainer, RefusedRequestsBlockNoOthers) {
  use(300 * MiB);
  {
    // So long that whoever reads it is still at it when another asks.
    std::ofstream statistics{tree.groups() / "a" / "memory.stat"};
    for (int line = 0; line < 200'000; ++line) statistics << "filler 1\n";
  }
  detail::CpuDevice cpu{limit()};
  for (int round = 0; round < 4; ++round) {
    std::atomic<bool> asking{false};
    std::jthread const greedy{[&] {
      asking = true;
      asking.notify_one();
      EXPECT_TRUE(refusal(cpu, 800 * MiB, Location::host)) << "the container leaves 724 MiB";
    }};
    asking.wait(false);
    EXPECT_FALSE(refusal(cpu, 300 * MiB, Location::host)) << "it fits, whatever else is asked for";
  }
}

TEST_F(CpuInContainer, ReturnedMemoryIsNotCounted) {
  constexpr auto flags = MAP_PRIVATE | MAP_ANONYMOUS;
  auto const touch = [](void* memory, std::size_t bytes) {
    for (std::size_t at = 0; at < bytes; at += 4096) static_cast<std::byte volatile*>(memory)[at] = std::byte{1};
  };
  auto* const own = ::mmap(nullptr, 200 * MiB, PROT_READ | PROT_WRITE, flags, -1, 0);
  ASSERT_NE(own, MAP_FAILED);
  touch(own, 200 * MiB);
  detail::CpuDevice cpu{limit()};  // first of all it sees a program that has much memory of its own
  ::munmap(own, 200 * MiB);
  EXPECT_EQ(cpu.headroom(), GiB);
  auto const memory = cpu.allocate(200 * MiB, Location::host);
  touch(reinterpret_cast<void*>(memory.object), 200 * MiB);
  use(200 * MiB);  // as the kernel would say
  EXPECT_GE(cpu.headroom(), GiB - 200 * MiB - 32 * MiB) << "counted once";
  EXPECT_LE(cpu.headroom(), GiB - 200 * MiB);
  cpu.release(memory, Location::host);
}

TEST(CpuWithoutContainer, AsksNobody) {
  ContainerTree const tree;
  detail::CpuDevice const cpu{ContainerLimit{tree.groups(), tree.membership()}};
  EXPECT_EQ(cpu.headroom(), std::numeric_limits<std::size_t>::max());
  EXPECT_EQ(cpu.info().total_bytes, detail::physical_memory_bytes());
  EXPECT_EQ(cpu.info().limited_by, "");
}

}  // namespace
}  // namespace unimem
