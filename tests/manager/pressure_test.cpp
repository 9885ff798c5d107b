#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>

#include "manager/pressure_fixture.hpp"

#include <cstddef>
#include <limits>
#include <random>
#include <vector>

// Where the levels of memory pressure begin and end.

namespace unimem::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(PressureOfSim, RisesOnceAtEachLevel) {
  auto const subscription = manager.on_pressure(diary.callback());
  std::vector<Allocation> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back(take(1));
  EXPECT_THAT(heard(), ElementsAre("none > moderate at 32", "moderate > high at 48", "high > critical at 56"));
  EXPECT_EQ(now(), PressureLevel::critical);
  auto const statistics = manager.statistics();
  EXPECT_EQ(statistics.pressure_calls, 3U);
  EXPECT_EQ(statistics.failed_pressure_calls, 0U);
}

TEST_F(PressureOfSim, TellsOfWhomItSpeaks) {
  auto const subscription = manager.on_pressure(diary.callback());
  auto const block = take(33);
  manager.settle_pressure();
  auto const changes = diary.changes();
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes[0].device, &sim);
  EXPECT_EQ(changes[0].location, Location::device);
  EXPECT_EQ(changes[0].live_bytes, 33 * MiB);
  EXPECT_EQ(changes[0].limit_bytes, 64 * MiB);
}

TEST_F(PressureOfSim, OverSeveralLevelsIsOneCrossing) {
  auto const subscription = manager.on_pressure(diary.callback());
  auto block = take(60);
  EXPECT_THAT(heard(), ElementsAre("none > critical at 60"));
  block.release();
  EXPECT_EQ(now(), PressureLevel::none);
  EXPECT_THAT(heard(), ElementsAre("none > critical at 60", "critical > none at 0"));
}

TEST_F(PressureOfSim, IsLeftOnlyBelowWhereItBegan) {
  auto const subscription = manager.on_pressure(diary.callback());
  auto const base = take(23);
  auto one = take(1), rest = take(8);
  rest.release();
  EXPECT_EQ(now(), PressureLevel::moderate) << "24 MiB are within the hysteresis";
  one.release();
  EXPECT_EQ(now(), PressureLevel::none);
  EXPECT_THAT(heard(), ElementsAre("none > moderate at 32", "moderate > none at 23"));
}

TEST_F(PressureOfSim, HoveringAtALevelIsOneCrossing) {
  auto const subscription = manager.on_pressure(diary.callback());
  auto const base = take(30);
  for (int i = 0; i < 10; ++i) {
    take(3).release();
    static_cast<void>(manager.cleanup());
    EXPECT_EQ(now(), PressureLevel::moderate);
  }
  EXPECT_THAT(heard(), ElementsAre("none > moderate at 33"));
}

TEST_F(PressureOfSim, FallsByOneLevelOrSeveral) {
  auto const subscription = manager.on_pressure(diary.callback());
  auto const base = take(10);
  auto middle = take(30), top = take(20);
  top.release();
  EXPECT_EQ(now(), PressureLevel::high) << "40 MiB are still within high";
  middle.release();
  EXPECT_EQ(now(), PressureLevel::none);
  EXPECT_THAT(heard(), ElementsAre("none > moderate at 40", "moderate > critical at 60", "critical > high at 40",
                                   "high > none at 10"));
}

TEST_F(PressureOfSim, RisesAgainAfterItHasFallen) {
  auto const subscription = manager.on_pressure(diary.callback());
  for (int i = 0; i < 3; ++i) {
    auto block = take(40);
    block.release();
    static_cast<void>(manager.cleanup());
  }
  EXPECT_THAT(heard(), ElementsAre("none > moderate at 40", "moderate > none at 0", "none > moderate at 40",
                                   "moderate > none at 0", "none > moderate at 40", "moderate > none at 0"));
}

TEST_F(PressureOfSim, CachedBlocksAreNone) {
  auto const subscription = manager.on_pressure(diary.callback());
  std::vector<Allocation> blocks;
  for (int i = 0; i < 31; ++i) blocks.push_back(take(1));
  blocks.clear();
  EXPECT_EQ(manager.statistics().pooled_bytes, 31 * MiB);
  auto const other = take(20);  // all are brought back for it
  EXPECT_THAT(heard(), IsEmpty());
}

TEST_F(PressureOfSim, IsMeasuredAgainstTheLimit) {
  auto const subscription = manager.on_pressure(diary.callback());
  auto const block = take(20);
  EXPECT_EQ(now(), PressureLevel::none);
  manager.set_limit(sim, 40 * MiB);
  EXPECT_THAT(heard(), ElementsAre("none > moderate at 20")) << "it has come nearer";
  EXPECT_EQ(diary.changes()[0].limit_bytes, 40 * MiB);
  manager.set_limit(sim, 20 * MiB);
  EXPECT_EQ(now(), PressureLevel::critical);
  manager.set_limit(sim, 64 * MiB);
  EXPECT_EQ(now(), PressureLevel::none);
}

