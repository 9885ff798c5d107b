#include <unimem/core/error.hpp>
#include <unimem/core/stack.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "core/sizes.hpp"
#include "manager/usage_book.hpp"
#include "pool/scripted_device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace unimem {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

/// What acquire threw, if it was OutOfMemory.
std::optional<OutOfMemory> refusal(MemoryManager& manager, Device& device, std::size_t bytes) {
  try {
    auto const block = manager.acquire(device, Location::device, bytes);
    return std::nullopt;
  } catch (OutOfMemory const& error) {
    return error;
  }
}

TEST(MemoryManager, MakesOnePoolForEachDeviceAndLocation) {
  ScriptedDevice first{MiB}, second{MiB};
  MemoryManager manager;
  auto& pool = manager.pool(first, Location::device);
  EXPECT_EQ(&manager.pool(first, Location::device), &pool);
  EXPECT_NE(&manager.pool(first, Location::unified), &pool);
  EXPECT_NE(&manager.pool(second, Location::device), &pool);
  EXPECT_EQ(&pool.device(), &first);
  EXPECT_EQ(pool.location(), Location::device);
}

TEST(MemoryManager, AllDevicesShareTheHostsPools) {
  ScriptedDevice first{MiB}, second{MiB};
  MemoryManager manager;
  for (auto const location : {Location::host, Location::pinned}) {
    auto& pool = manager.pool(first, location);
    EXPECT_EQ(&manager.pool(second, location), &pool);
    EXPECT_EQ(&manager.pool(device("cpu"), location), &pool);
    EXPECT_EQ(pool.device().id(), "cpu");
    EXPECT_EQ(pool.location(), location);
  }
  auto const block = manager.acquire(first, Location::host, 1000);
  EXPECT_EQ(block.device().id(), "cpu");
}

TEST(MemoryManager, AvailableMemoryIsCapacityLessLiveMemory) {
  ScriptedDevice device{64 * MiB};
  MemoryManager manager;
  EXPECT_EQ(manager.total_memory(device), 64 * MiB);
  EXPECT_EQ(manager.available_memory(device), 64 * MiB);
  auto block = manager.acquire(device, Location::device, 10 * MiB);
  EXPECT_EQ(manager.available_memory(device), 54 * MiB);
  block.release();
  EXPECT_EQ(manager.available_memory(device), 64 * MiB) << "cached blocks count as free";
  EXPECT_EQ(manager.statistics().pooled_bytes, 10 * MiB);
}

TEST(MemoryManager, ALimitIsExactAndReportedAsTotal) {
  ScriptedDevice device{64 * MiB};
  MemoryManager manager;
  manager.set_limit(device, 16 * MiB);
  EXPECT_EQ(manager.total_memory(device), 16 * MiB);
  EXPECT_EQ(manager.available_memory(device), 16 * MiB);
  auto const block = manager.acquire(device, Location::device, 16 * MiB);
  EXPECT_EQ(manager.available_memory(device), 0U);
  EXPECT_TRUE(refusal(manager, device, 1));
  EXPECT_EQ(device.peak_bytes(), 16 * MiB);
}

TEST(MemoryManager, ALimitAboveTheCapacityAddsNoMemory) {
  ScriptedDevice device{64 * MiB};
  MemoryManager manager;
  manager.set_limit(device, 100 * MiB);
  EXPECT_EQ(manager.total_memory(device), 64 * MiB);
}

TEST(MemoryManager, TheLimitOfEveryPlaceIsTold) {
  ScriptedDevice device{64 * MiB};
  auto& cpu = unimem::device("cpu");
  MemoryManager manager;
  EXPECT_EQ(manager.limit(device, Location::unified), 64 * MiB) << "there is no more";
  EXPECT_EQ(manager.limit(device, Location::pinned), cpu.info().total_bytes);
  manager.set_limit(device, Location::unified, 3 * MiB);
  manager.set_limit(device, Location::pinned, 2 * MiB);
  EXPECT_EQ(manager.limit(device, Location::unified), 3 * MiB);
  EXPECT_EQ(manager.limit(device, Location::device), 64 * MiB);
  EXPECT_EQ(manager.limit(cpu, Location::pinned), 2 * MiB) << "the host's, whoever was named";
  EXPECT_EQ(MemoryManager({.pools = {.max_bytes = MiB}}).limit(device, Location::device), MiB) << "before it is used";
}

