#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/queue.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "pool/pages_pool_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

// Pools whose blocks are parts of pages: what that changes, and what it must not.

namespace unimem {
namespace {

using namespace std::chrono_literals;

TEST_F(PoolOfPages, FreePiecesServeALargerBlock) {
  make({.max_bytes = 32 * MiB});
  std::vector<Allocation> blocks;
  for (std::uint64_t i = 0; i < 32; ++i) fill(blocks.emplace_back(pool->acquire(MiB)), i);
  for (std::size_t i = 0; i < 32; i += 2) blocks[i].release();
  auto const large = pool->acquire(16 * MiB);
  fill(large, 99);
  for (std::uint64_t i = 1; i < 32; i += 2) EXPECT_TRUE(holds(blocks[i], i)) << i;
  EXPECT_TRUE(holds(large, 99));
  EXPECT_EQ(pool->statistics().reserved_bytes, 32 * MiB);
  EXPECT_EQ(pool->statistics().pool_hits, 1U) << "no memory was taken for it";
  EXPECT_THROW(static_cast<void>(pool->acquire(1)), OutOfMemory) << "and now it is full";
}

TEST_F(PoolOfPages, SmallBlocksShareAPage) {
  make();
  std::vector<Allocation> blocks;
  for (std::uint64_t i = 0; i < 600; ++i) fill(blocks.emplace_back(pool->acquire(8 + i % 256)), i);
  EXPECT_EQ(pool->statistics().reserved_bytes, 3 * page);
  for (auto const& block : blocks) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data()) % device.info().alignment, 0U);
    EXPECT_EQ(block.memory().object, reinterpret_cast<std::uintptr_t>(block.data())) << "an address of its own";
  }
  for (std::uint64_t i = 0; i < 600; ++i) EXPECT_TRUE(holds(blocks[i], i)) << i;
}

TEST_F(PoolOfPages, ReservedIsInUseCachedOrSlack) {
  make();
  auto const small = pool->acquire(1000);
  auto statistics = pool->statistics();
  EXPECT_EQ(statistics.reserved_bytes, page);
  EXPECT_EQ(statistics.active_bytes, 1024U);
  EXPECT_EQ(statistics.total_pooled_bytes, 0U);
  EXPECT_EQ(statistics.slack_bytes, page - 1024);
  pool->acquire(3 * MiB).release();
  statistics = pool->statistics();
  EXPECT_EQ(statistics.total_pooled_bytes, 3 * MiB);
  EXPECT_EQ(statistics.reserved_bytes, page + 3 * MiB);
  EXPECT_EQ(pool->trim(MiB), 2 * MiB);
  EXPECT_EQ(pool->statistics().total_pooled_bytes, MiB);
  EXPECT_EQ(pool->trim(), MiB);
  EXPECT_EQ(pool->trim(), 0U) << "the rest shares a page with a block";
  EXPECT_EQ(pool->statistics().reserved_bytes, page);
  EXPECT_EQ(pool->statistics().slack_bytes, page - 1024);
}

TEST_F(PoolOfPages, AnUnevenLimitIsUsedEntirely) {
  constexpr std::size_t limit = 20 * MiB + 1000;
  make({.max_bytes = limit});
  auto large = pool->acquire(limit);
  EXPECT_EQ(taken_from(device), limit);
  EXPECT_THROW(static_cast<void>(pool->acquire(1)), OutOfMemory);
  large.release();
  pool->trim();
  {
    auto const pages = pool->acquire(20 * MiB), rest = pool->acquire(1000);
    EXPECT_LE(taken_from(device), limit);
    EXPECT_THROW(static_cast<void>(pool->acquire(1)), OutOfMemory);
  }
  EXPECT_EQ(pool->acquire(limit).capacity(), limit) << "whatever is cached makes way";
}

TEST_F(PoolOfPages, ALimitIsLoweredToMemoryInUse) {
  make();
  auto const block = pool->acquire(3 * MiB), small = pool->acquire(100);
  pool->acquire(9 * MiB).release();
  try {
    pool->set_max_bytes(3 * MiB);
    FAIL() << "below what is in use";
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.argument, "bytes");
    EXPECT_THAT(error.what(), ::testing::HasSubstr(std::to_string(3 * MiB + page)));
  }
  pool->set_max_bytes(3 * MiB + page);
  EXPECT_EQ(pool->statistics().reserved_bytes, 3 * MiB + page);
  EXPECT_EQ(pool->acquire(200).capacity(), 256U) << "the page has room";
}

