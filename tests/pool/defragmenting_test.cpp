#include <unimem/device/queue.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "pool/pages_pool_fixture.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stop_token>
#include <vector>

// What a pool of pages does to bring its free memory together, how far, and how it comes to an end.

namespace unimem {
namespace {

using namespace std::chrono_literals;

TEST_F(PoolOfPages, DefragmentingUnitesFreePages) {
  make({.max_bytes = 32 * MiB});
  std::vector<Allocation> blocks;
  for (std::uint64_t i = 0; i < 32; ++i) fill(blocks.emplace_back(pool->acquire(MiB)), i);
  for (std::size_t i = 0; i < 32; i += 2) blocks[i].release();
  auto const before = pool->fragmentation();
  EXPECT_EQ(before.total_free, 16 * MiB);
  EXPECT_EQ(before.largest_free_block, MiB);
  EXPECT_TRUE(pool->acquire_cached(16 * MiB).empty()) << "what is free lies in pieces";

  auto const report = pool->defragment();
  EXPECT_EQ(report.largest_free_before, MiB);
  EXPECT_EQ(report.largest_free_after, 16 * MiB);
  EXPECT_GE(report.bytes_moved, 14 * MiB);
  EXPECT_LE(report.bytes_moved, 16 * MiB);
  EXPECT_EQ(report.blocks_moved, 0U);
  EXPECT_GT(report.seconds, 0.0);
  EXPECT_EQ(pool->fragmentation().fragmentation_ratio(), 0.0);
  EXPECT_EQ(pool->defragment().bytes_moved, 0U) << "it comes to an end";
  pool->validate();

  auto const large = pool->acquire_cached(16 * MiB);
  ASSERT_FALSE(large.empty());
  fill(large, 99);
  for (std::uint64_t i = 1; i < 32; i += 2) EXPECT_TRUE(holds(blocks[i], i)) << i;
  EXPECT_EQ(taken_from(device), 32 * MiB) << "nothing was taken for it";
}

TEST_F(PoolOfPages, DefragmentingLeavesBlocksWithPendingWorkAlone) {
  auto& slow = make_sim({.memory_bytes = 64 * MiB, .latency = 200ms});
  MemoryPool busy{slow, Location::device, {.backing = PoolBacking::pages}};
  auto queue = slow.create_queue();
  std::vector<std::uint64_t> const source(MiB / 8, 7);
  std::vector<std::uint64_t> seen(MiB / 8);
  auto first = busy.acquire(MiB), pending = busy.acquire(MiB), last = busy.acquire(MiB);
  auto const beside = busy.acquire(MiB);
  queue.upload(pending.memory(), source.data(), MiB);
  auto const read = queue.download(seen.data(), pending.memory(), MiB);
  pending.release(read);
  first.release();
  last.release();
  auto const report = busy.defragment();
  EXPECT_FALSE(read.ready()) << "nobody waits";
  EXPECT_EQ(report.largest_free_after, 2 * MiB) << "round the pending one";
  read.wait();
  EXPECT_EQ(seen, source);
  EXPECT_EQ(busy.defragment().largest_free_after, 3 * MiB);
}

TEST_F(PoolOfPages, DefragmentingKeepsItsLimit) {
  make({.max_bytes = 32 * MiB});
  std::vector<Allocation> blocks;
  for (std::uint64_t i = 0; i < 32; ++i) fill(blocks.emplace_back(pool->acquire(MiB)), i);
  for (std::size_t i = 0; i < 32; i += 2) blocks[i].release();
  EXPECT_EQ(pool->defragment({.max_moved_bytes = MiB}).bytes_moved, 0U) << "one of them beside no other is no gain";

  std::size_t moved = 0, rounds = 0;
  for (;;) {
    auto const report = pool->defragment({.max_moved_bytes = 2 * MiB + page});
    EXPECT_LE(report.bytes_moved, 2 * MiB + page);
    EXPECT_GE(report.largest_free_after, report.largest_free_before);
    pool->validate();
    if (report.bytes_moved == 0) break;
    moved += report.bytes_moved;
    ASSERT_LT(++rounds, 16U) << "every call puts at least two of sixteen together";
  }
  EXPECT_GE(moved, 14 * MiB);
  EXPECT_EQ(pool->fragmentation().largest_free_block, 16 * MiB);
  for (std::uint64_t i = 1; i < 32; i += 2) EXPECT_TRUE(holds(blocks[i], i)) << i;
  EXPECT_EQ(taken_from(device), 32 * MiB);
}

TEST_F(PoolOfPages, DefragmentingStopsWhenAsked) {
  make({.max_bytes = 32 * MiB});
  std::vector<Allocation> blocks;
  for (std::uint64_t i = 0; i < 8; ++i) fill(blocks.emplace_back(pool->acquire(MiB)), i);
  for (std::size_t i = 0; i < 8; i += 2) blocks[i].release();
  std::stop_source stop;
  stop.request_stop();
  auto const report = pool->defragment({.stop = stop.get_token()});
  EXPECT_EQ(report.bytes_moved, 0U);
  EXPECT_EQ(report.largest_free_after, report.largest_free_before);
  pool->validate();
  EXPECT_GE(pool->defragment({.stop = std::stop_token{}}).bytes_moved, 3 * MiB) << "and is as able as before";
  for (std::uint64_t i = 1; i < 8; i += 2) EXPECT_TRUE(holds(blocks[i], i)) << i;
}

TEST(PoolOfAllocations, HasNothingToDefragment) {
  MemoryPool pool{make_sim({.memory_bytes = 64 * MiB}), Location::device, {.backing = PoolBacking::allocations}};
  pool.acquire(3 * MiB).release();
  pool.acquire(MiB).release();
  auto const report = pool.defragment();
  EXPECT_EQ(report.bytes_moved, 0U);
  EXPECT_EQ(report.largest_free_before, 3 * MiB);
  EXPECT_EQ(report.largest_free_after, 3 * MiB);
}

}  // namespace
}  // namespace unimem
