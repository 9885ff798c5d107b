#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/manager/memory_manager.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace unimem {
namespace {

using ::testing::ElementsAre;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t MiB = std::size_t{1} << 20;

/// What a callback has heard: "none > moderate" at so many MiB.
class Diary {
 public:
  [[nodiscard]] PressureCallback callback() {
    return [this](PressureChange const& change) {
      std::lock_guard const lock{mutex_};
      changes_.push_back(change);
    };
  }
  [[nodiscard]] std::vector<PressureChange> changes() const {
    std::lock_guard const lock{mutex_};
    return changes_;
  }
  [[nodiscard]] std::vector<std::string> lines() const {
    std::vector<std::string> lines;
    for (auto const& change : changes()) {
      lines.push_back(std::string(to_string(change.before)) + " > " + std::string(to_string(change.now)) + " at " +
                      std::to_string(change.live_bytes / MiB));
    }
    return lines;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<PressureChange> changes_;
};

/// A device of 64 MiB whose levels begin at 32, 48 and 56 MiB and are left below 24, 40 and 48.
class PressureOfSim : public ::testing::Test {
 protected:
  static ManagerOptions options() {
    return {.pools = {.backing = PoolBacking::allocations},
            .pressure = {.moderate = 0.5, .high = 0.75, .critical = 0.875, .hysteresis = 0.125}};
  }

  [[nodiscard]] Allocation take(std::size_t mebibytes) {
    return manager.acquire(sim, Location::device, mebibytes * MiB);
  }
  [[nodiscard]] PressureLevel now() { return manager.pressure(sim, Location::device); }

  /// All that was noticed has been told.
  [[nodiscard]] std::vector<std::string> heard() {
    manager.settle_pressure();
    return diary.lines();
  }