TEST(MemoryManager, ASnapshotHasStatisticsUsageAndLimits) {
  ScriptedDevice device{64 * MiB};
  MemoryManager manager;
  manager.set_limit(device, 16 * MiB);
  auto const block = manager.acquire(device, Location::device, 4 * MiB);
  auto const pinned_limit = manager.limit(device, Location::pinned);
  std::ignore = manager.pool(device, Location::pinned);
  detail::UsageEntry small, large;
  manager.usage_book().enter(small, {&device, Location::device, Name("small")}, MiB, 1);
  manager.usage_book().enter(large, {&device, Location::device, Name("large")}, 3 * MiB, 2);

  auto const snapshot = manager.snapshot();
  EXPECT_EQ(snapshot.statistics.active_bytes, 4 * MiB);
  EXPECT_EQ(snapshot.usage.total.live_bytes, 4 * MiB);
  EXPECT_EQ(snapshot.live.bytes, 4 * MiB);
  ASSERT_EQ(snapshot.live.allocations.size(), 2U);
  EXPECT_EQ(snapshot.live.allocations[0].name.view(), "large");
  EXPECT_EQ(snapshot.live.allocations[1].bytes, MiB);
  EXPECT_THAT(snapshot.limits,
              UnorderedElementsAre(
                  AllOf(Field(&MemoryLimit::device, "scripted:0"), Field(&MemoryLimit::location, Location::device),
                        Field(&MemoryLimit::limit_bytes, 16 * MiB)),
                  AllOf(Field(&MemoryLimit::device, "cpu"), Field(&MemoryLimit::location, Location::pinned),
                        Field(&MemoryLimit::limit_bytes, pinned_limit))));
}

TEST(MemoryManager, ALimitBelowLiveMemoryIsRefused) {
  ScriptedDevice device{64 * MiB};
  MemoryManager manager;
  manager.set_limit(device, 32 * MiB);
  auto const block = manager.acquire(device, Location::device, 10 * MiB);
  manager.acquire(device, Location::device, 5 * MiB).release();
  EXPECT_THROW(manager.set_limit(device, 10 * MiB - 1), InvalidArgument);
  EXPECT_EQ(manager.total_memory(device), 32 * MiB);
  EXPECT_EQ(device.live_bytes(), 15 * MiB);
  manager.set_limit(device, 10 * MiB);
  EXPECT_EQ(device.live_bytes(), 10 * MiB) << "the cached block went";
}

TEST(MemoryManager, LimitsOfDevicesAreIndependent) {
  ScriptedDevice first{64 * MiB}, second{64 * MiB};
  MemoryManager manager;
  manager.set_limit(first, MiB);
  EXPECT_TRUE(refusal(manager, first, 2 * MiB));
  EXPECT_FALSE(refusal(manager, second, 2 * MiB));
}

