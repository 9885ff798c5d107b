#include "device/cpu/thread_pool.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <initializer_list>
#include <latch>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace unimem::detail {
namespace {

using Sizes = std::initializer_list<std::size_t>;

using ::testing::Each;

TEST(ThreadPool, RunsEveryPieceOnce) {
  ThreadPool pool{4};
  for (auto const count : Sizes{0, 1, 2, 3, 4, 5, 100, 10'000}) {
    std::vector<int> runs(count);
    pool.parallel_for(count, [&](std::size_t i) { ++runs[i]; });
    EXPECT_THAT(runs, Each(1)) << count << " pieces";
  }
}

TEST(ThreadPool, UsesAllItsThreadsAtOnce) {
  ThreadPool pool{3};
  EXPECT_EQ(pool.threads(), 3U);
  std::latch together{3};
  std::mutex mutex;
  std::set<std::thread::id> threads;
  // Each piece waits for the other two: this ends only if three threads run them.
  pool.parallel_for(3, [&](std::size_t) {
    together.arrive_and_wait();
    std::lock_guard const lock{mutex};
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(threads.size(), 3U);
  EXPECT_TRUE(threads.contains(std::this_thread::get_id())) << "the caller takes part";
}

TEST(ThreadPool, NobodyIsLeftInsideWhenALoopEnds) {
  ThreadPool pool{2};
  for (int round = 0; round < 10; ++round) {
    std::latch together{2};
    auto const caller = std::this_thread::get_id();
    bool left = false;  // plain memory: written by the helper, read when the loop has ended
    pool.parallel_for(2, [&](std::size_t) {
      together.arrive_and_wait();
      if (std::this_thread::get_id() == caller) return;
      auto const until = std::chrono::steady_clock::now() + std::chrono::milliseconds{5};
      while (std::chrono::steady_clock::now() < until) continue;  // work that takes its time
      left = true;
    });
    ASSERT_TRUE(left);
  }
}

TEST(ThreadPool, OfOneThreadRunsInline) {
  ThreadPool pool{1};
  std::vector<std::size_t> order;
  pool.parallel_for(5, [&](std::size_t i) { order.push_back(i); });
  EXPECT_THAT(order, ::testing::ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(ThreadPool{0}.threads(), 1U);
}

TEST(ThreadPool, ThrowsTheFirstExceptionWhenAllHaveLeft) {
  ThreadPool pool{4};
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> inside{0};
    try {
      pool.parallel_for(100, [&](std::size_t i) {
        ++inside;
        struct Leave {
          std::atomic<int>& inside;
          ~Leave() { --inside; }
        } const leave{inside};
        if (i % 10 == 3) throw std::runtime_error("piece");
      });
      FAIL() << "the exception was lost";
    } catch (std::runtime_error const& error) {
      EXPECT_STREQ(error.what(), "piece");
      ASSERT_EQ(inside, 0) << "a piece was still running when the loop was left";
    }
  }
  std::atomic<int> runs{0};
  pool.parallel_for(100, [&](std::size_t) { ++runs; });
  EXPECT_EQ(runs, 100) << "the pool works on";
}

TEST(ThreadPool, AnExceptionSkipsWhatHasNotBegun) {
  ThreadPool pool{2};
  std::atomic<int> runs{0};
  std::latch together{2};
  EXPECT_THROW(pool.parallel_for(10'000,
                                 [&](std::size_t i) {
                                   if (i < 2) together.arrive_and_wait();  // one throws, one would go on
                                   if (i == 0) throw std::runtime_error("at once");
                                   ++runs;
                                   auto const until = std::chrono::steady_clock::now() + std::chrono::microseconds{50};
                                   while (std::chrono::steady_clock::now() < until) continue;
                                 }),
               std::runtime_error);
  EXPECT_LT(runs, 9'000);
}

TEST(ThreadPool, LoopsWithinLoopsRunInline) {
  ThreadPool pool{4};
  std::vector<int> runs(64);
  std::atomic<int> strayed{0};
  pool.parallel_for(8, [&](std::size_t outer) {
    auto const here = std::this_thread::get_id();
    pool.parallel_for(8, [&](std::size_t inner) {
      ++runs[outer * 8 + inner];
      strayed += std::this_thread::get_id() != here;
    });
  });
  EXPECT_THAT(runs, Each(1));
  EXPECT_EQ(strayed, 0);
}

TEST(ThreadPool, ManyThreadsRunLoopsAtOnce) {
  ThreadPool pool{3};
  constexpr std::size_t callers = 5, rounds = 200, count = 37;
  std::vector<std::size_t> sums(callers);
  std::vector<std::thread> crowd;
  for (std::size_t caller = 0; caller < callers; ++caller) {
    crowd.emplace_back([&, caller] {
      for (std::size_t round = 0; round < rounds; ++round) {
        std::vector<std::size_t> squares(count);  // plain memory: the pool's own order makes it visible
        pool.parallel_for(count, [&](std::size_t i) { squares[i] = i * i; });
        sums[caller] += std::accumulate(squares.begin(), squares.end(), std::size_t{0});
      }
    });
  }
  for (auto& thread : crowd) thread.join();
  EXPECT_THAT(sums, Each(rounds * (count - 1) * count * (2 * count - 1) / 6));
}

TEST(ThreadPool, ComesAndGoesWithItsThreads) {
  for (int round = 0; round < 50; ++round) {
    ThreadPool pool{4};
    std::atomic<int> runs{0};
    pool.parallel_for(10, [&](std::size_t) { ++runs; });
    ASSERT_EQ(runs, 10);
  }
}

}  // namespace
}  // namespace unimem::detail
