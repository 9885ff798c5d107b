#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/pool/memory_pool.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace unimem {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t KiB = 1024;
constexpr std::size_t MiB = 1024 * KiB;

/// A place that pools serve. `most` bounds what the tests take there: page-locked memory is scarce.
struct PoolHome {
  char const* name;
  Device& (*device)();
  Location location;
  std::size_t most;
  PoolBacking backing = PoolBacking::allocations;
};

std::vector<std::uint64_t> pattern(std::size_t count, std::uint64_t seed) {
  std::vector<std::uint64_t> words(count);
  for (std::size_t i = 0; i < count; ++i) words[i] = seed * 0x9E3779B97F4A7C15U + i;
  return words;
}

/// What every pool does, whatever it is a pool of.
class PoolConformance : public ::testing::TestWithParam<PoolHome> {
 protected:
  void TearDown() override { pool.validate(); }

  void write(Allocation const& block, std::vector<std::uint64_t> const& words) {
    device.default_queue().upload(block.memory(), words.data(), words.size() * 8).wait();
  }
  [[nodiscard]] std::vector<std::uint64_t> read(Allocation const& block, std::size_t count) {
    std::vector<std::uint64_t> words(count);
    device.default_queue().download(words.data(), block.memory(), count * 8).wait();
    return words;
  }

  Device& device = GetParam().device();
  std::size_t const most = GetParam().most;
  MemoryPool pool{device, GetParam().location, {.backing = GetParam().backing}};
};

TEST_P(PoolConformance, ABlockIsAtLeastAsLargeAsAskedForAndNearlyExact) {
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

TEST_P(PoolConformance, NoBytesAreAnEmptyAllocationAndNoAllocationAtAll) {
  auto const none = pool.acquire(0);
  EXPECT_TRUE(none.empty());
  EXPECT_FALSE(none);
  EXPECT_EQ(none.size(), 0U);
  EXPECT_EQ(none.data(), nullptr);
  auto const statistics = pool.statistics();
  EXPECT_EQ(statistics.total_allocations, 0U);
  EXPECT_EQ(statistics.reserved_bytes, 0U);
}

TEST_P(PoolConformance, EveryAlignmentUpToTheDevicesIsKept) {
  for (std::size_t alignment = 1; alignment <= device.info().alignment; alignment *= 2) {
    auto const block = pool.acquire(100, {.alignment = alignment});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data()) % alignment, 0U) << alignment;
  }
}