TEST(MemoryManager, StatisticsAreTheSumsOverItsPools) {
  ScriptedDevice first{64 * MiB}, second{64 * MiB};
  MemoryManager manager;
  auto const a = manager.acquire(first, Location::device, MiB);
  auto const b = manager.acquire(second, Location::device, 2 * MiB);
  auto const c = manager.acquire(first, Location::host, 3 * MiB);
  manager.acquire(second, Location::device, 4 * MiB).release();

  auto const sum = manager.statistics();
  EXPECT_EQ(sum.total_allocations, 4U);
  EXPECT_EQ(sum.active_allocations, 3U);
  EXPECT_EQ(sum.active_bytes, 6 * MiB);
  EXPECT_EQ(sum.pooled_bytes, 4 * MiB);
  EXPECT_EQ(sum.reserved_bytes, 10 * MiB);
  ASSERT_EQ(sum.pools.size(), 3U);
  GlobalMemoryStatistics by_hand;
  for (auto const& usage : sum.pools) {
    by_hand.active_bytes += usage.pool.active_bytes;
    by_hand.reserved_bytes += usage.pool.reserved_bytes;
    by_hand.total_allocations += usage.pool.total_allocations;
    EXPECT_EQ(usage.device, usage.location == Location::host ? "cpu" : "scripted:0");
  }
  EXPECT_EQ(by_hand.active_bytes, sum.active_bytes);
  EXPECT_EQ(by_hand.reserved_bytes, sum.reserved_bytes);
  EXPECT_EQ(by_hand.total_allocations, sum.total_allocations);
}

TEST(MemoryManager, CleanupGivesBackCachedBlocksOnly) {
  ScriptedDevice first{64 * MiB}, second{64 * MiB};
  MemoryManager manager;
  auto const live = manager.acquire(first, Location::device, MiB);
  manager.acquire(first, Location::device, 4 * MiB).release();
  manager.acquire(second, Location::device, 2 * MiB).release();
  EXPECT_EQ(manager.cleanup(), 6 * MiB);
  EXPECT_EQ(first.live_bytes(), MiB);
  EXPECT_EQ(second.live_bytes(), 0U);
  EXPECT_EQ(manager.cleanup(), 0U);
}

TEST(MemoryManager, PoolOptionsHoldForEveryPoolItMakes) {
  ScriptedDevice device{64 * MiB};
  MemoryManager manager{{.pools = {.max_bytes = 8 * MiB, .release_threshold = 0}}};
  EXPECT_EQ(manager.total_memory(device), 8 * MiB) << "also before the pool is made";
  manager.acquire(device, Location::device, MiB).release();
  EXPECT_EQ(device.live_bytes(), 0U);
  EXPECT_TRUE(refusal(manager, device, 8 * MiB + 1));
}

TEST(MemoryManager, PoolsInheritStackOptionsUnlessToldOtherwise) {
  if (!can_capture_stacks()) GTEST_SKIP() << "this build captures no stacks";
  ScriptedDevice device{64 * MiB};
  MemoryManager silent, all{{.leaks = {.stacks = {.every = 1}}}};
  MemoryManager otherwise{{.pools = {.stacks = {.every = 5}}, .leaks = {.stacks = {.every = 1}}}};
  EXPECT_EQ(silent.pool(device, Location::device).stacks().every, 0U);
  EXPECT_EQ(all.pool(device, Location::device).stacks().every, 1U);
  EXPECT_EQ(otherwise.pool(device, Location::device).stacks().every, 5U);
}

TEST(MemoryManager, NoBytesAreAnEmptyAllocation) {
  ScriptedDevice device{MiB};
  MemoryManager manager;
  EXPECT_TRUE(manager.acquire(device, Location::device, 0).empty());
  EXPECT_EQ(manager.statistics().total_allocations, 0U);
}

TEST(MemoryManager, AnInvalidAlignmentIsRefused) {
  ScriptedDevice device{MiB};
  MemoryManager manager;
  EXPECT_THROW((void)manager.acquire(device, Location::device, 8, {.alignment = 3}), InvalidArgument);
  auto& cpu_only = manager.pool(device, Location::host);
  EXPECT_EQ(cpu_only.device().id(), "cpu");
}

TEST(MemoryManager, TheCpuLimitBoundsHostMemory) {
  auto& cpu = unimem::device("cpu");
  MemoryManager manager;
  auto const first = manager.acquire(cpu, Location::host, 4 * MiB);
  manager.set_limit(cpu, 8 * MiB);
  EXPECT_EQ(manager.total_memory(cpu), 8 * MiB);
  EXPECT_EQ(manager.available_memory(cpu), 4 * MiB);
  EXPECT_THROW(std::ignore = manager.acquire(cpu, Location::host, 5 * MiB), OutOfMemory);
  auto const second = manager.acquire(cpu, Location::host, 4 * MiB);
  EXPECT_EQ(manager.available_memory(cpu), 0U);
}

