#include "core/held_over_fork.hpp"

#include <unimem/core/log.hpp>

#include "forked_child.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace unimem::detail {
namespace {

using ::testing::ElementsAre;
using Order = HeldOverFork::Order;
using Deadline = HeldOverFork::Deadline;

// Not with the others' order: those would not be held under ThreadSanitizer.
constexpr auto last = Order::last;

/// Notes when it is held, and let go of on which side.
HeldOverFork::Acts noted(std::vector<std::string>& notes, std::string const& name, bool held = true) {
  return {[&notes, name, held](Deadline) {
            notes.push_back("hold " + name);
            return held;
          },
          [&notes, name](bool in_child) { notes.push_back((in_child ? "child " : "parent ") + name); }};
}

TEST(HeldOverFork, LetsGoOnBothSidesInReverseOrder) {
  std::vector<std::string> notes;
  HeldOverFork const one(last, noted(notes, "one"));
  HeldOverFork const other(last, noted(notes, "other"));
  auto const ending = in_child([&] {
    EXPECT_HERE((notes == std::vector<std::string>{"hold one", "hold other", "child other", "child one"}));
    return 0;
  });
  EXPECT_EQ(ending, 0);
  EXPECT_THAT(notes, ElementsAre("hold one", "hold other", "parent other", "parent one"));
}

TEST(HeldOverFork, TakesOuterLocksFirstWhicheverCameFirst) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "under ThreadSanitizer only what is last in order is held";
#endif
  std::vector<std::string> notes;
  HeldOverFork const inner(Order::memory, noted(notes, "memory"));
  HeldOverFork const innermost(Order::last, noted(notes, "last"));
  HeldOverFork const outer(Order::manager, noted(notes, "manager"));
  EXPECT_EQ(in_child([] { return 0; }), 0);
  EXPECT_THAT(
      notes, ElementsAre("hold manager", "hold memory", "hold last", "parent last", "parent memory", "parent manager"));
}

TEST(HeldOverFork, ReleasesOnlyWhatWasHeld) {
  std::vector<std::string> notes;
  HeldOverFork const refuses(last, noted(notes, "it", false));
  EXPECT_EQ(in_child([&] { return static_cast<int>(notes.size()) - 1; }), 0);
  EXPECT_THAT(notes, ElementsAre("hold it"));
}

TEST(HeldOverFork, ForgetsWhatIsGone) {
  std::vector<std::string> notes;
  {
    HeldOverFork const gone(last, noted(notes, "it"));
  }
  EXPECT_EQ(in_child([] { return 0; }), 0);
  EXPECT_TRUE(notes.empty());
}

TEST(HeldOverFork, HoldsWhatIsEnlistedWhileItWaits) {
  std::vector<std::string> notes;
  std::unique_ptr<HeldOverFork> late;
  HeldOverFork const one(last, {[&](Deadline) {
                                  if (!late) late = std::make_unique<HeldOverFork>(last, noted(notes, "late"));
                                  return true;
                                },
                                [&](bool in_child) { notes.emplace_back(in_child ? "child" : "parent"); }});
  EXPECT_EQ(in_child([] { return 0; }), 0);
  EXPECT_THAT(notes, ElementsAre("parent", "hold late", "parent late", "parent"));
}

TEST(HeldOverFork, AMutexIsFreeInAChild) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a child that is forked while a thread allocates hangs in the sanitizer's runtime";
#endif
  std::mutex mutex;
  std::condition_variable changed;
  std::pair<int, int> alike{0, 0};
  HeldOverFork const held(Order::pool, mutex, [&] { HeldOverFork::renew(changed); });
  std::atomic<bool> done{false};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!done) {
        std::unique_lock lock{mutex};
        ++alike.first;
        if (alike.first % 4 == 0) std::this_thread::yield();
        ++alike.second;
        changed.notify_all();
        changed.wait_for(lock, std::chrono::microseconds{20});
      }
    });
  }
  for (int round = 0; round < 200; ++round) {
    auto const child = fork();
    if (child == 0) {
      alarm(30);
      std::unique_lock lock{mutex};
      changed.notify_all();
      changed.notify_all();
      lock.unlock();
      std::destroy_at(&changed);
      _exit(alike.first == alike.second ? 0 : 1);
    }
    EXPECT_EQ(ending_of(child), 0);
  }
  done = true;
}

TEST(HeldOverFork, ThreadsThatForkAtOnceDoNotDeadlock) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a child that is forked while a thread allocates hangs in the sanitizer's runtime";
#endif
  std::mutex mutex;
  HeldOverFork const held(Order::pool, mutex);
  std::atomic<int> failures{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        for (int round = 0; round < 50; ++round) {
          std::mutex own;
          HeldOverFork const another(Order::manager, own);
          auto const child = fork();
          if (child == 0) {
            alarm(30);
            std::lock_guard const lock{mutex};
            _exit(0);
          }
          if (ending_of(child) != 0) ++failures;
        }
      });
    }
  }
  EXPECT_EQ(failures, 0);
}

TEST(HeldOverFork, AChildWritesToALogInUse) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a child that is forked while a thread allocates hangs in the sanitizer's runtime";
#endif
  ::testing::internal::CaptureStderr();
  std::atomic<bool> done{false};
  int failures = 0;
  log(LogLevel::error, "made before");  // who makes it when the process forks is never done with that in the child
  {
    std::jthread const busy([&] {
      while (!done) log(LogLevel::error, "parent");
    });
    for (int round = 0; round < 100; ++round) {
      auto const child = fork();
      if (child == 0) {
        alarm(30);
        log(LogLevel::error, "child");
        _exit(0);
      }
      failures += ending_of(child) != 0;
    }
    done = true;
  }
  auto const lines = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(failures, 0);
  std::size_t children = 0;
  for (auto at = lines.find("child\n"); at != std::string::npos; at = lines.find("child\n", at + 1)) ++children;
  EXPECT_EQ(children, 100U);
}

}  // namespace
}  // namespace unimem::detail
