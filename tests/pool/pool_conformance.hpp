#pragma once

#include <unimem/device/device.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "pool/pool_home.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace unimem {

/// What every pool does, whatever it is a pool of.
class PoolConformance : public ::testing::TestWithParam<PoolHome> {
 protected:
  void SetUp() override {
    if (!home.missing.empty()) GTEST_SKIP() << home.missing;
  }
  void TearDown() override { pool.validate(); }

  void write(Allocation const& block, std::vector<std::uint64_t> const& words) {
    device.default_queue().upload(block.memory(), words.data(), words.size() * 8).wait();
  }
  /// A block of `bytes` (a multiple of 8) that holds the pattern of `seed`, and whether it still does.
  [[nodiscard]] Allocation filled(std::size_t bytes, std::uint64_t seed) {
    auto block = pool.acquire(bytes);
    write(block, pattern(bytes / 8, seed));
    return block;
  }
  [[nodiscard]] bool holds(Allocation const& block, std::uint64_t seed) {
    return read(block, block.size() / 8) == pattern(block.size() / 8, seed);
  }
  [[nodiscard]] std::vector<std::uint64_t> read(Allocation const& block, std::size_t count) {
    std::vector<std::uint64_t> words(count);
    device.default_queue().download(words.data(), block.memory(), count * 8).wait();
    return words;
  }

  FoundHome const home = found(GetParam());
  Device& device = home.place;
  std::size_t const most = GetParam().most;
  bool const has_addresses = device.backend() != Backend::opencl || GetParam().location == Location::unified;
  MemoryPool pool{device, GetParam().location, options()};

 private:
  [[nodiscard]] static PoolOptions options() {
    PoolOptions options;
    options.backing = GetParam().backing;
    if (GetParam().upstream != nullptr) options.upstream = GetParam().upstream();
    return options;
  }
};

TEST_P(PoolConformance, ABlockIsNearlyExact) {
  std::mt19937 random{11};
  std::size_t bytes = 1;
  while (bytes <= most) {
    auto const block = pool.acquire(bytes);
    ASSERT_EQ(block.size(), bytes);
    ASSERT_EQ(block.memory().bytes, bytes);
    ASSERT_GE(block.capacity(), bytes);
    ASSERT_LE(block.capacity(), bytes + std::max<std::size_t>(bytes / 8, 4 * KiB));
    bytes += bytes < 8 * KiB ? 1 : 1 + random() % (bytes / 16);
  }
}

TEST_P(PoolConformance, NoBytesAreAnEmptyAllocation) {
  auto const none = pool.acquire(0);
  EXPECT_TRUE(none.empty());
  EXPECT_FALSE(none);
  EXPECT_EQ(none.size(), 0U);
  EXPECT_EQ(none.data(), nullptr);
  auto const statistics = pool.statistics();
  EXPECT_EQ(statistics.total_allocations, 0U);
  EXPECT_EQ(statistics.reserved_bytes, 0U);
}

TEST_P(PoolConformance, EveryAlignmentIsKept) {
  auto const largest = has_addresses ? 64 * KiB : device.info().alignment;
  for (std::size_t alignment = 1; alignment <= largest; alignment *= 2) {
    auto const block = pool.acquire(100, {.alignment = alignment});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data()) % alignment, 0U) << alignment;
    EXPECT_EQ(block.memory().bytes, 100U);
    EXPECT_GE(block.capacity(), 100U);
  }
}

TEST_P(PoolConformance, OtherAlignmentsAreRefusedBeforeAnythingHappens) {
  std::vector<std::size_t> alignments{3, 48};
  if (!has_addresses) alignments.push_back(device.info().alignment * 2);
  for (auto const alignment : alignments) {
    try {
      auto const block = pool.acquire(100, {.alignment = alignment});
      ADD_FAILURE() << alignment << " was accepted";
    } catch (InvalidArgument const& error) {
      EXPECT_EQ(error.argument, "alignment");
      EXPECT_EQ(error.value, std::to_string(alignment));
    }
  }
  EXPECT_EQ(pool.statistics().reserved_bytes, 0U);
  EXPECT_EQ(pool.statistics().failed_allocations, 0U);
}