TEST(MemoryManager, ImpossibleLimitsAreRefusedByName) {
  auto& sim = make_sim({.memory_bytes = 64 * MiB});
  MemoryManager manager;
  auto const block = manager.acquire(sim, Location::device, 6 * MiB);
  try {
    manager.set_limit(sim, 5 * MiB);
    FAIL() << "5 MiB with 6 in use";
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.argument, "bytes");
    EXPECT_EQ(error.value, std::to_string(5 * MiB));
    EXPECT_THAT(error.what(), HasSubstr(std::string(sim.id()) + " device"));
  }
  EXPECT_EQ(manager.total_memory(sim), 64 * MiB);
  EXPECT_THROW(manager.set_limit(sim, static_cast<Location>(17), 64 * MiB), InvalidArgument);
  EXPECT_THROW(std::ignore = manager.pool(sim, static_cast<Location>(4)), InvalidArgument);
}

TEST(MemoryManager, OutOfMemoryNamesTheLargestHolders) {
  ScriptedDevice device{16 * MiB};
  MemoryManager manager;
  auto const weights = manager.acquire(device, Location::device, 10 * MiB, {.name = Name{"weights"}});
  auto const batch = manager.acquire(device, Location::device, 4 * MiB, {.name = Name{"batch"}});
  auto const error = refusal(manager, device, 3 * MiB);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->facts().where, "scripted:0 device");
  EXPECT_EQ(error->requested(), 3 * MiB);
  EXPECT_EQ(error->live(), 14 * MiB);
  EXPECT_EQ(error->limit(), 16 * MiB);
  using Holder = OutOfMemory::Holder;
  EXPECT_THAT(error->facts().holders,
              ElementsAre(AllOf(Field(&Holder::name, "weights"), Field(&Holder::bytes, 10 * MiB)),
                          AllOf(Field(&Holder::name, "batch"), Field(&Holder::bytes, 4 * MiB))));
  EXPECT_THAT(error->what(), HasSubstr("10 MiB in 1 allocation of weights"));
}

TEST(MemoryManager, OutOfMemoryTellsWhatOthersHold) {
  auto& sim = make_sim({.memory_bytes = 64 * MiB});
  MemoryManager others, manager;
  auto const taken = others.acquire(sim, Location::device, 60 * MiB);
  try {
    static_cast<void>(manager.acquire(sim, Location::device, 8 * MiB));
    FAIL() << "there is no room";
  } catch (OutOfMemory const& error) {
    EXPECT_THAT(error.what(), HasSubstr("device free 4 MiB, 60 MiB held by others"));
  }
}

TEST(MemoryManager, CachesOfTheDevicesOtherPoolsMakeRoom) {
  ScriptedDevice device{16 * MiB}, bystander{16 * MiB};
  MemoryManager manager;
  manager.acquire(device, Location::unified, 10 * MiB).release();
  manager.acquire(bystander, Location::device, 10 * MiB).release();
  auto const block = manager.acquire(device, Location::device, 12 * MiB);
  EXPECT_EQ(device.live_bytes(), 12 * MiB);
  EXPECT_EQ(bystander.live_bytes(), 10 * MiB) << "another device's cache is no help";
}

TEST(DefaultManager, IsOneForTheWholeProcess) {
  EXPECT_EQ(&default_manager(), &default_manager());
  auto block = default_manager().acquire(device("cpu"), Location::host, 4096);
  ASSERT_NE(block.data(), nullptr);
  std::ranges::fill_n(static_cast<unsigned char*>(block.data()), 4096, 0x5A);
  EXPECT_EQ(static_cast<unsigned char*>(block.data())[4095], 0x5A);
}

}  // namespace
}  // namespace unimem
