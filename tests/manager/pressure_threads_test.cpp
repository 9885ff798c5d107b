#include <unimem/core/error.hpp>

#include "manager/pressure_fixture.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

// Memory pressure while threads allocate, managers end and processes exit.

namespace unimem::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::ExitedWithCode;

TEST_F(PressureOfSim, EveryChangeBeginsWhereTheLastEnded) {
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

TEST(PressureAtExit, ALateSubscriberIsNeitherCalledNorAwaited) {
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
}  // namespace unimem::testing