  Device& sim = make_sim({.memory_bytes = 64 * MiB});
  Diary diary;
  MemoryManager manager{options()};
};

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

TEST_F(PressureOfSim, ThatGoesToAndFroAtALevelIsOneCrossing) {
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

TEST_F(PressureOfSim, ThatRefusesARequestIsNoCrossing) {
  auto const subscription = manager.on_pressure(diary.callback());
  auto const block = take(31);
  EXPECT_THROW(static_cast<void>(take(40)), OutOfMemory);
  EXPECT_THAT(heard(), IsEmpty());
}

// ---- Who listens -------------------------------------------------------------------------------------------------

TEST_F(PressureOfSim, IsToldToEveryoneWhoListensAndToNobodyElse) {
  Diary early, late;
  auto subscription = manager.on_pressure(diary.callback());
  auto const first = manager.on_pressure(early.callback());
  auto block = take(33);
  auto const second = manager.on_pressure(late.callback());
  EXPECT_EQ(now(), PressureLevel::moderate);
  subscription.end();
  block.release();
  EXPECT_EQ(now(), PressureLevel::none);
  manager.settle_pressure();
  EXPECT_THAT(early.lines(), ElementsAre("none > moderate at 33", "moderate > none at 0"));
  EXPECT_THAT(late.lines(), ElementsAre("moderate > none at 0")) << "what was before is told to nobody later";
  EXPECT_LE(diary.lines().size(), 1U);
}

TEST_F(PressureOfSim, IsToldOnAsLongAsTheSubscriptionIsSomewhere) {
  std::optional<PressureSubscription> kept;
  {
    auto subscription = manager.on_pressure(diary.callback());
    PressureSubscription moved{std::move(subscription)};
    kept.emplace();
    *kept = std::move(moved);
  }
  auto block = take(33);
  EXPECT_THAT(heard(), ElementsAre("none > moderate at 33"));
  kept.reset();
  block.release();
  EXPECT_EQ(now(), PressureLevel::none);
  manager.settle_pressure();
  EXPECT_EQ(diary.lines().size(), 1U);
}

TEST_F(PressureOfSim, SubscriptionsMayOutliveTheirManager) {
  auto brief = std::make_unique<MemoryManager>(options());
  auto subscription = brief->on_pressure(diary.callback());
  brief.reset();
  subscription.end();
  EXPECT_THAT(diary.lines(), IsEmpty());
}

TEST_F(PressureOfSim, ASubscriptionMayEndItselfFromItsCallback) {
  auto subscription = std::make_unique<PressureSubscription>();
  int calls = 0;
  *subscription = manager.on_pressure([&](PressureChange const&) {
    ++calls;
    subscription->end();
  });
  auto const one = take(33), two = take(20);
  manager.settle_pressure();
  EXPECT_EQ(calls, 1);
}

TEST_F(PressureOfSim, EndingASubscriptionWaitsForItsCall) {
  std::atomic<bool> inside{false}, go_on{false}, over{false};
  auto subscription = manager.on_pressure([&](PressureChange const&) {
    inside = true;
    inside.notify_all();
    go_on.wait(false);
    over = true;
  });
  auto const block = take(33);
  inside.wait(false);
  std::jthread const helper{[&] {
    go_on = true;
    go_on.notify_all();
  }};
  subscription.end();
  EXPECT_TRUE(over);
}

// ---- What callbacks do -------------------------------------------------------------------------------------------

TEST_F(PressureOfSim, CallbacksThatThrowAreCountedAndCalledAgain) {
  auto const subscription = manager.on_pressure([](PressureChange const&) { throw std::runtime_error("no nerve"); });
  auto const rude = manager.on_pressure([](PressureChange const&) { throw 7; });
  auto const steady = manager.on_pressure(diary.callback());
  ::testing::internal::CaptureStderr();
  auto const first = take(33);
  EXPECT_EQ(first.size(), 33 * MiB) << "who allocates knows nothing of it";
  auto const second = take(20);
  EXPECT_THAT(heard(), ElementsAre("none > moderate at 33", "moderate > high at 53"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("memory pressure has thrown: no nerve"));
  EXPECT_EQ(manager.statistics().pressure_calls, 6U);
  EXPECT_EQ(manager.statistics().failed_pressure_calls, 4U);
}

TEST_F(PressureOfSim, CallbacksThatAllocateHearOfThatWhenTheyHaveReturned) {
  std::vector<Allocation> taken;
  int depth = 0, deepest = 0;
  auto const subscription = manager.on_pressure([&](PressureChange const& change) {
    deepest = std::max(deepest, ++depth);
    diary.callback()(change);
    if (change.now == PressureLevel::moderate) taken.push_back(take(16));
    if (change.now == PressureLevel::high) taken.push_back(take(8));
    manager.settle_pressure();  // does not wait for itself
    --depth;
  });
  auto const block = take(32);
  for (int i = 0; i < 2; ++i) manager.settle_pressure();  // what each call causes is noticed before the call ends
  EXPECT_THAT(heard(), ElementsAre("none > moderate at 32", "moderate > high at 48", "high > critical at 56"));
  EXPECT_EQ(deepest, 1);
}

TEST_F(PressureOfSim, CallbacksMayUseTheManagerInAnyWay) {
  std::vector<Allocation> caches;
  caches.push_back(take(33));
  std::optional<PressureSubscription> another;
  auto const subscription = manager.on_pressure([&](PressureChange const& change) {
    diary.callback()(change);
    if (change.now < change.before) return;
    caches.clear();
    EXPECT_EQ(manager.cleanup(), 33 * MiB);
    EXPECT_EQ(manager.statistics().active_bytes, 20 * MiB);
    EXPECT_EQ(manager.available_memory(sim), 44 * MiB);
    another = manager.on_pressure([](PressureChange const&) {});
    manager.set_limit(sim, 64 * MiB);
  });
  auto const block = take(20);
  manager.settle_pressure();
  EXPECT_THAT(heard(), ElementsAre("moderate > high at 53", "high > none at 20"))
      << "the other is the callback's doing";
}

TEST_F(PressureOfSim, NobodyWaitsForACallback) {
  std::atomic<bool> go_on{false};
  auto const subscription = manager.on_pressure([&](PressureChange const& change) {
    go_on.wait(false);
    diary.callback()(change);
  });
  auto block = take(33);  // would hang
  block.release();
  EXPECT_EQ(now(), PressureLevel::none);
  go_on = true;
  go_on.notify_all();
  EXPECT_THAT(heard(), ElementsAre("none > moderate at 33", "moderate > none at 0")) << "nothing is lost meanwhile";
}

TEST_F(PressureOfSim, SettlingWaitsForWhatWasNoticedBeforeAndNotForWhatComesMeanwhile) {
  // Each call makes news for the next: waiting for all of them would never end.
  std::atomic<bool> over{false};
  std::optional<Allocation> own;
  auto const subscription = manager.on_pressure([&](PressureChange const& change) {
    diary.callback()(change);
    if (over) return;
    if (own) {
      own.reset();
      static_cast<void>(now());
    } else {
      own = take(16);
    }
  });
  auto const block = take(33);
  auto const lines = heard();
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(lines.front(), "none > moderate at 33");
  EXPECT_GE(heard().size(), 2U) << "what the first call noticed, at least";
  over = true;
}

TEST_F(PressureOfSim, BehindACallbackThatIsStuckCrossingsAreToldAsOneAndNothingGrows) {
  constexpr std::uint64_t rounds = 2000;
  std::atomic<bool> inside{false}, go_on{false};
  auto const subscription = manager.on_pressure([&](PressureChange const& change) {
    inside = true;
    inside.notify_all();
    go_on.wait(false);
    diary.callback()(change);
  });
  take(33).release();
  inside.wait(false);
  for (std::uint64_t i = 0; i < rounds; ++i) {
    EXPECT_EQ(now(), PressureLevel::none);
    take(33).release();
  }
  auto const block = take(50);
  go_on = true;
  go_on.notify_all();
  manager.settle_pressure();
  auto const changes = diary.changes();
  auto level = PressureLevel::none;
  for (auto const& change : changes) {
    ASSERT_EQ(change.before, level) << "each begins where the last one ended";
    ASSERT_NE(change.now, change.before);
    level = change.now;
  }
  EXPECT_EQ(level, PressureLevel::high) << "and the last is where it stands";
  auto const merged = manager.statistics().merged_crossings;
  EXPECT_GT(merged, 0U);
  EXPECT_LT(changes.size(), 1100U);
  EXPECT_EQ(changes.size() + merged, 2 * rounds + 2) << "none is missing";
  EXPECT_EQ(changes.back().live_bytes, 50 * MiB);
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

// ---- Threads and ends --------------------------------------------------------------------------------------------

TEST_F(PressureOfSim, UnderThreadsEveryChangeBeginsWhereTheLastOneEnded) {
  auto const subscription = manager.on_pressure(diary.callback());
  constexpr unsigned threads = 8;
  constexpr int rounds = 2000;
  {
    std::vector<std::jthread> all;
    for (unsigned thread = 0; thread < threads; ++thread) {
      all.emplace_back([&, thread] {
        std::mt19937 random{thread};
        std::vector<Allocation> held;
        for (int round = 0; round < rounds; ++round) {
          if (!held.empty() && random() % 2 == 0) {
            std::swap(held[random() % held.size()], held.back());
            held.pop_back();
          } else {
            try {
              held.push_back(take(1 + random() % 4));
            } catch (OutOfMemory const&) {
              held.clear();
            }
          }
        }
      });
    }
  }
  EXPECT_EQ(now(), PressureLevel::none) << "all is released";
  manager.settle_pressure();
  auto const changes = diary.changes();
  EXPECT_GE(changes.size(), 2U);
  auto level = PressureLevel::none;
  for (auto const& change : changes) {
    EXPECT_EQ(change.before, level);
    EXPECT_NE(change.now, change.before);
    EXPECT_LE(change.live_bytes, change.limit_bytes);
    level = change.now;
  }
  EXPECT_EQ(level, PressureLevel::none);
  EXPECT_EQ(manager.statistics().pressure_calls, changes.size());
}

TEST_F(PressureOfSim, SubscribersMayComeAndGoWhileLevelsChange) {
  std::atomic<bool> over{false};
  std::jthread const comings{[&] {
    while (!over) {
      std::atomic<int> calls{0};
      auto const subscription = manager.on_pressure([&calls](PressureChange const&) { ++calls; });
    }
  }};
  auto const subscription = manager.on_pressure(diary.callback());
  for (int i = 0; i < 200; ++i) {
    take(60).release();
    EXPECT_EQ(now(), PressureLevel::none);
  }
  over = true;
  EXPECT_EQ(heard().size(), 400U);
}

TEST_F(PressureOfSim, AManagerMayEndWhileACallbackRuns) {
  std::atomic<bool> inside{false}, go_on{false};
  auto brief = std::make_unique<MemoryManager>(options());
  auto const subscription = brief->on_pressure([&](PressureChange const& change) {
    inside = true;
    inside.notify_all();
    go_on.wait(false);
    diary.callback()(change);
  });
  brief->acquire(sim, Location::device, 33 * MiB).release();
  inside.wait(false);
  std::jthread const helper{[&] {
    go_on = true;
    go_on.notify_all();
  }};
  brief.reset();
  EXPECT_THAT(diary.lines(), ElementsAre("none > moderate at 33"));
}

TEST(PressureAtExit, WhoSubscribesThenIsNotCalledNorWaitedFor) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto const scenario = [] {
    alarm(30);        // settling used to wait for ever
    std::atexit([] {  // before the library's own handlers are, so it runs after them
      auto& sim = make_sim({.memory_bytes = 64 * MiB});
      MemoryManager manager;
      bool called = false;
      auto const subscription = manager.on_pressure([&](PressureChange const&) { called = true; });
      auto const block = manager.acquire(sim, Location::device, 60 * MiB);
      manager.settle_pressure();
      std::_Exit(!called && manager.pressure(sim, Location::device) == PressureLevel::high ? 7 : 1);
    });
    static auto const subscription = default_manager().on_pressure([](PressureChange const&) {});
    std::exit(2);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST(PressureAtExit, AProcessEndsWithSubscriptionsInItsStatics) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto const scenario = [] {
    static auto const subscription = default_manager().on_pressure([](PressureChange const&) {});
    auto& sim = make_sim({.memory_bytes = 64 * MiB});
    static auto const kept = default_manager().acquire(sim, Location::device, 60 * MiB);
    std::exit(default_manager().pressure(sim, Location::device) == PressureLevel::high ? 7 : 1);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

}  // namespace
}  // namespace unimem
