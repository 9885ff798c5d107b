#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "core/sizes.hpp"
#include "manager/environment_limits.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <string>

// Limits that come from outside of a program.

namespace unimem {
namespace {

using detail::EnvironmentLimits;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto unlimited = std::numeric_limits<std::size_t>::max();

class LimitsFromOutside : public ::testing::Test {
 protected:
  ~LimitsFromOutside() override { unsetenv("UNIMEM_LIMITS"); }
  static void say(std::string const& text) { setenv("UNIMEM_LIMITS", text.c_str(), 1); }

  Device& sim = make_sim({.memory_bytes = 64 * MiB});
  Device& other = make_sim({.memory_bytes = 64 * MiB});
  std::string id{sim.id()};
};

TEST_F(LimitsFromOutside, AreOfADeviceAndALocation) {
  auto& cpu = device("cpu");
  EnvironmentLimits const limits{fmt::format("{}=8MiB;cpu/pinned=3MiB;cpu=1GiB;{}/unified=5", id, id)};
  EXPECT_EQ(limits.of(sim, Location::device), 8 * MiB);
  EXPECT_EQ(limits.of(sim, Location::unified), 5U);
  EXPECT_EQ(limits.of(cpu, Location::pinned), 3 * MiB);
  EXPECT_EQ(limits.of_the_host(), 1024 * MiB);
  EXPECT_EQ(limits.of(cpu, Location::host), unlimited) << "within all of the host's";
  EXPECT_EQ(limits.of(cpu, Location::device), unlimited);
  EXPECT_EQ(limits.of(other, Location::device), unlimited);
}

TEST_F(LimitsFromOutside, OfHostMemoryHoldWhateverDeviceIsNamed) {
  EnvironmentLimits const limits{fmt::format("{}/pinned=1MiB;opencl:3/host=2MiB", id)};
  EXPECT_EQ(limits.of(device("cpu"), Location::pinned), MiB);
  EXPECT_EQ(limits.of(device("cpu"), Location::host), 2 * MiB);
  say(id + "/pinned=1MiB");
  MemoryManager manager;
  EXPECT_THROW(static_cast<void>(manager.acquire(sim, Location::pinned, 2 * MiB)), OutOfMemory);
  EXPECT_FALSE(manager.acquire(sim, Location::device, 2 * MiB).empty());
}

TEST_F(LimitsFromOutside, OfSeveralTheLeastCounts) {
  EnvironmentLimits const limits{fmt::format("{}=8MiB;{}/device=4MiB;{}=6MiB;", id, id, id)};
  EXPECT_EQ(limits.of(sim, Location::device), 4 * MiB);
}

TEST_F(LimitsFromOutside, WhatCannotBeReadIsRefusedByName) {
  for (std::string const entry :
       {"sim:0", "sim0=1MiB", "gpu:0=1MiB", "sim:=1MiB", "sim:x=1MiB", "sim=1MiB", "cpu:0=1MiB", "sim:0/nowhere=1MiB",
        "sim:0/=1MiB", "=1MiB", "sim:0=", "sim:0=-1", "sim:0=much"}) {
    try {
      EnvironmentLimits{"cpu=1GiB;" + entry};
      ADD_FAILURE() << entry << " was taken";
    } catch (InvalidArgument const& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("UNIMEM_LIMITS"), HasSubstr(entry.substr(entry.find('=') + 1))));
    }
  }
}

TEST_F(LimitsFromOutside, HoldForEveryManagerFromItsBeginningOn) {
  say(id + "=8MiB;cpu/pinned=1MiB");
  MemoryManager manager;
  unsetenv("UNIMEM_LIMITS");
  EXPECT_EQ(manager.total_memory(sim), 8 * MiB);
  auto const block = manager.acquire(sim, Location::device, 8 * MiB);
  EXPECT_THROW(static_cast<void>(manager.acquire(sim, Location::device, 1)), OutOfMemory);
  EXPECT_THROW(static_cast<void>(manager.acquire(sim, Location::pinned, 2 * MiB)), OutOfMemory);
  EXPECT_FALSE(manager.acquire(other, Location::device, 9 * MiB).empty());
  EXPECT_EQ(MemoryManager{}.total_memory(sim), 64 * MiB) << "of whom it was said, it was said at his beginning";
}

TEST_F(LimitsFromOutside, AreNotExceededByWhatTheProgramSets) {
  say(id + "=8MiB");
  MemoryManager manager;
  manager.set_limit(sim, 32 * MiB);
  EXPECT_EQ(manager.total_memory(sim), 8 * MiB);
  manager.set_limit(sim, 2 * MiB);
  EXPECT_EQ(manager.total_memory(sim), 2 * MiB);
  manager.set_limit(sim, 32 * MiB);
  EXPECT_EQ(manager.total_memory(sim), 8 * MiB);
}

TEST_F(LimitsFromOutside, ThatMakeNoSenseAreAnError) {
  say("sim:0:1GiB");
  EXPECT_THROW(MemoryManager{}, InvalidArgument);
}

TEST_F(LimitsFromOutside, OfHostMemoryCanBeSetByLocation) {
  MemoryManager manager;
  manager.set_limit(sim, Location::pinned, MiB);
  EXPECT_THROW(static_cast<void>(manager.acquire(device("cpu"), Location::pinned, 2 * MiB)), OutOfMemory);
  EXPECT_FALSE(manager.acquire(sim, Location::device, 2 * MiB).empty());
}

}  // namespace
}  // namespace unimem
