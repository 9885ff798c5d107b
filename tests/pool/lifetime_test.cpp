#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "core/sanitizers.hpp"
#include "core/sizes.hpp"
#include "pool/pool_core.hpp"
#include "pool/scripted_device.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace unimem {
namespace {

using namespace std::chrono_literals;

static_assert(!std::is_copy_constructible_v<Allocation> && std::is_nothrow_move_constructible_v<Allocation> &&
              std::is_nothrow_move_assignable_v<Allocation> && std::is_nothrow_default_constructible_v<Allocation>);
static_assert(!std::is_copy_constructible_v<MemoryPool>);

TEST(Allocation, ReleasingTwiceReturnsTheBlockOnce) {
  ScriptedDevice device{MiB};
  MemoryPool pool{device, Location::device};
  auto block = pool.acquire(1000);
  block.release();
  block.release();
  EXPECT_TRUE(block.empty());
  EXPECT_EQ(block.size(), 0U);
  EXPECT_EQ(pool.statistics().active_allocations, 0U);
  pool.validate();
}

TEST(Allocation, AMovedFromHandleIsEmpty) {
  ScriptedDevice device{MiB};
  MemoryPool pool{device, Location::device};
  auto from = pool.acquire(1000);
  auto const memory = from.memory();
  auto to = std::move(from);
  EXPECT_TRUE(from.empty());  // NOLINT(bugprone-use-after-move): what it promises
  EXPECT_EQ(from.memory(), DeviceMemory{});
  EXPECT_EQ(from.data(), nullptr);
  EXPECT_EQ(from.capacity(), 0U);
  EXPECT_EQ(to.memory(), memory);
  EXPECT_EQ(to.size(), 1000U);
  from.release();
  EXPECT_EQ(pool.statistics().active_allocations, 1U);
}

TEST(Allocation, AssigningOverAHandleReleasesWhatItHeld) {
  ScriptedDevice device{MiB};
  MemoryPool pool{device, Location::device};
  auto first = pool.acquire(1000), second = pool.acquire(100'000);
  first = std::move(second);
  EXPECT_EQ(first.size(), 100'000U);
  EXPECT_EQ(pool.statistics().active_allocations, 1U);
  auto& same = first;
  first = std::move(same);
  EXPECT_EQ(first.size(), 100'000U) << "assigning a handle to itself keeps it";
  pool.validate();
}

TEST(Allocation, ShowsExactlyTheBytesAskedFor) {
  ScriptedDevice device{MiB};
  MemoryPool pool{device, Location::device};
  auto const block = pool.acquire(1001);
  EXPECT_EQ(block.size(), 1001U);
  EXPECT_EQ(block.memory().bytes, 1001U);
  EXPECT_GE(block.capacity(), 1001U);
  EXPECT_EQ(&block.device(), &device);
  EXPECT_EQ(block.location(), Location::device);
  EXPECT_EQ(block.data(), reinterpret_cast<void*>(block.memory().object));
}

TEST(MemoryPool, BlocksInUseOutliveThePool) {
  ScriptedDevice device{MiB};
  auto [queue, script] = device.scripted_queue();
  Allocation first, second;
  {
    MemoryPool pool{device, Location::device};
    first = pool.acquire(1000);
    second = pool.acquire(100'000);
    pool.acquire(200'000).release();
  }
  EXPECT_EQ(device.live_blocks(), 2U) << "the cached block is gone, those in use are not";
  first.release();
  EXPECT_EQ(device.live_blocks(), 1U);
  auto const last_use = script->work();
  second.release(last_use);
  EXPECT_TRUE(last_use.ready());
  EXPECT_EQ(device.live_blocks(), 0U);
}

/// A thread forgets what it kept of pools that have ended when it takes up another.
TEST(MemoryPool, ABlockThatOutlivesItGoesBack) {
  ScriptedDevice device{MiB}, another{MiB};
  auto pool = std::make_optional<MemoryPool>(device, Location::device);
  auto block = pool->acquire(1000);
  pool.reset();
  std::vector<std::unique_ptr<MemoryPool>> others;
  for (int i = 0; i < 4; ++i) {
    others.push_back(std::make_unique<MemoryPool>(another, Location::device));
    others.back()->acquire(1000).release();
  }
  EXPECT_NE(device.live_bytes(), 0U);
  block.release();
  EXPECT_EQ(device.live_bytes(), 0U);
}

TEST(MemoryPool, BlocksReleasedWhileItEndsGoBack) {
  for (bool const erases : {false, true}) {
    ScriptedDevice device{64 * MiB};
    for (unsigned round = 0; round < 200; ++round) {
      auto pool = std::make_unique<MemoryPool>(device, Location::device, PoolOptions{.zero_on_release = erases});
      std::vector<Allocation> blocks;
      for (int i = 0; i < 8; ++i) blocks.push_back(pool->acquire(1000));
      std::latch ready{2};
      std::jthread const other{[&ready, blocks = std::move(blocks)]() mutable {
        ready.arrive_and_wait();
        while (!blocks.empty()) blocks.pop_back();
      }};
      ready.arrive_and_wait();
      for (unsigned spin = 0; spin < 40 * (round % 16); ++spin) std::atomic_signal_fence(std::memory_order_seq_cst);
      pool.reset();
    }  // and the blocks
    EXPECT_EQ(device.live_bytes(), 0U);
  }
}

TEST(MemoryPool, PagesReleasedWhileItEndsGoBack) {
  auto& sim = make_sim({.memory_bytes = 64 * MiB});
  for (unsigned round = 0; round < 200; ++round) {
    auto pool = std::make_unique<MemoryPool>(sim, Location::device, PoolOptions{.backing = PoolBacking::pages});
    std::vector<Allocation> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(pool->acquire(100'000));
    std::latch ready{2};
    std::jthread const other{[&ready, blocks = std::move(blocks)]() mutable {
      ready.arrive_and_wait();
      while (!blocks.empty()) blocks.pop_back();
    }};
    ready.arrive_and_wait();
    for (unsigned spin = 0; spin < 40 * (round % 16); ++spin) std::atomic_signal_fence(std::memory_order_seq_cst);
    pool.reset();
  }
  EXPECT_EQ(sim.memory_info().free_bytes, 64 * MiB);
}

TEST(AllocationDeathTest, AddressSanitizerReportsUseAfterRelease) {
  if (!detail::under_address_sanitizer) GTEST_SKIP() << "not built with AddressSanitizer";
  ScriptedDevice device{MiB};
  MemoryPool pool{device, Location::device};
  auto block = pool.acquire(1000);
  auto* const bytes = static_cast<unsigned char volatile*>(block.data());
  block.release();
  EXPECT_DEATH(bytes[999] = 1, "use-after-poison");
  block = pool.acquire(1000);
  bytes[999] = 1;  // the next owner may
  EXPECT_EQ(bytes[999], 1);
}

TEST(AllocationDeathTest, AddressSanitizerReportsUseOfFreePages) {
  if (!detail::under_address_sanitizer) GTEST_SKIP() << "not built with AddressSanitizer";
  MemoryPool pool{device("cpu"), Location::host, {.backing = PoolBacking::pages}};
  auto block = pool.acquire(100'000);
  auto const beside = pool.acquire(100'000);
  auto* const bytes = static_cast<unsigned char volatile*>(block.data());
  block.release();
  pool.trim(MiB);  // what is cached is united with what is free, and none of it goes back
  EXPECT_DEATH(bytes[0] = 1, "use-after-poison");
  block = pool.acquire(90'000);  // more than what is left behind the other
  ASSERT_EQ(block.data(), const_cast<unsigned char*>(bytes)) << "the only place";
  bytes[0] = 1;
  EXPECT_EQ(bytes[0], 1);
  EXPECT_DEATH(bytes[95'000] = 1, "use-after-poison");
}

TEST(Block, ADescriptorCountsItsOwners) {
  ScriptedDevice device{MiB};
  auto core = std::make_unique<detail::PoolCore>(device, Location::device, PoolOptions{});
  auto& first = core->acquire(1000, {});
  auto const generation = first.generation;
  core->release(first, {});
  EXPECT_EQ(first.generation, generation + 1) << "what was remembered of the first use is told from the next by it";
  auto& again = core->acquire(1000, {});
  EXPECT_EQ(&again, &first);
  core->release(again, {});

  core->trimmer().trim(0);
  auto& other_memory = core->acquire(100'000, {});
  EXPECT_EQ(&other_memory, &first) << "descriptors are recycled";
  EXPECT_EQ(other_memory.generation, generation + 2);
  core->release(other_memory, {});
  detail::PoolCore::close(std::move(core));
}

/// A pool whose time is set by hand.
class PoolAges : public ::testing::Test {
 protected:
  MemoryPool make(PoolOptions options) {
    options.clock = [this] { return time; };
    return {device, Location::device, std::move(options)};
  }

  ScriptedDevice device{64 * MiB};
  std::chrono::steady_clock::time_point time{1h};
};

TEST_F(PoolAges, BlocksOlderThanTheIntervalGoBack) {
  auto pool = make({.trim_interval = 10s});
  pool.acquire(MiB).release();
  time += 5s;
  pool.acquire(2 * MiB).release();
  time += 5s;
  auto const at_ten = pool.acquire(1000);
  EXPECT_EQ(pool.statistics().total_pooled_bytes, 3 * MiB) << "ten seconds are not longer than ten seconds";
  time += 1s;
  auto const at_eleven = pool.acquire(1000);
  EXPECT_EQ(pool.statistics().total_pooled_bytes, 2 * MiB);
  pool.validate();
}

TEST_F(PoolAges, OrByALaterRelease) {
  auto pool = make({.trim_interval = 10s});
  auto held = pool.acquire(2 * MiB);
  pool.acquire(MiB).release();
  time += 11s;
  held.release();
  EXPECT_EQ(pool.statistics().total_pooled_bytes, 2 * MiB);
}

TEST_F(PoolAges, AnAcquireTakesAnOldBlockThatFits) {
  auto pool = make({.trim_interval = 10s});
  pool.acquire(MiB).release();
  pool.acquire(2 * MiB).release();
  time += 1h;
  auto const block = pool.acquire(MiB);
  auto const statistics = pool.statistics();
  EXPECT_EQ(statistics.pool_hits, 1U);
  EXPECT_EQ(statistics.reserved_bytes, MiB) << "the other one was old, too";
}

TEST_F(PoolAges, PendingBlocksStayHoweverOld) {
  auto [queue, script] = device.scripted_queue();
  auto pool = make({.trim_interval = 10s});
  pool.acquire(MiB).release(script->work());
  time += 1h;
  pool.acquire(3 * MiB).release();
  EXPECT_EQ(pool.statistics().total_pooled_bytes, 4 * MiB);
  EXPECT_EQ(script->host_waits, 0);
  script->finish_all();
  time += 2s;
  pool.acquire(3 * MiB).release();
  EXPECT_EQ(pool.statistics().total_pooled_bytes, 3 * MiB) << "looked at again after an eighth of the interval";
}

TEST_F(PoolAges, AWarmBlockTakesNoLock) {
  PoolOptions options{.trim_interval = 10s, .clock = [this] { return time; }};
  auto core = std::make_unique<detail::PoolCore>(device, Location::device, std::move(options));
  core->release(core->acquire(MiB, {}), {});
  core->release(core->acquire(MiB, {}), {});
  {
    auto const lock = core->lock();  // who wanted it now would wait for ever
    for (int i = 0; i < 3; ++i) core->release(core->acquire(MiB, {}), {});
  }
  EXPECT_EQ(core->reports().statistics().pool_hits, 4U);
  detail::PoolCore::close(std::move(core));
}

TEST_F(PoolAges, ASleepingThreadsBlocksGo) {
  auto pool = make({.trim_interval = 10s});
  std::latch parked{1}, seen{1};
  std::jthread const sleeper{[&] {
    pool.acquire(2 * MiB).release();
    pool.acquire(20 * MiB).release();
    parked.count_down();
    seen.wait();
  }};
  parked.wait();
  time += 5s;
  pool.acquire(MiB).release();
  time += 5s;
  pool.acquire(MiB).release();
  EXPECT_EQ(pool.statistics().total_pooled_bytes, 23 * MiB) << "ten seconds are not longer than ten seconds";
  time += 1s;
  pool.acquire(MiB).release();
  EXPECT_EQ(pool.statistics().total_pooled_bytes, MiB) << "which is in use time and again";
  EXPECT_EQ(pool.statistics().pool_hits, 2U);
  seen.count_down();
}

TEST_F(PoolAges, HitsAloneLetOldBlocksGo) {
  auto pool = make({.trim_interval = 8s});
  {
    auto const first = pool.acquire(MiB), second = pool.acquire(2 * MiB);
  }
  auto const hits = [&] { return pool.statistics().pool_hits; };
  auto const before = hits();
  for (int i = 0; i < 18; ++i) {
    time += 500ms;
    pool.acquire(MiB).release();
    if (i <= 14) {
      ASSERT_EQ(pool.statistics().total_pooled_bytes, 3 * MiB) << i;
    }
  }
  EXPECT_EQ(hits(), before + 18);
  EXPECT_EQ(pool.statistics().total_pooled_bytes, MiB) << "an eighth of the interval late at most";
}

TEST_F(PoolAges, WithoutAnIntervalTheClockIsNeverAsked) {
  std::atomic<int> asked{0};
  MemoryPool pool{
      device, Location::device, {.clock = [&] { return ++asked, std::chrono::steady_clock::time_point{}; }}};
  pool.acquire(MiB).release();
  EXPECT_EQ(asked, 0);
}

TEST_F(PoolAges, TheClockMayLookIntoThePool) {
  std::unique_ptr<MemoryPool> pool;
  pool = std::make_unique<MemoryPool>(device, Location::device,
                                      PoolOptions{.trim_interval = 10s, .clock = [&] {
                                                    EXPECT_LE(pool->statistics().reserved_bytes, MiB);
                                                    return time;
                                                  }});
  pool->acquire(MiB).release();
  EXPECT_EQ(pool->statistics().total_allocations, 1U);
}

TEST_F(PoolAges, OverTheThresholdTheOldestAreGivenBack) {
  auto pool = make({.release_threshold = 4 * MiB});
  auto first = pool.acquire(2 * MiB), second = pool.acquire(MiB), third = pool.acquire(2 * MiB);
  auto const oldest = second.memory();
  second.release();
  first.release();
  EXPECT_EQ(pool.statistics().total_pooled_bytes, 3 * MiB);
  third.release();
  EXPECT_EQ(pool.statistics().total_pooled_bytes, 4 * MiB);
  EXPECT_FALSE(device.holds(oldest));
}

TEST_F(PoolAges, AThresholdOfZeroCachesNothing) {
  auto pool = make({.release_threshold = 0});
  pool.acquire(MiB).release();
  EXPECT_EQ(device.live_blocks(), 0U);
}

TEST_F(PoolAges, TrimGivesBackTheOldestFirst) {
  auto pool = make({});
  auto first = pool.acquire(MiB), second = pool.acquire(2 * MiB), third = pool.acquire(3 * MiB);
  auto const youngest = first.memory();
  third.release();
  second.release();
  first.release();
  EXPECT_EQ(pool.trim(6 * MiB), 0U);
  EXPECT_EQ(pool.trim(2 * MiB), 5 * MiB);
  EXPECT_TRUE(device.holds(youngest));
  EXPECT_EQ(pool.trim(), MiB);
  EXPECT_EQ(pool.trim(), 0U);
  EXPECT_EQ(pool.statistics().reserved_bytes, 0U);
  pool.validate();
}

}  // namespace
}  // namespace unimem