TEST_P(PoolConformance, AReleasedBlockServesTheNextRequest) {
  auto block = pool.acquire(10'000);
  auto const object = block.memory().object;
  auto const capacity = block.capacity();
  block.release();
  EXPECT_EQ(pool.statistics().total_pooled_bytes, capacity);
  auto const again = pool.acquire(9'900);
  EXPECT_EQ(again.memory().object, object);
  auto const statistics = pool.statistics();
  EXPECT_EQ(statistics.pool_hits, 1U);
  EXPECT_EQ(statistics.pool_misses, 1U);
  EXPECT_EQ(statistics.active_allocations, 1U);
  EXPECT_EQ(statistics.size_classes[size_class(10'000)].allocations, 2U);
  EXPECT_EQ(statistics.size_classes[size_class(10'000)].hits, 1U);
}

TEST_P(PoolConformance, AMuchLargerBlockIsNotReused) {
  pool.acquire(most).release();
  auto const small = pool.acquire(most / 2), other = pool.acquire(most / 2);
  EXPECT_LT(small.capacity(), most);
  auto const statistics = pool.statistics();
  if (GetParam().backing == PoolBacking::pages) {
    EXPECT_EQ(statistics.pool_hits, 2U) << "it is divided";
    EXPECT_EQ(statistics.reserved_bytes, most);
  } else {
    EXPECT_EQ(statistics.pool_hits, 0U) << "nothing else fits";
  }
}

TEST_P(PoolConformance, BlocksHoldTheirBytesAndDoNotOverlap) {
  std::mt19937 random{5};
  std::vector<std::pair<Allocation, std::uint64_t>> blocks;
  for (std::uint64_t round = 0; round < 300; ++round) {
    if (blocks.size() == 8 || (!blocks.empty() && random() % 3 == 0)) {
      auto const at = random() % blocks.size();
      auto const count = blocks[at].first.size() / 8;
      ASSERT_EQ(read(blocks[at].first, count), pattern(count, blocks[at].second));
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(at));
    } else {
      auto const count = 1 + random() % (most / 64 / 8);
      blocks.emplace_back(pool.acquire(count * 8), round);
      write(blocks.back().first, pattern(count, round));
    }
  }
}

TEST_P(PoolConformance, TheLimitIsExact) {
  pool.set_max_bytes(most);
  auto const half = pool.acquire(most / 2);
  auto const other_half = pool.acquire(most - most / 2);
  EXPECT_THROW((void)pool.acquire(1), OutOfMemory);
  EXPECT_EQ(pool.statistics().reserved_bytes, most);
}

TEST_P(PoolConformance, BeyondTheDeviceIsOutOfMemory) {
  try {
    auto const block = pool.acquire(device.info().total_bytes + 1);
    ADD_FAILURE() << "was granted";
  } catch (OutOfMemory const& error) {
    EXPECT_EQ(error.requested(), device.info().total_bytes + 1);
    EXPECT_EQ(error.limit(), device.info().total_bytes);
    EXPECT_EQ(error.facts().where, std::string(device.id()) + " " + std::string(to_string(GetParam().location)));
  }
}

TEST_P(PoolConformance, SizesThatWrapAreOutOfMemory) {
  constexpr auto largest = std::numeric_limits<std::size_t>::max();
  std::uint64_t refused = 0;
  for (auto const bytes : {largest, largest - 1, largest - 255, largest - 65'535, largest - 2 * MiB, largest / 2 + 1}) {
    try {
      auto const block = pool.acquire(bytes);
      ADD_FAILURE() << bytes << " bytes were granted";
    } catch (OutOfMemory const& error) {
      EXPECT_EQ(error.requested(), bytes);
    }
    EXPECT_EQ(pool.statistics().failed_allocations, ++refused);
    EXPECT_EQ(pool.statistics().reserved_bytes, 0U);
  }
}

TEST_P(PoolConformance, StatisticsAddUpAtEveryMoment) {
  std::mt19937 random{23};
  std::vector<Allocation> blocks;
  for (int round = 0; round < 2'000; ++round) {
    if (blocks.size() < 12 && random() % 2 == 0) {
      blocks.push_back(pool.acquire(1 + random() % (most / 16)));
    } else if (!blocks.empty()) {
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(random() % blocks.size()));
    }
    if (random() % 100 == 0) pool.trim(random() % most);
    pool.validate();
    auto const statistics = pool.statistics();
    ASSERT_EQ(statistics.active_allocations, blocks.size());
    ASSERT_EQ(statistics.active_bytes + statistics.total_pooled_bytes + statistics.slack_bytes,
              statistics.reserved_bytes);
    ASSERT_TRUE(statistics.slack_bytes == 0 || GetParam().backing == PoolBacking::pages);
    ASSERT_LE(statistics.reserved_bytes, statistics.peak_reserved_bytes);
    if (statistics.reserved_bytes > most / 2) pool.trim();
  }
  blocks.clear();
  EXPECT_EQ(pool.statistics().active_bytes, 0U);
  pool.trim();
  EXPECT_EQ(pool.statistics().reserved_bytes, 0U);
}

TEST_P(PoolConformance, ATrimLeavesOnlyMemoryInUse) {
  auto const kept = filled(most / 16, 1), also = filled(64 * KiB, 2);
  pool.acquire(most / 4).release();
  pool.acquire(8 * KiB).release();
  pool.acquire(100).release();
  auto const before = pool.statistics();
  EXPECT_GT(before.total_pooled_bytes, 0U);
  auto const given = pool.trim();
  auto after = pool.statistics();
  EXPECT_EQ(after.reserved_bytes, before.reserved_bytes - given);
  EXPECT_EQ(after.total_pooled_bytes, 0U);
  EXPECT_EQ(after.active_allocations, 2U);
  EXPECT_EQ(after.active_bytes, before.active_bytes);
  EXPECT_EQ(after.active_bytes + after.slack_bytes, after.reserved_bytes);
  EXPECT_EQ(after.peak_reserved_bytes, before.peak_reserved_bytes);
  EXPECT_EQ(after.total_allocations, before.total_allocations);
  EXPECT_EQ(pool.trim(), 0U);
  EXPECT_TRUE(holds(kept, 1));
  EXPECT_TRUE(holds(also, 2));
  pool.acquire(most / 4).release();
  pool.acquire(most / 4).release();
  EXPECT_EQ(pool.statistics().pool_hits, after.pool_hits + 1);
}

TEST_P(PoolConformance, OutOfMemoryEndsWithTheNextRelease) {
  pool.set_max_bytes(most);
  auto const kept = filled(most / 4, 3);
  auto other = filled(most / 2, 4);
  pool.acquire(most / 8).release();
  auto const before = pool.statistics();
  for (auto const bytes : {most, most / 2, most / 4 + 1}) EXPECT_THROW((void)pool.acquire(bytes), OutOfMemory);
  auto const after = pool.statistics();
  EXPECT_EQ(after.failed_allocations, before.failed_allocations + 3);
  EXPECT_EQ(after.total_allocations, before.total_allocations);
  EXPECT_EQ(after.active_allocations, 2U);
  EXPECT_EQ(after.active_bytes, before.active_bytes);
  EXPECT_LE(after.reserved_bytes, most);
  EXPECT_EQ(after.active_bytes + after.total_pooled_bytes + after.slack_bytes, after.reserved_bytes);
  EXPECT_TRUE(holds(kept, 3));
  EXPECT_TRUE(holds(other, 4));
  other.release();
  auto const served = filled(most - most / 4, 5);
  EXPECT_TRUE(holds(kept, 3));
  EXPECT_TRUE(holds(served, 5));
  EXPECT_EQ(pool.statistics().failed_allocations, after.failed_allocations);
}

TEST_P(PoolConformance, FreedMemoryIsCachedUntilATrim) {
  auto const free_before = device.memory_info().free_bytes;
  std::size_t active = 0;
  {
    std::vector<Allocation> blocks;
    for (std::size_t bytes = 1; bytes <= most / 8; bytes *= 3) blocks.push_back(pool.acquire(bytes));
    active = pool.statistics().active_bytes;
    for (auto const& block : blocks) ASSERT_GE(active, block.capacity());
  }
  auto const freed = pool.statistics();
  EXPECT_EQ(freed.active_allocations, 0U);
  EXPECT_EQ(freed.active_bytes, 0U);
  EXPECT_EQ(freed.total_pooled_bytes + freed.slack_bytes, freed.reserved_bytes);
  EXPECT_TRUE(freed.slack_bytes == 0 || GetParam().backing == PoolBacking::pages) << "beside what a thread keeps";
  EXPECT_GE(freed.total_pooled_bytes, active);
  EXPECT_EQ(freed.peak_active_bytes, active);
  EXPECT_EQ(pool.fragmentation().total_free, freed.reserved_bytes);
  EXPECT_EQ(pool.trim(), freed.reserved_bytes);
  EXPECT_EQ(pool.statistics().reserved_bytes, 0U);
  EXPECT_EQ(pool.fragmentation().total_free, 0U);
  if (!device.reaches_host_memory()) {  // the host's memory others take and give meanwhile
    EXPECT_EQ(device.memory_info().free_bytes, free_before);
  }
}

}  // namespace unimem
