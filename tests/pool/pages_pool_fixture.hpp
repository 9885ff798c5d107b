#pragma once

#include <unimem/device/device.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "core/sizes.hpp"
#include "pool/page_size.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

// What the tests of pools of pages share: blocks full of one word, and a pool that is compared with its device in the
// end.

namespace unimem {

inline std::span<std::uint64_t> words(Allocation const& block) {
  return {static_cast<std::uint64_t*>(block.data()), block.size() / 8};
}

inline void fill(Allocation const& block, std::uint64_t word) {
  std::ranges::fill(words(block), word);
}

inline bool holds(Allocation const& block, std::uint64_t word) {
  return std::ranges::count(words(block), word) == static_cast<std::ptrdiff_t>(words(block).size());
}

inline std::size_t taken_from(Device& device) {
  auto const memory = device.memory_info();
  return memory.total_bytes - memory.free_bytes;
}

/// A pool over pages of a simulated device of its own, whose books are compared with the device's at the end.
class PoolOfPages : public ::testing::Test {
 protected:
  void TearDown() override {
    if (!pool) return;
    pool->validate();
    EXPECT_EQ(pool->statistics().reserved_bytes, taken_from(device));
    pool.reset();
    EXPECT_EQ(taken_from(device), 0U);
  }

  MemoryPool& make(PoolOptions options = {}) {
    options.backing = PoolBacking::pages;
    return pool.emplace(device, Location::device, std::move(options));
  }

  Device& device = make_sim({.memory_bytes = 64 * MiB});
  std::optional<MemoryPool> pool;
};

}  // namespace unimem
