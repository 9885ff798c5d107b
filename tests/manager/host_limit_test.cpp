#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "core/sizes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

// A limit of the host's memory, which bounds pageable and pinned memory together.

namespace unimem {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

class HostLimit : public ::testing::Test {
 protected:
  ~HostLimit() override { unsetenv("UNIMEM_LIMITS"); }

  [[nodiscard]] Allocation take(Location location, std::size_t bytes, char const* name = "") {
    return manager.acquire(cpu, location, bytes, {.name = Name{name}});
  }
  [[nodiscard]] std::optional<OutOfMemory> refusal(Location location, std::size_t bytes) {
    try {
      std::ignore = take(location, bytes);
    } catch (OutOfMemory const& error) {
      return error;
    }
    return std::nullopt;
  }
  [[nodiscard]] std::size_t reserved() const { return manager.statistics().reserved_bytes; }

  Device& cpu = device("cpu");
  Device& sim = make_sim({.memory_bytes = 64 * MiB});
  MemoryManager manager;
};

TEST_F(HostLimit, BoundsPinnedMemoryWhateverDeviceIsNamed) {
  manager.set_limit(cpu, MiB);
  for (auto* const named : {&cpu, &sim}) {
    try {
      std::ignore = manager.acquire(*named, Location::pinned, 4 * MiB);
      ADD_FAILURE() << "4 MiB of 1 MiB by " << named->id();
    } catch (OutOfMemory const& error) {
      EXPECT_EQ(error.requested(), 4 * MiB);
      EXPECT_EQ(error.limit(), MiB);
      EXPECT_EQ(error.live(), 0U);
      EXPECT_EQ(error.facts().where, "cpu pinned");
    }
  }
  EXPECT_FALSE(take(Location::pinned, MiB).empty());
  EXPECT_FALSE(manager.acquire(sim, Location::device, 4 * MiB).empty()) << "the device's own memory is not the host's";
}

TEST_F(HostLimit, IsOfAllLocationsTogether) {
  manager.set_limit(cpu, 4 * MiB);
  auto const pageable = take(Location::host, 2 * MiB, "weights");
  auto const own = take(Location::device, MiB);
  auto const error = refusal(Location::pinned, 2 * MiB);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->limit(), 4 * MiB);
  EXPECT_EQ(error->live(), 3 * MiB);
  EXPECT_EQ(error->facts().cached, 0U);
  EXPECT_THAT(error->facts().reason, HasSubstr("all of the host's memory"));
  using Holder = OutOfMemory::Holder;
  EXPECT_THAT(error->facts().holders, ElementsAre(Field(&Holder::name, "weights"), Field(&Holder::name, "")));
  auto const pinned = take(Location::pinned, MiB);
  for (auto const location : {Location::host, Location::pinned, Location::device, Location::unified}) {
    EXPECT_TRUE(refusal(location, 1)) << to_string(location);
  }
  EXPECT_EQ(reserved(), 4 * MiB);
  EXPECT_EQ(manager.available_memory(cpu), 0U);
}

TEST_F(HostLimit, IsMetByTrimmingOtherPoolsCaches) {
  manager.set_limit(cpu, 4 * MiB);
  auto const places = {Location::host, Location::pinned};
  for (auto const caching : places) {
    for (auto const asking : places) {
      std::thread{[&] { take(caching, 3 * MiB).release(); }}.join();
      EXPECT_EQ(take(asking, 2 * MiB).size(), 2 * MiB) << to_string(caching) << " gives " << to_string(asking);
      EXPECT_LE(reserved(), 4 * MiB);
      manager.cleanup();
    }
  }
  EXPECT_EQ(manager.statistics().cache_trims, 2U);
  EXPECT_EQ(manager.statistics().refusals, 0U);
}

TEST_F(HostLimit, IsMetByPoolsThatAreAskedThemselves) {
  manager.set_limit(cpu, 4 * MiB);
  take(Location::host, 3 * MiB).release();
  EXPECT_EQ(manager.pool(cpu, Location::pinned).acquire(4 * MiB).size(), 4 * MiB);
  auto const kept = take(Location::pinned, 3 * MiB);
  try {
    std::ignore = manager.pool(cpu, Location::host).acquire(2 * MiB);
    ADD_FAILURE() << "2 MiB beside 3 of 4";
  } catch (OutOfMemory const& error) {
    EXPECT_EQ(error.limit(), MiB) << "what others leave it";
    EXPECT_THAT(error.facts().reason, HasSubstr("all of the host's memory"));
  }
}

TEST_F(HostLimit, SparesCachesThatCouldNotMeetIt) {
  manager.set_limit(cpu, 4 * MiB);
  take(Location::host, MiB).release();
  auto const kept = take(Location::pinned, 2 * MiB);
  EXPECT_TRUE(refusal(Location::host, 3 * MiB));
  EXPECT_EQ(manager.pool(cpu, Location::host).statistics().total_pooled_bytes, MiB);
}

TEST_F(HostLimit, IsUsedToTheLastByte) {
  constexpr std::size_t limit = 24 * MiB + 12'288;  // enough for pageable memory to be of pages, and no multiple of one
  manager.set_limit(cpu, limit);
  for (bool const pinned_first : {false, true}) {
    std::vector<Allocation> blocks;
    // Whole pages first, where they are pages: what they leave free of one is theirs.
    blocks.push_back(pinned_first ? take(Location::pinned, 2 * MiB) : take(Location::host, 22 * MiB));
    blocks.push_back(pinned_first ? take(Location::host, limit - 2 * MiB) : take(Location::pinned, limit - 22 * MiB));
    EXPECT_EQ(reserved(), limit);
    EXPECT_TRUE(refusal(Location::host, 1));
    EXPECT_TRUE(refusal(Location::pinned, 1));
    blocks.clear();
    EXPECT_EQ(take(Location::host, limit).size(), limit) << "all of it, once";
    EXPECT_EQ(take(Location::pinned, 4 * MiB).size(), 4 * MiB);
    EXPECT_LE(reserved(), limit);
  }
  for (auto const location : {Location::host, Location::pinned}) manager.pool(cpu, location).validate();
}

