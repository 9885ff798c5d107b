#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "core/sizes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

// Bugs that other pools have had, each shown not to be one of ours: by what a pool does, whatever it is made of. What
// resources over a pool do about them is in pool_resource_test.cpp and cccl_test.cpp; how processes end, in
// peers_process_test.cpp.

namespace unimem {
namespace {

struct Home {
  char const* name;
  Device& (*device)();
  Location location;
  std::size_t most;  ///< what a test takes there at once; page-locked memory is scarce
};

class BugsOfPeers : public ::testing::TestWithParam<Home> {
 protected:
  void TearDown() override { pool.validate(); }

  void fill(Allocation const& block, std::uint8_t value) {
    std::vector<std::uint8_t> const bytes(block.size(), value);
    device.default_queue().upload(block.memory(), bytes.data(), bytes.size()).wait();
  }
  [[nodiscard]] bool holds_only(Allocation const& block, std::uint8_t value) {
    std::vector<std::uint8_t> bytes(block.size());
    device.default_queue().download(bytes.data(), block.memory(), bytes.size()).wait();
    return std::ranges::count(bytes, value) == static_cast<std::ptrdiff_t>(bytes.size());
  }

  Device& device = GetParam().device();
  std::size_t const most = GetParam().most;
  MemoryPool pool{device, GetParam().location};
};

TEST_P(BugsOfPeers, ATrimDisablesCachingForGood) {
  for (auto const bytes : {std::size_t{1}, KiB, 64 * KiB, most / 2}) {
    for (std::size_t const keep : {std::size_t{0}, std::size_t{1}}) {
      pool.acquire(bytes).release();
      pool.trim(keep);
      ASSERT_LE(pool.statistics().total_pooled_bytes, keep);
      pool.acquire(bytes).release();
      auto const hits = pool.statistics().pool_hits;
      for (int i = 0; i < 5; ++i) pool.acquire(bytes).release();
      EXPECT_EQ(pool.statistics().pool_hits, hits + 5) << bytes << " bytes, " << keep << " kept";
    }
  }
}

TEST_P(BugsOfPeers, ALargeAlignmentUnmapsItsNeighbour) {
  std::vector<Allocation> neighbours;
  for (auto const alignment : {device.info().alignment, 2 * device.info().alignment, 4 * KiB, 64 * KiB}) {
    for (std::size_t const bytes : {std::size_t{1}, 3 * KiB + 1, most / 32 + 1}) {
      neighbours.push_back(pool.acquire(bytes));
      fill(neighbours.back(), static_cast<std::uint8_t>(neighbours.size()));
      auto aligned = pool.acquire(bytes, {.alignment = alignment});
      EXPECT_EQ(aligned.size(), bytes);
      EXPECT_GE(aligned.capacity(), bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(aligned.data()) % alignment, 0U);
      neighbours.push_back(pool.acquire(bytes));
      fill(neighbours.back(), static_cast<std::uint8_t>(neighbours.size()));
      fill(aligned, 0xEE);
      aligned.release();
      pool.trim();  // its memory goes, and nothing else
    }
  }
  for (std::size_t i = 0; i < neighbours.size(); ++i) {
    ASSERT_TRUE(holds_only(neighbours[i], static_cast<std::uint8_t>(i + 1))) << "block " << i;
  }
}

TEST_P(BugsOfPeers, ADoubleFreeDuplicatesTheBlock) {
  auto block = pool.acquire(10 * KiB);
  auto moved = std::move(block);
  moved.release();
  moved.release();
  block.release();  // NOLINT(bugprone-use-after-move): what it promises
  EXPECT_EQ(pool.statistics().active_allocations, 0U);
  auto const first = pool.acquire(10 * KiB), second = pool.acquire(10 * KiB);
  EXPECT_FALSE(first.memory() == second.memory());
  EXPECT_EQ(pool.statistics().pool_hits, 1U);
}

TEST_P(BugsOfPeers, OutOfMemoryDespiteACachedBlock) {
  pool.set_max_bytes(most);
  // All there may be, in a block that another thread has released and keeps.
  std::latch released{1}, done{1};
  std::jthread const keeper([&] {
    pool.acquire(most).release();
    released.count_down();
    done.wait();
  });
  struct LetGo {
    std::latch& latch;
    ~LetGo() { latch.count_down(); }
  } const in_any_case{done};
  released.wait();
  for (auto const bytes : {most, most - 1, most / 2, std::size_t{1}}) {
    EXPECT_EQ(pool.acquire(bytes).size(), bytes);
  }
  // And in many small ones, of which none fits.
  {
    std::vector<Allocation> small;
    for (std::size_t taken = 0; taken + most / 16 <= most; taken += most / 16) small.push_back(pool.acquire(most / 16));
  }
  EXPECT_EQ(pool.acquire(most).size(), most);
  EXPECT_EQ(pool.statistics().failed_allocations, 0U);
}

TEST_P(BugsOfPeers, OutOfMemoryDespiteAPendingBlock) {
  pool.set_max_bytes(most);
  auto queue = device.create_queue(), other = device.create_queue();
  auto block = pool.acquire(most, {.queue = &queue});
  std::vector<std::uint8_t> const bytes(1000, 7);
  block.release(queue.upload(block.memory(), bytes.data(), bytes.size()));
  EXPECT_EQ(pool.acquire(most, {.queue = &other}).size(), most);
  EXPECT_EQ(pool.acquire(most / 3).size(), most / 3);
  EXPECT_EQ(pool.statistics().failed_allocations, 0U);
}

TEST_P(BugsOfPeers, ADefragmentationNeverEnds) {
  std::vector<Allocation> blocks;
  for (std::size_t i = 0; i < 16; ++i) {
    blocks.push_back(pool.acquire(most / 16 - i));
    fill(blocks.back(), static_cast<std::uint8_t>(i));
  }
  for (std::size_t i = 0; i < blocks.size(); i += 3) blocks[i].release();
  auto moved = pool.defragment().bytes_moved;
  for (int rounds = 0; moved != 0; ++rounds) {
    ASSERT_LT(rounds, 3) << "it moves the same bytes to and fro";
    moved = pool.defragment().bytes_moved;
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_TRUE(blocks[i].empty() || holds_only(blocks[i], static_cast<std::uint8_t>(i))) << i;
  }
}

TEST_P(BugsOfPeers, AReachedLimitTriggersNoTrim) {
  pool.set_max_bytes(most);
  std::size_t bytes = most / 2 + 1;
  for (int i = 0; i < 20; ++i, bytes -= bytes / 7) {
    // No two of these fit each other's blocks.
    auto const block = pool.acquire(bytes);
    ASSERT_LE(pool.statistics().reserved_bytes, most);
  }
  EXPECT_EQ(pool.statistics().failed_allocations, 0U);
  pool.set_max_bytes(most / 8);
  EXPECT_LE(pool.statistics().reserved_bytes, most / 8) << "a lowered limit holds from now on";
}

TEST_P(BugsOfPeers, SizesAreRoundedToPowersOfTwo) {
  for (std::size_t power = KiB; power < most; power *= 2) {
    auto const bytes = power + 1;
    auto const block = pool.acquire(bytes);
    EXPECT_LE(block.capacity(), bytes + std::max(bytes / 8, 4 * KiB)) << bytes;
    EXPECT_LE(pool.statistics().active_bytes, bytes + std::max(bytes / 8, 4 * KiB)) << bytes;
  }
}

TEST_P(BugsOfPeers, AStreamDestroyedBeforeItsBlocksReturn) {
  std::vector<std::uint8_t> const bytes(32 * KiB, 9);
  std::optional<Queue> queue{device.create_queue()};
  auto kept = pool.acquire(32 * KiB, {.queue = &*queue}), released = pool.acquire(32 * KiB, {.queue = &*queue});
  auto const last_use = queue->upload(kept.memory(), bytes.data(), bytes.size());
  released.release(queue->upload(released.memory(), bytes.data(), bytes.size()));
  queue.reset();
  EXPECT_TRUE(holds_only(kept, 9));
  kept.release(last_use);
  auto other = device.create_queue();
  for (int i = 0; i < 2; ++i) {
    auto const again = pool.acquire(32 * KiB, {.queue = &other});
    other.upload(again.memory(), bytes.data(), bytes.size()).wait();
    EXPECT_TRUE(holds_only(again, 9));
  }
  EXPECT_EQ(pool.statistics().pool_misses, 2U);
  pool.trim();
  EXPECT_EQ(pool.statistics().reserved_bytes, 0U);
}

INSTANTIATE_TEST_SUITE_P(
    Homes, BugsOfPeers,
    ::testing::Values(Home{"cpu_host", []() -> Device& { return device("cpu"); }, Location::host, 16 * MiB},
                      Home{"cpu_pinned", []() -> Device& { return device("cpu"); }, Location::pinned, 256 * KiB},
                      Home{"sim", []() -> Device& { return make_sim({.memory_bytes = 64 * MiB}); }, Location::device,
                           16 * MiB}),
    [](auto const& home) { return home.param.name; });

}  // namespace
}  // namespace unimem