TEST_F(PoolOfPages, ALoweredLimitHoldsForPages) {
  constexpr std::size_t limit = 20 * MiB + 1000;
  make();
  pool->acquire(30 * MiB).release();
  pool->set_max_bytes(limit);
  auto const pages = pool->acquire(20 * MiB), rest = pool->acquire(1000);
  EXPECT_LE(taken_from(device), limit) << "a page for the rest would have been too much";
  EXPECT_THROW(static_cast<void>(pool->acquire(1)), OutOfMemory);
}

TEST_F(PoolOfPages, FreePartsAreAlwaysCounted) {
  make({.max_bytes = 16 * MiB});
  constexpr std::uint64_t seed = 11;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random{seed};
  std::vector<Allocation> blocks;
  for (int i = 0; i < 400; ++i) {
    if (blocks.size() > 60) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      blocks.pop_back();
    }
    blocks.push_back(pool->acquire(1 + random() % (std::size_t{64} << (random() % 12))));
    if (i % 50 == 0) pool->trim();
    ASSERT_NO_THROW(pool->validate()) << i;
    ASSERT_EQ(pool->statistics().reserved_bytes, taken_from(device)) << i;
  }
}

TEST_F(PoolOfPages, ADriverThatRefusesIsAskedTwice) {
  auto& faulty = make_sim({.memory_bytes = 64 * MiB, .fail_allocation = 3});
  {
    MemoryPool faulted{faulty, Location::device, {.backing = PoolBacking::pages}};
    auto const first = faulted.acquire(2 * MiB);
    auto freed = faulted.acquire(MiB);
    fill(first, 1);
    freed.release();
    auto const second = faulted.acquire(3 * MiB);
    fill(second, 2);
    EXPECT_TRUE(holds(first, 1) && holds(second, 2));
    EXPECT_EQ(taken_from(faulty), 5 * MiB) << "the free megabyte went back first";
    EXPECT_EQ(faulted.statistics().failed_allocations, 0U);
    faulted.validate();
  }
  EXPECT_EQ(taken_from(faulty), 0U);
  auto& again = make_sim({.memory_bytes = 64 * MiB, .fail_allocation = 2});
  MemoryPool pool_of_it{again, Location::device, {.backing = PoolBacking::pages}};
  auto const first = pool_of_it.acquire(2 * MiB);
  EXPECT_THROW(static_cast<void>(pool_of_it.acquire(3 * MiB)), OutOfMemory) << "with nothing to give back";
  EXPECT_EQ(taken_from(again), 2 * MiB);
  pool_of_it.validate();
  EXPECT_EQ(pool_of_it.acquire(3 * MiB).capacity(), 3 * MiB);
}

TEST_F(PoolOfPages, PendingBlocksAreNotTakenApart) {
  auto& slow = make_sim({.memory_bytes = 64 * MiB, .latency = 200ms});
  MemoryPool busy{slow, Location::device, {.max_bytes = 16 * MiB, .backing = PoolBacking::pages}};
  auto queue = slow.create_queue();
  std::vector<std::uint64_t> const source(MiB, 7);
  std::vector<std::uint64_t> seen(MiB);
  auto block = busy.acquire(8 * MiB);
  queue.upload(block.memory(), source.data(), 8 * MiB);
  auto const read = queue.download(seen.data(), block.memory(), 8 * MiB);
  block.release(read);
  auto const beside = busy.acquire(4 * MiB);
  EXPECT_FALSE(read.ready()) << "there was room beside it";
  fill(beside, 1);
  auto const all = busy.acquire(12 * MiB);
  EXPECT_TRUE(read.ready()) << "there was not";
  fill(all, 2);
  EXPECT_EQ(seen, source);
  EXPECT_TRUE(holds(beside, 1));
}

TEST_F(PoolOfPages, NearlyAllThatIsReservedIsInUse) {
  make();
  std::mt19937_64 random{7};
  std::vector<Allocation> blocks;
  std::size_t live = 0, most_live = 0;
  for (int i = 0; i < 20'000; ++i) {
    auto const bytes = std::size_t{256} << (random() % 13);
    while (live + bytes > 40 * MiB) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      live -= blocks.back().size();
      blocks.pop_back();
    }
    blocks.push_back(pool->acquire(bytes - random() % (bytes / 2)));
    live += blocks.back().size();
    most_live = std::max(most_live, live);
  }
  auto const statistics = pool->statistics();
  EXPECT_LE(statistics.peak_reserved_bytes, most_live + most_live / 6) << "with blocks of a few pages";
  EXPECT_GE(statistics.hit_rate(), 0.9);
}

