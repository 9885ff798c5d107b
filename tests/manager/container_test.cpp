#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "core/sizes.hpp"
#include "device/contained_run.hpp"
#include "device/container_tree.hpp"
#include "device/cpu/cpu_device.hpp"
#include "device/cpu/machine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace unimem {
namespace {

using ::testing::HasSubstr;

struct PodTree : ContainerTree {
  PodTree() {
    belong_to("0::/pod/mine\n");
    add_second("pod", std::to_string(2 * GiB), 500 * MiB);
    add_second("pod/mine", std::to_string(GiB), 300 * MiB);
  }
};

/// A manager on a machine that is a container of 1 GiB, of which others use 300 MiB.
class ManagerInContainer : public ::testing::Test {
 protected:
  [[nodiscard]] std::optional<OutOfMemory> refusal(std::size_t bytes, Location location) {
    try {
      auto const block = manager.acquire(cpu, location, bytes);
      return std::nullopt;
    } catch (OutOfMemory const& error) {
      return error;
    }
  }

  PodTree const tree;
  detail::CpuDevice cpu{detail::ContainerLimit{tree.groups(), tree.membership()}};
  MemoryManager manager;
};

TEST_F(ManagerInContainer, FourGibibytesPinnedAreRefusedByName) {
  auto const error = refusal(4 * GiB, Location::pinned);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->facts().where, "cpu pinned");
  EXPECT_EQ(error->requested(), 4 * GiB);
  EXPECT_EQ(error->limit(), cpu.info().total_bytes);
  EXPECT_THAT(error->facts().reason, HasSubstr("the container's memory limit of 1 GiB"));
  EXPECT_THAT(error->what(), HasSubstr((tree.groups() / "pod" / "mine").string()));
}

TEST_F(ManagerInContainer, MemoryOfOtherProcessesIsUnavailable) {
  for (auto const location : {Location::host, Location::pinned}) {
    auto const error = refusal(800 * MiB, location);
    ASSERT_TRUE(error) << to_string(location);
    EXPECT_THAT(error->facts().reason, HasSubstr("the container's memory limit of 1 GiB"));
    EXPECT_THAT(error->facts().reason, HasSubstr("leaves 7"));
  }
  EXPECT_EQ(cpu.headroom(), 724 * MiB) << "nothing was kept of what was refused";
  EXPECT_FALSE(refusal(500 * MiB, Location::host));
}

TEST_F(ManagerInContainer, MemoryTheProgramTouchesIsUnavailable) {
  std::vector<char> own(200 * MiB, 1);                          // touched when the device already looks
  tree.add_second("pod/mine", std::to_string(GiB), 500 * MiB);  // as the kernel would count it
  auto const error = refusal(600 * MiB, Location::host);
  ASSERT_TRUE(error);
  EXPECT_THAT(error->facts().reason, HasSubstr("leaves 52"));
  EXPECT_FALSE(refusal(500 * MiB, Location::host));
  EXPECT_EQ(own[own.size() / 2], 1);
}

TEST_F(ManagerInContainer, TotalAndAvailableMemoryFollowTheContainer) {
  EXPECT_EQ(manager.total_memory(cpu), std::min(GiB, detail::physical_memory_bytes()));
  EXPECT_EQ(manager.available_memory(cpu), 724 * MiB);
  auto block = manager.acquire(cpu, Location::host, 400 * MiB);
  EXPECT_LE(manager.available_memory(cpu), 400 * MiB) << "host memory counts, touched or not";
  block.release();
  EXPECT_GE(manager.available_memory(cpu), 720 * MiB)
      << "cached blocks count as free, but for the tables that map them";
}

TEST_F(ManagerInContainer, CachedBlocksGoBackBeforeARefusal) {
  manager.acquire(cpu, Location::host, 400 * MiB).release();
  manager.acquire(cpu, Location::device, 200 * MiB).release();
  EXPECT_FALSE(refusal(700 * MiB, Location::unified));
}

/// What a process in a real container of 1 GiB does; started anew by the test below, as this very program.
TEST(ContainedPrograms, DISABLED_OneAsksForFourGibibytes) {
  auto& cpu = device("cpu");
  ASSERT_EQ(cpu.info().total_bytes, GiB) << "it is in the group";
  for (auto const location : {Location::pinned, Location::host}) {
    try {
      auto const block = default_manager().acquire(cpu, location, 4 * GiB);
      ADD_FAILURE() << "was granted";
    } catch (OutOfMemory const& error) {
      EXPECT_THAT(error.facts().reason, HasSubstr("the container's memory limit of 1 GiB"));
    }
  }
  // It lives, and may use what it has; of that, what is not there any more is refused too.
  std::vector<Allocation> blocks;
  for (int value = 1; value <= 4; ++value) {
    blocks.push_back(default_manager().acquire(cpu, Location::host, 64 * MiB));
    std::memset(blocks.back().data(), value, blocks.back().size());
  }
  for (auto const location : {Location::pinned, Location::host}) {
    try {
      auto const block = default_manager().acquire(cpu, location, 900 * MiB);
      ADD_FAILURE() << "was granted";
    } catch (OutOfMemory const& error) {
      EXPECT_THAT(error.facts().reason, HasSubstr("the container's memory limit of 1 GiB"));
    }
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    auto const* const bytes = static_cast<unsigned char const*>(blocks[i].data());
    EXPECT_EQ(bytes[0], i + 1);
    EXPECT_EQ(bytes[blocks[i].size() - 1], i + 1);
  }
}

TEST(RealContainer, RefusesFourGibibytesWithoutKillingTheProcess) {
  run_contained("ContainedPrograms.DISABLED_*");
}

}  // namespace
}  // namespace unimem
