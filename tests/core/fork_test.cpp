#include "core/fork.hpp"
#include "core/sanitizers.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>

#include "core/fork_locks.hpp"
#include "forked_child.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace unimem::detail {
namespace {

TEST(Fork, DepthCountsTheForksOfALine) {
  EXPECT_EQ(Fork::depth(), 0U);
  auto const grandchild = [] { return in_child([] { return static_cast<int>(Fork::depth()); }); };
  EXPECT_EQ(in_child([] { return static_cast<int>(Fork::depth()); }), 1);
  EXPECT_EQ(in_child(grandchild), 2);
  EXPECT_EQ(Fork::depth(), 0U) << "the parent stays what it is";
}

std::atomic<int> calls{0};

TEST(Fork, HooksRunInEveryChildAndNowhereElse) {
  static Fork::Hook const first{[]() noexcept { calls = 10 * calls + 1; }};
  static Fork::Hook const second{[]() noexcept { calls = 10 * calls + 2; }};
  EXPECT_EQ(in_child([] { return calls.load(); }), 21) << "the latest first";
  EXPECT_EQ(in_child([] { return in_child([] { return calls == 2121 ? 0 : 1; }); }), 0);
  EXPECT_EQ(calls, 0);
}

TEST(MadeHere, TellsWhatAChildInherits) {
  MadeHere const parents;
  EXPECT_FALSE(parents.inherited());
  EXPECT_NO_THROW(parents.require("using it"));
  EXPECT_EQ(in_child([&] {
              EXPECT_HERE(parents.inherited());
              MadeHere const own;
              EXPECT_HERE(!own.inherited());
              try {
                parents.require("using it");
              } catch (UnsupportedOperation const& error) {
                EXPECT_HERE(error.operation == "using it" && error.where == "a forked child process");
                return in_child([&] { return own.inherited() && parents.inherited() ? 0 : 1; });
              }
              return 1;
            }),
            0);
}

TEST(PerProcess, IsMadeAnewInAChild) {
  static constinit PerProcess<int> number;
  auto& here = number.get([] { return std::make_unique<int>(5); });
  EXPECT_EQ(here, 5);
  EXPECT_EQ(&number.get([] { return std::make_unique<int>(6); }), &here) << "once made it stays";
  EXPECT_EQ(in_child([&] {
              auto& own = number.get([] { return std::make_unique<int>(7); });
              EXPECT_HERE(own == 7 && &own != &here && here == 5);
              EXPECT_HERE(&number.get() == &own);
              return 0;
            }),
            0);
  EXPECT_EQ(&number.get(), &here);
}

TEST(PerProcess, ThreadsThatMakeItAtOnceGetOne) {
  constexpr int threads = 4;
  for (int round = 0; round < 200; ++round) {
    PerProcess<int> number;
    std::barrier together{threads};
    std::mutex mutex;
    std::set<int*> seen;
    {
      std::vector<std::jthread> all;
      for (int i = 0; i < threads; ++i) {
        all.emplace_back([&] {
          together.arrive_and_wait();
          auto* const found = &number.get();
          std::lock_guard const lock{mutex};
          seen.insert(found);
        });
      }
    }
    EXPECT_EQ(seen.size(), 1U);
    number.end();
  }
}

struct Counted {
  Counted() = default;
  Counted(Counted const&) = delete;
  Counted& operator=(Counted const&) = delete;
  ~Counted() { ++destroyed; }
  static inline int destroyed = 0;
};

TEST(PerProcess, IsDestroyedByEndWhereItWasMade) {
  PerProcess<Counted> one;
  one.end();
  EXPECT_EQ(Counted::destroyed, 0) << "it was never made";
  std::ignore = one.get();
  EXPECT_EQ(in_child([&] {
              one.end();
              return Counted::destroyed;
            }),
            0)
      << "a child leaves what it inherits";
  one.end();
  EXPECT_EQ(Counted::destroyed, 1);
}

TEST(OneProcess, IsNeitherUsedNorDestroyedInAChild) {
  auto one = std::make_unique<OneProcess<Counted>>();
  EXPECT_EQ(one->find(), &one->get("using it"));
  auto const before = Counted::destroyed;
  EXPECT_EQ(in_child([&] {
              EXPECT_HERE(one->find() == nullptr);
              EXPECT_HERE(is_refused([&] { std::ignore = one->get("using it"); }));
              one.reset();
              EXPECT_HERE(Counted::destroyed == before);
              std::make_unique<OneProcess<Counted>>().reset();
              return Counted::destroyed == before + 1 ? 0 : 1;
            }),
            0);
  one.reset();
  EXPECT_EQ(Counted::destroyed, before + 1);
}

/// A lock that another thread holds until this goes.
template <class Lock>
class HeldElsewhere {
 public:
  explicit HeldElsewhere(Lock& lock)
      : thread_([this, &lock] {
          static_cast<void>(lock.lock());
          held_ = true;
          held_.notify_all();
          over_.wait(false);
          lock.unlock();
        }) {
    held_.wait(false);
  }
  HeldElsewhere(HeldElsewhere const&) = delete;
  HeldElsewhere& operator=(HeldElsewhere const&) = delete;
  ~HeldElsewhere() {
    over_ = true;
    over_.notify_all();
  }

 private:
  std::atomic<bool> held_{false}, over_{false};
  std::jthread thread_;
};

TEST(ForkableMutex, IsLostToAChildIfHeldAtTheFork) {
  ForkableMutex mutex;
  {
    HeldElsewhere const held{mutex};
    EXPECT_EQ(in_child([&] {
                EXPECT_HERE(mutex.is_lost());
                EXPECT_HERE(!mutex.lock() && !mutex.lock());
                return 0;
              }),
              0);
    EXPECT_FALSE(mutex.is_lost()) << "here it will be free again";
  }
  EXPECT_EQ(in_child([&] {
              EXPECT_HERE(!mutex.is_lost());
              for (int i = 0; i < 2; ++i) {
                EXPECT_HERE(mutex.lock());
                mutex.unlock();
              }
              return 0;
            }),
            0);
}

TEST(ForkableMutex, ThreadsOfAChildWaitForEachOther) {
  ForkableMutex mutex;
  EXPECT_EQ(in_child([&] {
              auto held = std::make_unique<HeldElsewhere<ForkableMutex>>(mutex);
              EXPECT_HERE(!mutex.is_lost() && !mutex.try_lock());
              std::jthread const ends_it{[&] {
                std::this_thread::sleep_for(std::chrono::milliseconds{20});
                held.reset();
              }};
              EXPECT_HERE(mutex.lock());
              mutex.unlock();
              return 0;
            }),
            0);
}

TEST(SpinLock, IsGivenUpInAChildIfHeldAtTheFork) {
  SpinLock lock;
  HeldElsewhere const held{lock};
  EXPECT_EQ(in_child([&] {
              EXPECT_HERE(!lock.lock());
              EXPECT_HERE(!SpinGuard(lock));  // for good
              return 0;
            }),
            0);
}

TEST(Fork, AChildWritesToALogInUse) {
  if (detail::is_sanitized)
    GTEST_SKIP() << "a child that is forked while a thread allocates hangs in the sanitizer's runtime";
  ::testing::internal::CaptureStderr();
  std::atomic<bool> done{false};
  int failures = 0;
  log(LogLevel::error, "made before");  // a child cannot finish what another thread is making when the process forks
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
