#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "core/sizes.hpp"
#include "pool/scripted_device.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <random>
#include <span>
#include <thread>
#include <vector>

namespace unimem {
namespace {

constexpr unsigned thread_count = 4;

/// Runs `work(thread)` on all threads at once.
template <class Work>
void on_threads(Work work) {
  std::barrier start{thread_count};
  std::vector<std::jthread> threads;
  for (unsigned t = 0; t < thread_count; ++t) {
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      work(t);
    });
  }
}

/// Host memory as words.
std::span<std::uint64_t> words_in(Allocation const& block) {
  return {static_cast<std::uint64_t*>(block.data()), block.size() / 8};
}

TEST(PoolThreads, KeepTheLimitAndUniqueOwners) {
  constexpr std::size_t limit = 2 * MiB;
  ScriptedDevice device{64 * MiB};
  // A driver in which other threads get their turn: the memory is still taken while they look for room.
  device.on_release = [](DeviceMemory) { std::this_thread::yield(); };
  device.on_allocate = [](std::size_t) { std::this_thread::yield(); };
  MemoryPool pool{device, Location::device, {.max_bytes = limit}};
  std::atomic<std::uint64_t> granted{0}, refused{0};
  on_threads([&](unsigned thread) {
    std::mt19937 random{thread};
    std::vector<Allocation> held;
    auto const drop = [&](std::size_t at) {
      auto const mine = words_in(held[at]);
      auto const tag = mine[0];
      ASSERT_EQ(tag >> 56, thread) << "another thread wrote into a block of this one";
      ASSERT_EQ(std::ranges::count(mine, tag), static_cast<std::ptrdiff_t>(mine.size()));
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
    };
    for (std::uint64_t i = 0; i < 4'000; ++i) {
      if (held.size() < 6 && random() % 2 == 0) {
        auto const bytes = 8 * (1 + random() % (std::size_t{1} << (random() % 16)));
        try {
          held.push_back(pool.acquire(bytes));
          ++granted;
          std::ranges::fill(words_in(held.back()), std::uint64_t{thread} << 56 | i);
        } catch (OutOfMemory const& error) {
          ++refused;
          ASSERT_EQ(error.limit(), limit);
        }
      } else if (!held.empty()) {
        ASSERT_NO_FATAL_FAILURE(drop(random() % held.size()));
      }
      if (i % 50 == 0) pool.trim(random() % limit);
      if (i % 97 == 0) {
        auto const statistics = pool.statistics();
        ASSERT_LE(statistics.reserved_bytes, limit);
        ASSERT_EQ(statistics.pool_hits + statistics.pool_misses, statistics.total_allocations);
      }
    }
    while (!held.empty()) ASSERT_NO_FATAL_FAILURE(drop(held.size() - 1));
  });
  pool.validate();
  auto const statistics = pool.statistics();
  EXPECT_LE(device.peak_bytes(), limit) << "the driver's own books";
  EXPECT_EQ(statistics.total_allocations, granted);
  EXPECT_EQ(statistics.failed_allocations, refused);
  EXPECT_EQ(statistics.active_allocations, 0U);
  EXPECT_EQ(statistics.active_bytes, 0U);
  EXPECT_EQ(statistics.reserved_bytes, device.live_bytes());
}