TEST_F(HostLimit, LimitsOfLocationsAreWithinIt) {
  manager.set_limit(cpu, 4 * MiB);
  manager.set_limit(cpu, Location::pinned, MiB);
  auto const error = refusal(Location::pinned, 2 * MiB);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->limit(), MiB);
  EXPECT_EQ(error->facts().reason, "limit reached");
  manager.set_limit(cpu, Location::host, 8 * MiB);
  EXPECT_TRUE(refusal(Location::host, 5 * MiB));
  auto const pageable = take(Location::host, 4 * MiB);
  EXPECT_TRUE(refusal(Location::pinned, 1)) << "within its own limit";
}

TEST_F(HostLimit, IsTold) {
  auto const capacity = cpu.info().total_bytes;
  manager.set_limit(cpu, 8 * MiB);
  manager.set_limit(cpu, Location::pinned, 2 * MiB);
  EXPECT_EQ(manager.limit(cpu, Location::host), 8 * MiB);
  EXPECT_EQ(manager.limit(sim, Location::pinned), 2 * MiB);
  EXPECT_EQ(manager.total_memory(cpu), 8 * MiB);
  EXPECT_EQ(manager.total_memory(sim), 64 * MiB);
  auto const pinned = take(Location::pinned, MiB);
  EXPECT_EQ(manager.available_memory(cpu), 7 * MiB);
  manager.set_limit(cpu, Location::host, 3 * MiB);
  EXPECT_EQ(manager.available_memory(cpu), 3 * MiB);
  for (auto const& told : manager.snapshot().limits) {
    EXPECT_EQ(told.limit_bytes, told.location == Location::pinned ? 2 * MiB : 3 * MiB) << to_string(told.location);
  }
  manager.set_limit(cpu, 2 * capacity);
  EXPECT_EQ(manager.limit(cpu, Location::device), capacity);
}

TEST_F(HostLimit, LoweringTrimsCachesOfEveryLocation) {
  take(Location::host, 3 * MiB).release();
  take(Location::pinned, 3 * MiB).release();
  auto const kept = take(Location::pinned, MiB);
  manager.set_limit(cpu, 2 * MiB);
  EXPECT_LE(reserved(), 2 * MiB);
  manager.set_limit(cpu, 8 * MiB);
  EXPECT_EQ(take(Location::host, 7 * MiB).size(), 7 * MiB) << "and raised again is what it is";
}

TEST_F(HostLimit, BelowWhatIsLiveIsRefused) {
  manager.set_limit(cpu, 8 * MiB);
  auto const pageable = take(Location::host, 2 * MiB);
  auto const pinned = take(Location::pinned, 2 * MiB);
  take(Location::pinned, MiB).release();
  try {
    manager.set_limit(cpu, 3 * MiB);
    FAIL() << "3 MiB with 4 in use";
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.argument, "bytes");
    EXPECT_EQ(error.value, std::to_string(3 * MiB));
    EXPECT_THAT(error.requirement, HasSubstr(std::to_string(4 * MiB)));
  }
  EXPECT_EQ(manager.total_memory(cpu), 8 * MiB);
  EXPECT_EQ(reserved(), 5 * MiB) << "the cached block is still there";
  manager.set_limit(cpu, 4 * MiB);
  EXPECT_EQ(reserved(), 4 * MiB);
}

TEST_F(HostLimit, FromOutsideCannotBeRaisedByTheProgram) {
  setenv("UNIMEM_LIMITS", "cpu=4MiB;cpu/pinned=1MiB", 1);
  MemoryManager limited;
  auto const refused = [&](Location location, std::size_t bytes) {
    try {
      std::ignore = limited.acquire(sim, location, bytes);
    } catch (OutOfMemory const&) {
      return true;
    }
    return false;
  };
  EXPECT_TRUE(refused(Location::pinned, 2 * MiB));
  limited.set_limit(cpu, 64 * MiB);
  limited.set_limit(cpu, Location::pinned, 64 * MiB);
  limited.set_limit(cpu, Location::host, 64 * MiB);
  EXPECT_TRUE(refused(Location::pinned, 2 * MiB));
  EXPECT_TRUE(refused(Location::host, 5 * MiB));
  auto const pinned = limited.acquire(cpu, Location::pinned, MiB);
  EXPECT_TRUE(refused(Location::host, 4 * MiB)) << "beside one that is pinned";
  EXPECT_FALSE(refused(Location::host, 3 * MiB));
  limited.set_limit(cpu, 2 * MiB);
  EXPECT_TRUE(refused(Location::host, 2 * MiB));
  limited.set_limit(cpu, 64 * MiB);
  EXPECT_EQ(limited.total_memory(cpu), 4 * MiB);
}

TEST_F(HostLimit, IsOneManagersOwn) {
  MemoryManager other;
  manager.set_limit(cpu, MiB);
  EXPECT_EQ(other.acquire(cpu, Location::pinned, 2 * MiB).size(), 2 * MiB);
  EXPECT_EQ(other.total_memory(cpu), cpu.info().total_bytes);
}

}  // namespace
}  // namespace unimem
