#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/pool/memory_pool.hpp>
#include <unimem/pool/pool_resource.hpp>

#include "core/sanitizers.hpp"
#include "core/sizes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>

// Of every size there is: capacity at least as asked for, classes that never fall.

namespace unimem {
namespace {

constexpr bool slow = detail::is_sanitized;  // a sanitizer looks at every byte, or at every access
/// Of the sizes above 64 KiB sanitizers see one in so many.
constexpr std::size_t stride = slow ? 4099 : 1;

struct Home {
  char const* name;
  Device& (*device)();
  Location location;
  std::size_t largest;
};

class EverySize : public ::testing::TestWithParam<Home> {
 protected:
  void TearDown() override { pool.validate(); }

  /// What holds of a block of any size.
  void check(Allocation const& block, std::size_t bytes) {
    ASSERT_EQ(block.size(), bytes);
    ASSERT_EQ(block.memory().bytes, bytes);
    ASSERT_GE(block.capacity(), bytes);
    ASSERT_LE(bytes, size_class_limit(size_class(bytes)));
    ASSERT_GE(size_class(block.capacity()), size_class(bytes));
  }

  MemoryPool pool{GetParam().device(), GetParam().location};
};

TEST_P(EverySize, HasCapacityAndARisingClass) {
  // Downwards a cached block serves many sizes; upwards none does, and each size is a block of its own.
  auto last_class = size_class(8 * MiB);
  for (std::size_t bytes = 8 * MiB; bytes != 0; bytes -= bytes <= 64 * KiB ? 1 : std::min(stride, bytes - 64 * KiB)) {
    ASSERT_NO_FATAL_FAILURE(check(pool.acquire(bytes), bytes));
    ASSERT_LE(size_class(bytes), last_class) << "at " << bytes;
    last_class = size_class(bytes);
  }
  for (std::size_t bytes = 1; bytes <= 8 * MiB; bytes += bytes < MiB ? std::min<std::size_t>(stride, bytes / 16 + 1)
                                                         : slow      ? 40'009
                                                                     : 199) {
    ASSERT_NO_FATAL_FAILURE(check(pool.acquire(bytes), bytes));
    ASSERT_GE(size_class(bytes), last_class) << "at " << bytes;
    last_class = size_class(bytes);
  }
  auto const statistics = pool.statistics();
  EXPECT_EQ(statistics.pool_hits + statistics.pool_misses, statistics.total_allocations);
  EXPECT_EQ(statistics.active_allocations, 0U);
}

TEST_P(EverySize, HasCapacityInAnyOrder) {
  constexpr unsigned seed = 5;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random{seed};
  std::uniform_real_distribution<double> exponent{0, std::log2(static_cast<double>(GetParam().largest))};
  for (int round = 0; round < (slow ? 300 : 3000); ++round) {
    auto const bytes = static_cast<std::size_t>(std::exp2(exponent(random)));
    auto const block = pool.acquire(bytes), next = pool.acquire(bytes + 1);
    ASSERT_NO_FATAL_FAILURE(check(block, bytes));
    ASSERT_NO_FATAL_FAILURE(check(next, bytes + 1));
    ASSERT_FALSE(block.memory() == next.memory());
    ASSERT_GE(size_class(bytes + 1), size_class(bytes));
  }
}

INSTANTIATE_TEST_SUITE_P(Homes, EverySize,
                         ::testing::Values(Home{"cpu", []() -> Device& { return device("cpu"); }, Location::host,
                                                64 * MiB},
                                           Home{"sim", []() -> Device& { return make_sim({.memory_bytes = 64 * GiB}); },
                                                Location::device, slow ? 64 * MiB : 4 * GiB}),
                         [](auto const& home) { return home.param.name; });

TEST(EverySizeOfAResource, HasAnAddressThatComesBack) {
  MemoryPool pool{device("cpu"), Location::host};
  PoolResource resource{pool};
  for (std::size_t bytes = 0; bytes <= MiB; bytes += bytes < 8 * KiB ? 1 : slow ? 4099 : 61) {
    auto* const address = resource.allocate(bytes, 16);
    ASSERT_EQ(resource.statistics().live_bytes, bytes);
    resource.deallocate(address, bytes, 16);
  }
  EXPECT_EQ(resource.statistics().live_allocations, 0U);
  EXPECT_EQ(resource.statistics().refused_deallocations, 0U);
}

}  // namespace
}  // namespace unimem
