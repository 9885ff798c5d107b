#include "manager/pressure_fixture.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

// Who is told of memory pressure, and what he may do then.

namespace unimem::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(PressureOfSim, IsToldToCurrentSubscribersOnly) {
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

TEST_F(PressureOfSim, IsToldWhileAMovedSubscriptionLives) {
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

TEST_F(PressureOfSim, CallbacksHearOfTheirAllocationsAfterReturning) {
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

TEST_F(PressureOfSim, SettlingWaitsOnlyForEarlierCrossings) {
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

TEST_F(PressureOfSim, CrossingsBehindAStuckCallbackAreMerged) {
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

}  // namespace
}  // namespace unimem::testing
