#pragma once

#include <unimem/device/device.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "core/sizes.hpp"
#include "device/gate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace unimem {

/// A place whose pools are to overwrite what is released.
struct ErasingHome {
  char const* name;
  Device& (*device)();
  Location location;
  PoolBacking backing = PoolBacking::allocations;
};

/// What every pool with `zero_on_release` does, whatever it is a pool of: to be instantiated for homes.
class ErasedBlocks : public ::testing::TestWithParam<ErasingHome> {
 protected:
  using Words = std::vector<std::uint64_t>;

  static constexpr std::uint64_t mark = 0x5EC4E75EC4E75EC4U;

  void TearDown() override { pool.validate(); }

  /// Writes to every byte of the memory, that of the block beyond its size too.
  Event leave_a_mark(Queue& queue, Allocation const& block) {
    auto memory = block.memory();
    memory.bytes = block.capacity();
    return queue.fill(memory, std::as_bytes(std::span{&mark, 1}));
  }
  [[nodiscard]] Words read(Queue& queue, Allocation const& block) {
    auto memory = block.memory();
    memory.bytes = block.capacity();
    Words words(memory.bytes / 8);
    queue.download(words.data(), memory, memory.bytes).wait();
    return words;
  }

  Device& device = GetParam().device();
  Queue first = device.create_queue(), second = device.create_queue();
  MemoryPool pool{device, GetParam().location, {.zero_on_release = true, .backing = GetParam().backing}};
};

TEST_P(ErasedBlocks, AreZeroForTheirNextOwner) {
  for (std::size_t const bytes : {std::size_t{8}, std::size_t{1000}, 10 * KiB, 200 * KiB}) {
    auto block = pool.acquire(bytes);
    auto const before = pool.statistics().pool_hits;
    leave_a_mark(first, block).wait();
    auto const memory = block.memory();
    block.release();
    auto const next = pool.acquire(bytes);
    EXPECT_EQ(pool.statistics().pool_hits, before + 1) << "or there is nothing to see";
    if (next.memory() == memory) {
      EXPECT_THAT(read(first, next), ::testing::Each(0U)) << bytes;
    } else {
      // What was done with at once went back among the free pages, of which another part may fit better. That has
      // been nobody's, and holds what it likes.
      EXPECT_EQ(GetParam().backing, PoolBacking::pages);
      EXPECT_THAT(read(first, next), ::testing::Not(::testing::Contains(mark))) << bytes;
    }
  }
}

TEST_P(ErasedBlocks, AreZeroWhereTheyAreCutOrUnited) {
  std::vector<Allocation> blocks;
  for (int i = 0; i < 16; ++i) {
    blocks.push_back(pool.acquire(i % 2 == 0 ? 60 * KiB : 900));
    leave_a_mark(first, blocks.back()).wait();
  }
  blocks.clear();
  for (std::size_t const bytes : {100 * KiB, 30 * KiB, 10 * KiB, 300 * KiB, 2 * KiB, 100 * KiB, KiB}) {
    blocks.push_back(pool.acquire(bytes));
    EXPECT_THAT(read(first, blocks.back()), ::testing::Not(::testing::Contains(mark))) << bytes;
  }
}

TEST_P(ErasedBlocks, AreOverwrittenBehindTheirOwnersWork) {
  if (works_in_the_submitting_thread(device)) GTEST_SKIP() << "nothing is ever pending";
  auto block = pool.acquire(8 * KiB);
  std::optional<Gate> gate{first};
  auto const secret = leave_a_mark(first, block);
  block.release(secret);
  EXPECT_FALSE(secret.ready());
  auto next = pool.acquire(8 * KiB, {.queue = &second});
  EXPECT_EQ(pool.statistics().pool_hits, 1U) << "it is the same block";
  EXPECT_FALSE(secret.ready()) << "nobody waits";
  gate.reset();
  EXPECT_THAT(read(second, next), ::testing::Each(0U));
}

TEST_P(ErasedBlocks, DoNotHoldUpUnrelatedOwners) {
  if (works_in_the_submitting_thread(device)) GTEST_SKIP() << "nothing is ever pending";
  auto block = pool.acquire(8 * KiB), other = pool.acquire(200 * KiB);
  leave_a_mark(second, other).wait();
  std::optional<Gate> gate{first};
  auto const secret = leave_a_mark(first, block);
  block.release(secret);
  other.release();
  other = pool.acquire(200 * KiB);  // for the host, which waits: not until the gate opens
  EXPECT_EQ(pool.statistics().pool_hits, 1U) << "it is the same block";
  EXPECT_THAT(read(second, other), ::testing::Each(0U));
  EXPECT_FALSE(secret.ready());
}

TEST_P(ErasedBlocks, AreOverwrittenBehindInheritedWork) {
  if (works_in_the_submitting_thread(device)) GTEST_SKIP() << "nothing is ever pending";
  auto block = pool.acquire(8 * KiB);
  std::optional<Gate> gate{first};
  block.release(leave_a_mark(first, block));
  block = pool.acquire(8 * KiB, {.queue = &second});
  block.release();  // untouched
  if (GetParam().backing == PoolBacking::allocations) {
    EXPECT_TRUE(pool.acquire_cached(8 * KiB).empty()) << "the work is not done, and so nothing is overwritten";
  }
  gate.reset();
  auto const next = pool.acquire(8 * KiB);
  EXPECT_EQ(pool.statistics().pool_hits, 2U) << "it is the same block";
  EXPECT_THAT(read(second, next), ::testing::Each(0U));
}

}  // namespace unimem