TEST_F(PressureOfSim, OfDevicesAndLocationsIsTheirOwn) {
  auto& other = make_sim({.memory_bytes = 64 * MiB});
  auto const subscription = manager.on_pressure(diary.callback());
  auto const here = take(31);
  auto const there = manager.acquire(other, Location::device, 31 * MiB);
  auto const on_the_host = manager.acquire(sim, Location::host, 31 * MiB);
  EXPECT_THAT(heard(), IsEmpty());
  EXPECT_EQ(manager.pressure(sim, Location::host), manager.pressure(device("cpu"), Location::host));
  auto const more = manager.acquire(other, Location::device, MiB);
  EXPECT_THAT(heard(), ElementsAre("none > moderate at 32"));
  EXPECT_EQ(diary.changes()[0].device, &other);
  EXPECT_EQ(now(), PressureLevel::none);
}

TEST_F(PressureOfSim, OfTheHostSumsAllItsLocations) {
  auto& cpu = device("cpu");
  manager.set_limit(cpu, 8 * MiB);
  auto const subscription = manager.on_pressure(diary.callback());
  auto pageable = manager.acquire(cpu, Location::host, 3 * MiB);
  auto const pinned = manager.acquire(cpu, Location::pinned, MiB / 2);
  EXPECT_THAT(heard(), IsEmpty());
  auto const more = manager.acquire(cpu, Location::pinned, MiB / 2);
  EXPECT_THAT(heard(), ElementsAre("none > moderate at 4", "none > moderate at 4")) << "pageable and pinned";
  for (auto const& change : diary.changes()) EXPECT_EQ(change.limit_bytes, 8 * MiB);
  EXPECT_EQ(manager.pressure(cpu, Location::host), PressureLevel::moderate);
  EXPECT_EQ(manager.pressure(cpu, Location::pinned), PressureLevel::moderate);
  pageable.release();
  EXPECT_EQ(manager.pressure(cpu, Location::pinned), PressureLevel::none);
  EXPECT_EQ(manager.pressure(cpu, Location::host), PressureLevel::none);
  manager.set_limit(cpu, Location::pinned, MiB);
  EXPECT_EQ(manager.pressure(cpu, Location::pinned), PressureLevel::critical) << "by its own limit";
  EXPECT_EQ(manager.pressure(cpu, Location::host), PressureLevel::none);
}

TEST_F(PressureOfSim, OfTheHostIsNoticedInSmallSteps) {
  auto& cpu = device("cpu");
  manager.set_limit(cpu, 8 * MiB);
  auto const subscription = manager.on_pressure(diary.callback());
  constexpr unsigned seed = 11;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random{seed};
  std::vector<Allocation> blocks;
  for (std::size_t live = 0; live < 4 * MiB; live += blocks.back().size()) {
    ASSERT_THAT(heard(), IsEmpty()) << live;
    // Runs of one kind and the other: each goes on from where the other has come to.
    auto const location = random() % 16 < 8 ? Location::host : Location::pinned;
    blocks.push_back(manager.acquire(cpu, location, 32 * KiB));
  }
  EXPECT_THAT(heard(), ElementsAre("none > moderate at 4", "none > moderate at 4"));
}

TEST_F(PressureOfSim, ThatRefusesARequestIsNoCrossing) {
  auto const subscription = manager.on_pressure(diary.callback());
  auto const block = take(31);
  EXPECT_THROW(static_cast<void>(take(40)), OutOfMemory);
  EXPECT_THAT(heard(), IsEmpty());
}

TEST(PressureOptions, ThatMakeNoLevelsAreRefused) {
  auto const nan = std::numeric_limits<double>::quiet_NaN();
  for (PressureOptions const options :
       {PressureOptions{.moderate = 0.9, .high = 0.8}, PressureOptions{.high = 0.96}, PressureOptions{.critical = 1.01},
        PressureOptions{.moderate = 0.05}, PressureOptions{.hysteresis = -0.1}, PressureOptions{.hysteresis = nan},
        PressureOptions{.moderate = nan}, PressureOptions{.high = nan}, PressureOptions{.critical = nan}}) {
    EXPECT_THROW(MemoryManager{ManagerOptions{.pressure = options}}, InvalidArgument)
        << options.moderate << " " << options.high << " " << options.critical << " " << options.hysteresis;
  }
  MemoryManager manager;
  EXPECT_THROW(static_cast<void>(manager.on_pressure({})), InvalidArgument);
}

}  // namespace
}  // namespace unimem::testing
