#include <unimem/device/sim.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "core/sizes.hpp"
#include "pool/scripted_device.hpp"
#include "pool/watched_pages.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>

// Why a hit is cheaper than raw memory, whatever the machine: it asks no driver. How much cheaper `./dev bench`
// measures.

namespace unimem {
namespace {

constexpr std::uint64_t pairs = 1000;

/// What blocks are made of, and the threshold beyond which they go back: threads keep some for themselves only where
/// there is none.
class WhatAHitCosts : public ::testing::TestWithParam<std::tuple<PoolBacking, std::size_t>> {
 protected:
  WhatAHitCosts() {
    device.page_source = &pages;
    device.on_release = [this](DeviceMemory) { ++releases_; };
  }

  [[nodiscard]] std::size_t driver_calls() const { return device.driver_calls() + releases_ + pages.calls(); }

  WatchedPages pages{*make_sim({.memory_bytes = 64 * MiB}).pages()};
  ScriptedDevice device{64 * MiB};

 private:
  std::atomic<std::size_t> releases_{0};
};

TEST_P(WhatAHitCosts, IsNoDriverCall) {
  auto const [backing, threshold] = GetParam();
  for (std::size_t const bytes : {100 * std::size_t{1}, 64 * KiB, 3 * MiB}) {
    MemoryPool pool{device, Location::device, {.release_threshold = threshold, .backing = backing}};
    auto const cold = driver_calls();
    pool.acquire(bytes).release();
    auto const warm = driver_calls();
    if (backing == PoolBacking::allocations) {
      EXPECT_EQ(warm, cold + 1) << bytes;
    } else {
      EXPECT_GT(warm, cold) << bytes << ": addresses, pages, and these behind those";
    }
    for (std::uint64_t i = 0; i < pairs; ++i) pool.acquire(bytes).release();
    EXPECT_EQ(driver_calls(), warm) << bytes;
    auto const statistics = pool.statistics();
    EXPECT_EQ(statistics.pool_misses, 1U) << bytes;
    EXPECT_EQ(statistics.pool_hits, pairs) << bytes;
  }
}

INSTANTIATE_TEST_SUITE_P(Pools, WhatAHitCosts,
                         ::testing::Combine(::testing::Values(PoolBacking::allocations, PoolBacking::pages),
                                            ::testing::Values(std::numeric_limits<std::size_t>::max(), 16 * MiB)));

}  // namespace
}  // namespace unimem
