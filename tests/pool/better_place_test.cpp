#include <unimem/device/sim.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "core/sizes.hpp"
#include "pool/page_size.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <utility>
#include <vector>

// Where a pool would rather have a block that is in use, if its holder can move what is in it.

namespace unimem {
namespace {

class BetterPlaces : public ::testing::Test {
 protected:
  void TearDown() override { pool.validate(); }

  /// All of these, of which every `keep`-th stays.
  [[nodiscard]] std::vector<Allocation> scattered(std::size_t bytes, std::size_t count, std::size_t keep) {
    std::vector<Allocation> all, kept;
    for (std::size_t i = 0; i < count; ++i) all.push_back(pool.acquire(bytes));
    for (std::size_t i = 0; i < count; i += keep) kept.push_back(std::move(all[i]));
    all.clear();
    pool.defragment();  // what this thread keeps is united
    return kept;
  }
  [[nodiscard]] std::size_t in_whole_pages() const { return pool.statistics().total_pooled_bytes; }

  /// Moves each block once, if there is a better place for it; how many there were.
  std::size_t move_each(std::vector<Allocation>& blocks) {
    std::size_t moves = 0;
    for (auto& block : blocks) {
      auto better = pool.acquire_better(block);
      if (better.empty()) continue;
      EXPECT_NE(better.memory(), block.memory());
      EXPECT_EQ(better.size(), block.size());
      EXPECT_GE(better.capacity(), block.size());
      block = std::move(better);
      pool.validate();
      ++moves;
    }
    return moves;
  }

  Device& sim = make_sim({.memory_bytes = 64 * MiB});
  MemoryPool pool{sim, Location::device, {.backing = PoolBacking::pages}};
};

TEST_F(BetterPlaces, AreThereWhereAMoveFreesAPage) {
  auto blocks = scattered(24 * KiB, 64, 8);
  auto const taken = pool.statistics().reserved_bytes;
  auto const before = in_whole_pages();
  auto better = pool.acquire_better(blocks.back());
  ASSERT_FALSE(better.empty());
  blocks.back() = std::move(better);
  pool.trim(64 * MiB);
  EXPECT_GT(in_whole_pages(), before);
  EXPECT_EQ(pool.statistics().reserved_bytes, taken) << "nothing was taken for it";
}

TEST_F(BetterPlaces, AreNotWhereNothingIsGained) {
  auto const one = pool.acquire(page / 2);
  EXPECT_TRUE(pool.acquire_better(one).empty()) << "the other half of its page is no better";
  auto const whole = pool.acquire(20 * page);
  {
    auto const free = pool.acquire(20 * page);
  }
  EXPECT_TRUE(pool.acquire_better(whole).empty()) << "pages for pages";
  EXPECT_TRUE(pool.acquire_better(Allocation{}).empty());
  MemoryPool of_another{sim, Location::device, {.backing = PoolBacking::pages}};
  EXPECT_TRUE(of_another.acquire_better(one).empty());
  MemoryPool of_objects{sim, Location::device, {.backing = PoolBacking::allocations}};
  {
    auto const free = of_objects.acquire(page);
  }
  EXPECT_TRUE(of_objects.acquire_better(of_objects.acquire(2 * page)).empty());
}

TEST_F(BetterPlaces, RunOutForBlocksOfAnySize) {
  for (unsigned const seed : {1U, 2U, 3U}) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random{seed};
    std::vector<Allocation> all, blocks;
    std::vector<std::size_t> const small{100, 1000, 3000, 6000};
    for (int i = 0; i < 600; ++i) {
      all.push_back(pool.acquire(random() % 2 == 0 ? 9 * KiB + random() % (90 * KiB) : small[random() % 4]));
    }
    for (auto& block : all) {
      if (random() % 6 == 0) blocks.push_back(std::move(block));
    }
    all.clear();
    pool.defragment();
    pool.trim();
    auto const before = pool.statistics();
    std::size_t moves = 0, rounds = 0;
    while (auto const moved = move_each(blocks)) {
      moves += moved;
      ASSERT_LT(++rounds, 50U) << "it never ends";
    }
    EXPECT_GT(moves, 10U);
    pool.trim();
    auto const after = pool.statistics();
    EXPECT_EQ(after.active_bytes, before.active_bytes);
    EXPECT_LT(after.reserved_bytes, before.reserved_bytes);
    EXPECT_LT(after.reserved_bytes, 2 * after.active_bytes);
  }
}

TEST_F(BetterPlaces, OfSmallBlocksAreInFullerSlabs) {
  auto blocks = scattered(1000, 1600, 16);
  pool.trim();
  auto const before = pool.statistics().reserved_bytes;
  EXPECT_GT(move_each(blocks), 50U);
  pool.trim();
  EXPECT_LT(pool.statistics().reserved_bytes, before / 4);
}

}  // namespace
}  // namespace unimem