TEST(PoolOfPagesInTheLongRun, TakesMoreRatherThanMoveForEver) {
  auto& sim = make_sim({.memory_bytes = 1024 * MiB});
  MemoryPool pool{sim, Location::device, {.backing = PoolBacking::pages}};
  constexpr std::size_t most_live = 768 * MiB;
  constexpr std::uint64_t seed = 5;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random{seed};
  std::vector<Allocation> live;
  std::size_t bytes = 0;
  auto const go_on = [&](int operations) {
    for (int i = 0; i < operations; ++i) {
      auto const next = 2 * MiB + random() % (30 * MiB);
      while (bytes + next > most_live) {
        auto& victim = live[random() % live.size()];
        bytes -= victim.size();
        std::swap(victim, live.back());
        live.pop_back();
      }
      bytes += live.emplace_back(pool.acquire(next)).size();
    }
    return static_cast<double>(pool.statistics().peak_reserved_bytes) /
           static_cast<double>(pool.statistics().peak_active_bytes);
  };
  EXPECT_LE(go_on(200), 1 + 1 / 25.0);
  auto const in_the_end = go_on(20'000);
  EXPECT_GT(in_the_end, 1 + 1 / 25.0);
  EXPECT_LE(in_the_end, 1 + 1 / 12.0) << "what threads keep included";
  pool.validate();
}

TEST_F(PoolOfPages, WhatLiesIdleForAnIntervalGoesBack) {
  std::atomic<std::int64_t> seconds{100};
  PoolOptions options;
  options.trim_interval = 10s;
  options.clock = [&] { return std::chrono::steady_clock::time_point{std::chrono::seconds{seconds}}; };
  make(options);
  auto const kept = pool->acquire(MiB);
  pool->acquire(20 * MiB).release();
  EXPECT_EQ(taken_from(device), 21 * MiB);
  seconds += 9;
  pool->acquire(2 * MiB).release();
  EXPECT_EQ(taken_from(device), 21 * MiB) << "not yet";
  for (int i = 0; i < 3; ++i) {
    seconds += 11;
    pool->acquire(2 * MiB).release();
  }
  EXPECT_LE(taken_from(device), 3 * MiB);
  EXPECT_GE(taken_from(device), MiB);
}

TEST_F(PoolOfPages, BeyondTheThresholdPagesGoBackAtOnce) {
  make({.release_threshold = 4 * MiB});
  auto a = pool->acquire(3 * MiB), b = pool->acquire(6 * MiB);
  a.release();
  EXPECT_EQ(taken_from(device), 9 * MiB);
  b.release();
  EXPECT_LE(pool->statistics().total_pooled_bytes, 4 * MiB);
  EXPECT_EQ(taken_from(device), pool->statistics().reserved_bytes);
}

TEST_F(PoolOfPages, AThresholdCountsSlabsAndPages) {
  for (std::size_t const threshold : {std::size_t{0}, page, 3 * page}) {
    make({.release_threshold = threshold});
    pool->acquire(100).release();
    EXPECT_LE(taken_from(device), threshold);
    pool->acquire(200'000).release();
    EXPECT_LE(taken_from(device), threshold) << "of which nothing is in use";
    EXPECT_EQ(pool->statistics().slack_bytes, 0U);
  }
}

TEST_F(PoolOfPages, BlocksThatOutliveItGoBack) {
  make();
  auto block = pool->acquire(5 * MiB);
  auto small = pool->acquire(100);
  fill(block, 5);
  pool.reset();
  EXPECT_EQ(taken_from(device), 5 * MiB + page);
  EXPECT_TRUE(holds(block, 5));
  block.release();
  EXPECT_EQ(taken_from(device), page);
  small.release();
  EXPECT_EQ(taken_from(device), 0U);
}

TEST_F(PoolOfPages, AreRefusedWithoutPages) {
  try {
    MemoryPool const none{unimem::device("cpu"), Location::pinned, {.backing = PoolBacking::pages}};
    FAIL() << "made of what?";
  } catch (UnsupportedOperation const& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("cpu pinned"));
  }
  make({.max_bytes = MiB});  // said is said, however small
  auto const block = pool->acquire(100);
  EXPECT_EQ(taken_from(device), page);
}

TEST(PoolBackings, AreChosenByTheRoomThereIs) {
  auto& sim = make_sim({.memory_bytes = 64 * MiB});
  MemoryPool large{sim, Location::device}, small{sim, Location::device, {.max_bytes = 256 * page - 1}};
  auto const a = large.acquire(100);
  EXPECT_EQ(large.statistics().reserved_bytes, page);
  auto const b = small.acquire(100);
  EXPECT_EQ(small.statistics().reserved_bytes, 256U);
}

/// Threads that acquire, write, verify and release, some of it on behalf of others.
TEST(PoolOfPagesThreads, NoBytesAreHeldTwiceWhilePagesMove) {
  constexpr unsigned thread_count = 4;
  constexpr std::size_t limit = 24 * MiB;
  auto& sim = make_sim({.memory_bytes = 64 * MiB});
  MemoryPool pool{sim, Location::device, {.max_bytes = limit, .backing = PoolBacking::pages}};
  std::barrier start{thread_count};
  std::atomic<std::uint64_t> granted{0};
  {
    std::vector<std::jthread> threads;
    for (unsigned thread = 0; thread < thread_count; ++thread) {
      threads.emplace_back([&, thread] {
        std::mt19937 random{thread};
        std::vector<std::pair<Allocation, std::uint64_t>> held;
        start.arrive_and_wait();
        for (std::uint64_t i = 0; i < 1500; ++i) {
          if (held.size() < 8 && random() % 2 == 0) {
            try {
              auto block = pool.acquire(8 + random() % (std::size_t{1} << (6 + random() % 16)));
              auto const word = (std::uint64_t{thread} << 56) | i;
              words(block).front() = words(block).back() = word;
              held.emplace_back(std::move(block), word);
              ++granted;
            } catch (OutOfMemory const&) {
              held.clear();
            }
          } else if (!held.empty()) {
            auto const at = random() % held.size();
            auto const& [block, word] = held[at];
            ASSERT_TRUE(words(block).front() == word && words(block).back() == word) << "somebody else wrote here";
            held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
          }
          if (i % 100 == 0) pool.trim(random() % limit);
          ASSERT_TRUE(i % 50 != 0 || pool.statistics().reserved_bytes <= limit);
        }
      });
    }
  }
  pool.validate();
  EXPECT_EQ(pool.statistics().active_bytes, 0U);
  EXPECT_EQ(pool.statistics().total_allocations, granted);
  EXPECT_EQ(pool.statistics().reserved_bytes, taken_from(sim));
  pool.trim();
  EXPECT_EQ(taken_from(sim), 0U);
}

/// As work is queued ahead, blocks go back while commands still use them; meanwhile pages move round them.
TEST(PoolOfPagesThreads, QueuesShareMovingPages) {
  constexpr unsigned thread_count = 3;
  constexpr std::size_t limit = 4 * MiB;
  auto& sim = make_sim({.memory_bytes = 32 * MiB, .latency = 100us});
  MemoryPool pool{sim, Location::device, {.max_bytes = limit, .backing = PoolBacking::pages}};
  std::atomic<std::size_t> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (unsigned thread = 0; thread < thread_count; ++thread) {
      threads.emplace_back([&, thread] {
        struct Pending {
          std::vector<std::uint64_t> written, seen;
          Event event;
        };
        auto queue = sim.create_queue();
        std::mt19937 random{thread};
        std::vector<Pending> pending;
        for (std::uint64_t i = 0; i < 150; ++i) {
          auto const count = std::size_t{1} << (5 + random() % 12);
          auto& one = pending.emplace_back();
          one.written.assign(count, (std::uint64_t{thread} << 56) | i);
          one.seen.resize(count);
          auto block = pool.acquire(count * 8, {.queue = &queue});
          queue.upload(block.memory(), one.written.data(), count * 8);
          one.event = queue.download(one.seen.data(), block.memory(), count * 8);
          block.release(one.event);
          if (random() % 16 == 0) pool.trim(random() % limit);
          if (pending.size() < 8) continue;
          pending.front().event.wait();
          wrong += pending.front().seen != pending.front().written;
          pending.erase(pending.begin());
        }
        for (auto const& one : pending) {
          one.event.wait();
          wrong += one.seen != one.written;
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0U);
  pool.validate();
  EXPECT_EQ(pool.statistics().active_allocations, 0U);
  EXPECT_LE(pool.statistics().peak_reserved_bytes, limit);
}

}  // namespace
}  // namespace unimem
