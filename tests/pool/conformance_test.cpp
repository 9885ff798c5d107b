#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "pool/no_such_memory.hpp"
#include "pool/pool_conformance.hpp"
#include "pool/pool_home.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <memory_resource>
#include <string>
#include <vector>

namespace unimem {
namespace {

using namespace std::chrono_literals;

std::shared_ptr<Upstream> heap() {
  return std::make_shared<ResourceUpstream>(*std::pmr::new_delete_resource());
}

INSTANTIATE_TEST_SUITE_P(
    Homes, PoolConformance,
    ::testing::Values(PoolHome{"cpu_host", []() -> Device& { return device("cpu"); }, Location::host, 64 * MiB},
                      PoolHome{"cpu_device", []() -> Device& { return device("cpu"); }, Location::device, 64 * MiB},
                      PoolHome{"cpu_pinned", []() -> Device& { return device("cpu"); }, Location::pinned, 256 * KiB},
                      PoolHome{"cpu_unified", []() -> Device& { return device("cpu"); }, Location::unified, 64 * MiB},
                      PoolHome{"cpu_unified_pages", []() -> Device& { return device("cpu"); }, Location::unified,
                               64 * MiB, PoolBacking::pages},
                      PoolHome{"cpu_upstream", []() -> Device& { return device("cpu"); }, Location::host, 64 * MiB,
                               PoolBacking::allocations, heap},
                      PoolHome{"cpu_pages", []() -> Device& { return device("cpu"); }, Location::device, 64 * MiB,
                               PoolBacking::pages},
                      PoolHome{"sim", []() -> Device& { return make_sim({.memory_bytes = 128 * MiB}); },
                               Location::device, 64 * MiB},
                      PoolHome{"sim_pages", []() -> Device& { return make_sim({.memory_bytes = 128 * MiB}); },
                               Location::device, 64 * MiB, PoolBacking::pages}),
    [](auto const& home) { return home.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Sim, PoolsWhereThereIsNoSuchMemory,
    ::testing::Values(Nowhere{"host", []() -> Device& { return make_sim({.memory_bytes = MiB}); }, Location::host},
                      Nowhere{"pinned", []() -> Device& { return make_sim({.memory_bytes = MiB}); }, Location::pinned},
                      Nowhere{"unified", []() -> Device& { return make_sim({.memory_bytes = MiB}); },
                              Location::unified}),
    [](auto const& nowhere) { return nowhere.param.name; });

class PoolOnSimOf : public ::testing::TestWithParam<PoolBacking> {};

TEST_P(PoolOnSimOf, TheHitRateComesFromTheCounts) {
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

TEST(PoolAtExitDeathTest, AStaticPoolWithPendingWorkEndsCleanly) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_work_pending(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace unimem
