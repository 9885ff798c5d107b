#include <unimem/core/error.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/pool/idle_trimmer.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "core/sizes.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

// Giving back what lies idle: by call, and by a thread that calls.

namespace unimem {
namespace {

using namespace std::chrono_literals;

class IdlePool : public ::testing::TestWithParam<PoolBacking> {
 protected:
  void TearDown() override {
    pool.validate();
    EXPECT_EQ(pool.statistics().reserved_bytes, taken());
  }

  [[nodiscard]] std::size_t taken() const {
    auto const memory = device.memory_info();
    return memory.total_bytes - memory.free_bytes;
  }

  Device& device = make_sim({.memory_bytes = 64 * MiB});
  MemoryPool pool{device, Location::device, {.backing = GetParam()}};
};

TEST_P(IdlePool, GivesBackWhatIsUnusedBetweenLooks) {
  auto const kept = pool.acquire(MiB);
  pool.acquire(8 * MiB).release();
  EXPECT_EQ(pool.trim_idle(), 0U) << "it was used until now";
  EXPECT_EQ(taken(), 9 * MiB);
  EXPECT_EQ(pool.trim_idle(), 8 * MiB);
  EXPECT_EQ(taken(), MiB);
  EXPECT_EQ(pool.trim_idle(), 0U);
}

TEST_P(IdlePool, WhatIsUsedTimeAndAgainStays) {
  for (int i = 0; i < 10; ++i) {
    pool.acquire(8 * MiB).release();
    EXPECT_EQ(pool.trim_idle(), 0U) << i;
  }
  EXPECT_EQ(pool.statistics().pool_misses, 1U);
  EXPECT_EQ(taken(), 8 * MiB);
}

TEST_P(IdlePool, ExcludesWhatWasInUse) {
  auto block = pool.acquire(8 * MiB);
  EXPECT_EQ(pool.trim_idle(), 0U);
  block.release();
  EXPECT_EQ(pool.trim_idle(), 0U);
  EXPECT_EQ(pool.trim_idle(), 8 * MiB);
}

TEST_P(IdlePool, PendingWorkIsLeftAlone) {
  auto& slow = make_sim({.memory_bytes = 64 * MiB, .latency = 300ms});
  MemoryPool busy{slow, Location::device, {.backing = GetParam()}};
  auto queue = slow.create_queue();
  std::vector<unsigned char> const bytes(1000, 7);
  auto block = busy.acquire(MiB);
  auto const work = queue.upload(block.memory(), bytes.data(), bytes.size());
  block.release(work);
  EXPECT_EQ(busy.trim_idle(), 0U);
  EXPECT_EQ(busy.trim_idle(), 0U);
  EXPECT_FALSE(work.ready()) << "nobody waited";
  work.wait();
  EXPECT_EQ(busy.trim_idle() + busy.trim_idle(), MiB);
}

TEST_P(IdlePool, IsGivenBackByTheTrimmersThread) {
  pool.acquire(8 * MiB).release();
  {
    IdleTrimmer const trimmer{pool, 5ms};
    for (int tries = 0; tries < 4000 && taken() != 0; ++tries) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(taken(), 0U);
  }
  auto const begin = std::chrono::steady_clock::now();
  {
    std::optional<IdleTrimmer> trimmer{IdleTrimmer{pool, 1h}};
    auto moved = std::move(*trimmer);
    trimmer.reset();
    pool.acquire(MiB).release();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1min) << "it did not wait for its hour";
}

TEST_P(IdlePool, ATrimmerDisturbsNoBlocksInUse) {
  IdleTrimmer const trimmer{pool, 100us};
  for (unsigned i = 0; i < 2000; ++i) {
    auto const block = pool.acquire(1 + (i * 7919) % MiB);
    auto* const byte = static_cast<unsigned char volatile*>(block.data());
    *byte = static_cast<unsigned char>(i);
    ASSERT_EQ(*byte, static_cast<unsigned char>(i));
  }
  EXPECT_EQ(pool.statistics().active_bytes, 0U);
}

TEST_P(IdlePool, AnIntervalIsPositive) {
  for (auto const interval : {0ns, -1ns}) {
    try {
      IdleTrimmer const trimmer{pool, interval};
      FAIL() << interval.count();
    } catch (InvalidArgument const& error) {
      EXPECT_EQ(error.argument, "interval");
      EXPECT_EQ(error.value, std::to_string(interval.count()) + " ns");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backings, IdlePool, ::testing::Values(PoolBacking::pages, PoolBacking::allocations),
                         [](auto const& backing) { return std::string(to_string(backing.param)); });

}  // namespace
}  // namespace unimem