TEST(PoolThreads, ALimitWithRoomForAllRefusesNobody) {
  // Four threads take up to a quarter each, in sizes that do not fit each other's cached blocks, so every acquire lives
  // on what others give back. A thread that took memory in transit for memory in use would fail here.
  constexpr std::size_t quarter = 256 * KiB;
  ScriptedDevice device{64 * MiB};
  device.on_release = [](DeviceMemory) { std::this_thread::yield(); };
  device.on_allocate = [](std::size_t) { std::this_thread::yield(); };
  MemoryPool pool{device, Location::device, {.max_bytes = thread_count * quarter}};
  on_threads([&](unsigned thread) {
    std::mt19937 random{thread};
    for (int i = 0; i < 2'000; ++i) {
      auto const block = pool.acquire(8 + random() % (quarter - 8));
      words_in(block).front() = thread;
      ASSERT_EQ(words_in(block).front(), thread);
    }
  });
  EXPECT_EQ(pool.statistics().failed_allocations, 0U);
  EXPECT_EQ(pool.statistics().total_allocations, thread_count * 2'000U);
  EXPECT_LE(device.peak_bytes(), thread_count * quarter);
  pool.validate();
}

TEST(PoolThreads, QueuesOfManyThreadsShareBlocks) {
  auto& sim = make_sim({.memory_bytes = 4 * MiB});
  MemoryPool pool{sim, Location::device, {.max_bytes = MiB}};
  on_threads([&](unsigned thread) {
    auto queue = sim.create_queue();
    std::mt19937 random{thread};
    constexpr std::size_t count = 1024;
    for (std::uint64_t i = 0; i < 300; ++i) {
      std::vector<std::uint64_t> const written(count, std::uint64_t{thread} << 56 | i);
      std::vector<std::uint64_t> seen(count);
      auto block = pool.acquire(count * 8, {.queue = &queue});
      queue.upload(block.memory(), written.data(), count * 8);
      auto const last_use = queue.download(seen.data(), block.memory(), count * 8);
      block.release(last_use);  // at once: whoever gets it next is ordered behind
      if (random() % 16 == 0) pool.trim();
      last_use.wait();
      ASSERT_EQ(seen, written);
    }
  });
  pool.validate();
  EXPECT_EQ(pool.statistics().active_allocations, 0U);
}

class PoolThreadsOf : public ::testing::TestWithParam<PoolBacking> {
 protected:
  Device& device() { return GetParam() == PoolBacking::pages ? make_sim({.memory_bytes = 64 * MiB}) : scripted_; }

 private:
  ScriptedDevice scripted_{64 * MiB};
};

TEST_P(PoolThreadsOf, LimitsMayChangeWhileOthersAllocate) {
  MemoryPool pool{device(), Location::device, {.backing = GetParam()}};
  std::atomic<bool> done{false};
  std::jthread changer{[&] {
    std::mt19937 random{9};
    while (!done) {
      auto const limit = 256 * KiB + random() % MiB;
      try {
        pool.set_max_bytes(limit);
      } catch (InvalidArgument const& error) {
        EXPECT_EQ(error.argument, "bytes");
      }
      auto const statistics = pool.statistics();
      EXPECT_GE(pool.max_bytes(), statistics.active_bytes);
      EXPECT_GE(pool.max_bytes(), statistics.reserved_bytes);
      EXPECT_NO_THROW(pool.validate());
    }
  }};
  on_threads([&](unsigned thread) {
    std::mt19937 random{thread};
    for (int i = 0; i < 3'000; ++i) {
      try {
        auto const block = pool.acquire(1 + random() % (200 * KiB));
        ASSERT_EQ(block.memory().bytes, block.size());
      } catch (OutOfMemory const& error) {
        ASSERT_GT(error.requested(), 0U);
      }
    }
  });
  done = true;
  changer.join();
  pool.validate();
  EXPECT_LE(pool.statistics().reserved_bytes, pool.max_bytes());
}

TEST_P(PoolThreadsOf, LoweringALimitRacesWithGrowth) {
  MemoryPool pool{device(), Location::device, {.backing = GetParam()}};
  for (int round = 0; round < 500; ++round) {
    pool.set_max_bytes(8 * MiB);
    pool.trim();
    Allocation block;
    std::barrier start{2};
    std::jthread asker{[&] {
      start.arrive_and_wait();
      try {
        block = pool.acquire(2 * MiB);
      } catch (OutOfMemory const& error) {
        EXPECT_EQ(error.limit(), MiB);
      }
    }};
    start.arrive_and_wait();
    bool lowered = true;
    try {
      pool.set_max_bytes(MiB);
    } catch (InvalidArgument const&) {
      lowered = false;
    }
    asker.join();
    ASSERT_EQ(lowered, block.empty()) << "round " << round;
    ASSERT_LE(pool.statistics().reserved_bytes, pool.max_bytes());
    pool.validate();
  }
}

INSTANTIATE_TEST_SUITE_P(Backings, PoolThreadsOf, ::testing::Values(PoolBacking::allocations, PoolBacking::pages),
                         [](auto const& made) { return made.param == PoolBacking::pages ? "pages" : "allocations"; });

}  // namespace
}  // namespace unimem