TEST_P(PoolConformance, OtherAlignmentsAreRefusedBeforeAnythingHappens) {
  for (std::size_t const alignment : {std::size_t{3}, std::size_t{48}, device.info().alignment * 2}) {
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

TEST_P(PoolConformance, AReleasedBlockServesTheNextRequestOfItsSize) {
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

TEST_P(PoolConformance, ABlockMuchTooLargeIsNotGivenAway) {
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

TEST_P(PoolConformance, MoreThanTheDeviceHasIsOutOfMemoryNamingBoth) {
  try {
    auto const block = pool.acquire(device.info().total_bytes + 1);
    ADD_FAILURE() << "was granted";
  } catch (OutOfMemory const& error) {
    EXPECT_EQ(error.requested(), device.info().total_bytes + 1);
    EXPECT_EQ(error.limit(), device.info().total_bytes);
    EXPECT_EQ(error.facts().where, std::string(device.id()) + " " + std::string(to_string(GetParam().location)));
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

INSTANTIATE_TEST_SUITE_P(
    Homes, PoolConformance,
    ::testing::Values(PoolHome{"cpu_host", []() -> Device& { return device("cpu"); }, Location::host, 64 * MiB},
                      PoolHome{"cpu_device", []() -> Device& { return device("cpu"); }, Location::device, 64 * MiB},
                      PoolHome{"cpu_pinned", []() -> Device& { return device("cpu"); }, Location::pinned, 256 * KiB},
                      PoolHome{"cpu_pages", []() -> Device& { return device("cpu"); }, Location::device, 64 * MiB,
                               PoolBacking::pages},
                      PoolHome{"sim", []() -> Device& { return make_sim({.memory_bytes = 128 * MiB}); },
                               Location::device, 64 * MiB},
                      PoolHome{"sim_pages", []() -> Device& { return make_sim({.memory_bytes = 128 * MiB}); },
                               Location::device, 64 * MiB, PoolBacking::pages}),
    [](auto const& home) { return home.param.name; });

class PoolOnSimOf : public ::testing::TestWithParam<PoolBacking> {};

TEST_P(PoolOnSimOf, TheDocumentedHitRateComesFromTheDocumentedCounts) {
  MemoryPool pool{make_sim({.memory_bytes = 64 * MiB}), Location::device, {.backing = GetParam()}};
  {
    std::vector<Allocation> first;
    for (int i = 0; i < 1052; ++i) first.push_back(pool.acquire(4 * KiB));
  }
  for (int i = 0; i < 9471; ++i) pool.acquire(4 * KiB).release();
  auto const statistics = pool.statistics();
  EXPECT_EQ(statistics.pool_hits, 9471U);
  EXPECT_EQ(statistics.total_allocations, 10'523U);
  EXPECT_NEAR(statistics.hit_rate() * 100, 90.0, 0.05);
}

INSTANTIATE_TEST_SUITE_P(Backings, PoolOnSimOf, ::testing::Values(PoolBacking::pages, PoolBacking::allocations),
                         [](auto const& backing) { return std::string(to_string(backing.param)); });

TEST(PoolOnSim, WhichWorkIsPendingDecidesWhoWaits) {
  // Every command takes so long that "not ready" after an acquire can only mean that nobody has waited.
  auto& sim = make_sim({.memory_bytes = 64 * MiB, .latency = 300ms});
  auto a = sim.create_queue(), b = sim.create_queue();
  MemoryPool pool{sim, Location::device, {.backing = PoolBacking::allocations}};
  auto const words = pattern(1024, 1), others = pattern(1024, 2);
  std::vector<std::uint64_t> seen(1024);

  auto block = pool.acquire(8 * KiB, {.queue = &a});
  auto const object = block.memory().object;
  auto uploaded = a.upload(block.memory(), words.data(), 8 * KiB);
  block.release(uploaded);
  block = pool.acquire(8 * KiB, {.queue = &a});
  EXPECT_EQ(block.memory().object, object);
  EXPECT_FALSE(uploaded.ready()) << "the same queue does not wait";

  auto const downloaded = a.download(seen.data(), block.memory(), 8 * KiB);
  block.release(downloaded);
  block = pool.acquire(8 * KiB, {.queue = &b});
  EXPECT_EQ(block.memory().object, object);
  EXPECT_FALSE(downloaded.ready()) << "the host does not wait for another queue to be ordered behind";
  b.upload(block.memory(), others.data(), 8 * KiB).wait();
  EXPECT_TRUE(downloaded.ready());
  EXPECT_EQ(seen, words) << "what b wrote came after what a read";

  uploaded = b.upload(block.memory(), words.data(), 8 * KiB);
  block.release(uploaded);
  block = pool.acquire(8 * KiB);
  EXPECT_EQ(block.memory().object, object);
  EXPECT_TRUE(uploaded.ready()) << "the host gets what is ready";
}

TEST(PoolOnSim, WhicheverDriverAllocationFailsNothingLeaks) {
  for (std::uint64_t failing = 1; failing <= 8; ++failing) {
    SCOPED_TRACE(::testing::Message() << "allocation " << failing << " fails");
    auto& sim = make_sim({.memory_bytes = 16 * MiB, .fail_allocation = failing});
    {
      MemoryPool pool{sim, Location::device};
      std::vector<Allocation> blocks;
      for (std::size_t const bytes : {MiB, 2 * MiB, 3 * MiB, 4 * MiB, MiB, 5 * MiB, 6 * MiB}) {
        try {
          blocks.push_back(pool.acquire(bytes));
        } catch (OutOfMemory const&) {
          blocks.clear();
        }
        pool.validate();
        EXPECT_EQ(sim.memory_info().free_bytes, 16 * MiB - pool.statistics().reserved_bytes);
        if (blocks.size() == 4) blocks.erase(blocks.begin(), blocks.begin() + 2);
      }
    }
    EXPECT_EQ(sim.memory_info().free_bytes, 16 * MiB);
  }
}

/// Statics with work pending; std::exit destroys them after everything else that lives in the device.
[[noreturn]] void exit_with_work_pending() {
  auto& sim = make_sim({.memory_bytes = 16 * MiB, .latency = 20ms});
  static std::vector<std::uint64_t> const words(1024);
  static MemoryPool pool{sim, Location::device};
  static auto held = pool.acquire(MiB);  // destroyed before the pool
  auto block = pool.acquire(8 * KiB);
  block.release(sim.default_queue().upload(block.memory(), words.data(), 8 * KiB));
  std::exit(0);  // NOLINT(concurrency-mt-unsafe)
}

TEST(PoolAtExitDeathTest, InStaticStorageWithWorkPendingTheProcessEndsCleanly) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_work_pending(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace unimem
