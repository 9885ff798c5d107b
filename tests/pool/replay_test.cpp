#include <unimem/pool/replay.hpp>

#include "core/sizes.hpp"

#include <unimem/device/sim.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

namespace unimem {
namespace {

AllocationLog log_of(std::string const& rows) {
  return parse_allocation_log("Thread,Action,Pointer,Size,Stream\n" + rows, "log.csv");
}

/// A log run through a pool of a simulated device, which is to be left with nothing in use.
class Replay : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(pool->statistics().active_allocations, 0U);
    pool->validate();
  }
  void limit(std::size_t max_bytes) { pool.emplace(sim, Location::device, PoolOptions{.max_bytes = max_bytes}); }
  [[nodiscard]] ReplayResult run(std::string const& rows) { return replay(log_of(rows), *pool); }

  Device& sim = make_sim();
  std::optional<MemoryPool> pool{std::in_place, sim, Location::device};
};

TEST_F(Replay, CountsAndReleasesAll) {
  auto const result =
      run("1,allocate,a,65536,0\n"
          "1,allocate,b,131072,0\n"
          "1,free,a,65536,0\n"
          "1,allocate,c,65536,0\n"
          "1,free,b,131072,0\n"
          "1,allocate,d,4096,0\n");
  EXPECT_EQ(result.operations, 6U);
  EXPECT_TRUE(result.completed());
  EXPECT_EQ(result.peak_live_bytes, 192 * KiB);
  EXPECT_EQ(result.peak_reserved_bytes, pool->statistics().peak_reserved_bytes);
  EXPECT_GE(result.peak_reserved_bytes, result.peak_live_bytes);
  EXPECT_EQ(result.overhead(),
            static_cast<double>(result.peak_reserved_bytes) / static_cast<double>(result.peak_live_bytes));
  EXPECT_GT(result.nanoseconds_per_operation, 0);
  auto const statistics = pool->statistics();
  EXPECT_EQ(statistics.total_allocations, 4U);
  EXPECT_EQ(result.hit_rate, statistics.hit_rate());
  EXPECT_GE(statistics.pool_hits, 1U) << "c has the room of a";
}

TEST_F(Replay, StopsAtTheFirstAllocationWithoutRoom) {
  limit(256 * KiB);
  auto const result =
      run("1,allocate,a,131072,0\n"
          "1,free,a,131072,0\n"
          "1,allocate,b,131072,0\n"
          "1,allocate,c,196608,0\n"
          "1,free,b,131072,0\n");
  EXPECT_EQ(result.operations, 5U);
  EXPECT_FALSE(result.completed());
  EXPECT_EQ(result.failed_at, 3U);
  EXPECT_EQ(result.peak_live_bytes, 128 * KiB) << "of what was carried out";
}

TEST_F(Replay, SizesBeyondAnyDeviceDoNotFit) {
  auto const result = run("1,allocate,a,9223372036854775807,0\n");
  EXPECT_EQ(result.failed_at, 0U);
  EXPECT_TRUE(std::isnan(result.nanoseconds_per_operation));
  EXPECT_EQ(result.peak_live_bytes, 0U);
}

TEST_F(Replay, NothingToDoIsDone) {
  auto const result = run("");
  EXPECT_TRUE(result.completed());
  EXPECT_EQ(result.operations, 0U);
  EXPECT_TRUE(std::isnan(result.overhead()));
  EXPECT_EQ(pool->statistics().total_allocations, 0U);
}

TEST_F(Replay, OtherThreadsReleaseInOrder) {
  limit(1'024 * KiB);
  // Ten threads pass the whole capacity round: any other order has no room for it.
  std::string rows;
  for (int i = 0; i < 500; ++i) {
    rows += std::to_string(i % 10) + ",allocate," + std::to_string(1 + i) + ",1048576,0\n";
    rows += std::to_string((i + 3) % 10) + ",free," + std::to_string(1 + i) + ",1048576,0\n";
  }
  auto const log = log_of(rows);
  ASSERT_EQ(log.threads, 10U);
  ASSERT_EQ(log.most_live, 1U);
  auto const result = replay(log, *pool);
  EXPECT_TRUE(result.completed());
  EXPECT_EQ(result.peak_live_bytes, 1'024 * KiB);
  EXPECT_EQ(result.peak_reserved_bytes, 1'024 * KiB);
  EXPECT_EQ(pool->statistics().pool_misses, 1U) << "one block was passed round";
}

TEST_F(Replay, StopsWithoutRoomForSeveralThreads) {
  limit(64 * KiB);
  auto const result =
      run("1,allocate,a,4096,0\n"
          "2,allocate,b,4096,0\n"
          "1,allocate,c,65536,0\n"
          "2,free,a,4096,0\n");
  EXPECT_EQ(result.failed_at, 2U);
}

TEST_F(Replay, ReusesBlocksOnAnyStream) {
  auto const result =
      run("1,allocate,a,65536,5\n"
          "1,free,a,65536,6\n"
          "1,allocate,b,65536,7\n"
          "1,free,b,65536,0\n"
          "1,allocate,c,65536,5\n");
  EXPECT_TRUE(result.completed());
  EXPECT_EQ(pool->statistics().pool_misses, 1U);
  EXPECT_EQ(pool->statistics().pool_hits, 2U);
}

TEST_F(Replay, OtherFailuresAreErrorsOnAnyThread) {
  pool.emplace(sim, Location::pinned);
  EXPECT_THROW(static_cast<void>(run("1,allocate,a,8,0\n")), UnsupportedOperation);
  EXPECT_THROW(static_cast<void>(run("1,allocate,a,0,0\n2,allocate,b,8,0\n")), UnsupportedOperation);
}

}  // namespace
}  // namespace unimem
