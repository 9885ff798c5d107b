#pragma once

#include <unimem/buffer/buffer_pool.hpp>
#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace unimem::testing {

/// A device that buffers of a pool are on.
struct PoolingHome {
  char const* name;
  Device& (*device)();
  Location location;            ///< of the memory that its work uses
  bool may_be_missing = false;  ///< not all hardware is so
};

inline std::ostream& operator<<(std::ostream& out, PoolingHome const& home) {
  return out << home.name;
}
inline std::string pooling_home_name(::testing::TestParamInfo<PoolingHome> const& info) {
  return info.param.name;
}

/// What pools of whole buffers do, whatever device these are on.
class BufferPoolConformance : public BufferTest, public ::testing::WithParamInterface<PoolingHome> {
 protected:
  using Numbers = UnifiedBuffer<std::uint32_t>;

  void SetUp() override {
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
  void TearDown() override { pool.validate(); }

  [[nodiscard]] BufferPoolOptions options() {
    BufferPoolOptions result;
    result.manager = &manager;
    result.device = &home;
    return result;
  }
  /// A buffer that counts from `first`, current on both sides.
  [[nodiscard]] Numbers counted(std::size_t count, std::uint32_t first, bool pinned = false) {
    auto buffer = pool.acquire<std::uint32_t>(count, pinned);
    buffer.copy_from(counting(count, first));
    buffer.sync_to_device(home);
    return buffer;
  }
  [[nodiscard]] bool counts(Numbers& buffer, std::uint32_t first) {
    auto const expected = counting(buffer.size(), first);
    return device_bytes(buffer, home) == expected && buffer.to_vector() == expected;
  }
  [[nodiscard]] PoolStatistics memory() { return manager.pool(home, location).statistics(); }
  [[nodiscard]] std::string place() const { return std::string(home.id()) + " " + std::string(to_string(location)); }

 private:
  /// The home's device. Where this machine has none of its kind, why, and until the test is skipped the cpu's.
  [[nodiscard]] Device& found() {
    if (!GetParam().may_be_missing) return GetParam().device();
    try {
      return GetParam().device();
    } catch (UnsupportedOperation const& reason) {
      missing = reason.what();
      return device("cpu");
    }
  }

  std::string missing;

 protected:
  Device& home = found();
  Location const location = GetParam().location;
  BufferPool pool{options()};
};

TEST_P(BufferPoolConformance, BuffersOfManySizesHoldTheirOwnElements) {
  for (bool const pinned : {false, true}) {
    SCOPED_TRACE(pinned ? "pinned" : "pageable");
    std::vector<Numbers> buffers;
    std::uint32_t first = 0;
    for (std::size_t const count : {1U, 2U, 100U, 1000U, 1001U, 20'000U})
      buffers.push_back(counted(count, ++first, pinned));
    EXPECT_EQ(pool.stats(pinned).active_buffers, buffers.size());
    first = 0;
    for (auto& buffer : buffers) EXPECT_TRUE(counts(buffer, ++first)) << buffer.size() << " elements";
    for (auto& buffer : buffers) pool.release(buffer);
    EXPECT_EQ(pool.stats(pinned).active_buffers, 0U);
    EXPECT_EQ(pool.stats(pinned).pooled_buffers, buffers.size());
  }
}

TEST_P(BufferPoolConformance, ReleasedBuffersAreLentAgainWithTheirMemory) {
  auto buffer = counted(10'000, 1);
  auto const* const core = &buffer.core();
  auto const before = memory();
  EXPECT_GT(before.active_allocations, 0U);
  pool.release(buffer);
  EXPECT_EQ(memory().active_allocations, before.active_allocations) << "it is kept with it";
  EXPECT_EQ(pool.total_bytes(), 40'000U);
  auto again = counted(10'000, 2);
  EXPECT_EQ(&again.core(), core);
  EXPECT_TRUE(counts(again, 2));
  EXPECT_EQ(memory().total_allocations, before.total_allocations) << "nobody had to be asked";
  auto const stats = pool.stats();
  EXPECT_EQ(stats.hits, 1U);
  EXPECT_EQ(stats.misses, 1U);
  EXPECT_EQ(stats.released, 1U);
  EXPECT_EQ(stats.active_buffers, 1U);
}

TEST_P(BufferPoolConformance, AnyThreadReleasesBuffersInAnyOrder) {
  for (int const order : {0, 1, 2}) {
    SCOPED_TRACE(order);
    std::vector<Numbers> buffers;
    for (std::uint32_t i = 0; i < 6; ++i) buffers.push_back(counted(500 + 100 * i, i));
    std::vector<std::uint32_t> turns{0, 1, 2, 3, 4, 5};
    if (order == 1) std::ranges::reverse(turns);
    if (order == 2) std::ranges::rotate(turns, turns.begin() + 3);
    for (auto turn = turns.begin(); turn != turns.end(); ++turn) {
      std::jthread([&, i = *turn] {
        EXPECT_TRUE(counts(buffers[i], i));
        pool.release(buffers[i]);
      }).join();
      EXPECT_EQ(pool.stats().active_buffers, static_cast<std::size_t>(turns.end() - turn - 1));
      for (auto later = turn + 1; later != turns.end(); ++later) EXPECT_TRUE(counts(buffers[*later], *later)) << *later;
    }
  }
  EXPECT_EQ(pool.stats().misses, 6U);
  EXPECT_EQ(pool.stats().hits, 12U);
  EXPECT_EQ(pool.stats().refused, 0U);
}

TEST_P(BufferPoolConformance, TrimmedMemoryGoesBackToTheDevice) {
  std::vector<Numbers> buffers;
  for (std::uint32_t i = 0; i < 4; ++i) buffers.push_back(counted(5'000 * (i + 1), i));
  auto lent = counted(300, 9);
  for (auto& buffer : buffers) pool.release(buffer);
  EXPECT_EQ(pool.trim(), 200'000U);
  EXPECT_EQ(pool.pool_size(), 0U);
  EXPECT_EQ(memory().active_allocations, 1U) << "what is lent is not touched";
  manager.cleanup();
  EXPECT_TRUE(counts(lent, 9));
  pool.release(lent);
  EXPECT_EQ(pool.pool_size(), 1U) << "a trim is not the end of caching";
  pool.clear();
  manager.cleanup();
  EXPECT_EQ(manager.statistics().active_bytes, 0U);
  EXPECT_EQ(manager.statistics().reserved_bytes, 0U);
  pool.release(counted(300, 1));
  pool.release(counted(300, 2));
  EXPECT_EQ(pool.stats().hits, 1U);
}

TEST_P(BufferPoolConformance, RefusalsNameTheLimitAndSpareOtherBuffers) {
  constexpr std::size_t limit = std::size_t{1} << 20, many = 300'000;
  manager.set_limit(home, location, limit);
  auto kept = counted(10'000, 1);
  auto large = pool.acquire<std::uint32_t>(many);
  try {
    large.fill(7);
    auto const lease = large.device(home);
    ADD_FAILURE() << "was granted";
  } catch (OutOfMemory const& error) {
    EXPECT_EQ(error.requested(), many * 4);
    EXPECT_EQ(error.limit(), limit);
    EXPECT_EQ(error.facts().where, place());
  }
  EXPECT_LE(memory().reserved_bytes, limit);
  EXPECT_EQ(pool.stats().active_buffers, 2U);
  EXPECT_TRUE(counts(kept, 1));
  pool.release(large);
  pool.validate();
  pool.clear();
  manager.set_limit(home, location, 8 * limit);
  auto served = counted(many, 2);
  EXPECT_TRUE(counts(served, 2));
  EXPECT_TRUE(counts(kept, 1));
}

TEST_P(BufferPoolConformance, PinnedMemoryHasItsOwnLimits) {
  if (location == Location::unified) GTEST_SKIP() << "the host's side is the device's own memory: nothing is locked";
  constexpr std::size_t limit = std::size_t{64} << 10;
  manager.set_limit(home, Location::pinned, limit);
  auto& pinned = manager.pool(home, Location::pinned);
  EXPECT_EQ(&pinned, &manager.pool(device("cpu"), Location::pinned)) << "it is the host's, whatever device asks";
  auto locked = counted(10'000, 1, true), replaced = counted(10'000, 2, true), pageable = counted(10'000, 3);
  EXPECT_TRUE(locked.is_pinned());
  EXPECT_FALSE(replaced.is_pinned()) << "ordinary memory serves beyond the limit, and that is counted";
  EXPECT_EQ(manager.statistics().refused_pinnings, 1U);
  try {
    auto const block = manager.acquire(home, Location::pinned, limit / 2);
    ADD_FAILURE() << "was granted";
  } catch (OutOfMemory const& error) {
    EXPECT_EQ(error.requested(), limit / 2);
    EXPECT_EQ(error.limit(), limit);
    EXPECT_EQ(error.facts().where, "cpu pinned");
  }
  EXPECT_LE(pinned.statistics().reserved_bytes, limit);
  EXPECT_TRUE(counts(locked, 1));
  EXPECT_TRUE(counts(replaced, 2));
  EXPECT_TRUE(counts(pageable, 3));

  auto settings = pool.settings();
  settings.pinned.max_bytes = 40'000;
  pool.configure(settings);
  pool.release(pageable);
  pool.release(replaced);
  pool.release(locked);
  EXPECT_EQ(pool.stats(true).pooled_bytes, 40'000U);
  EXPECT_EQ(pool.stats(true).evicted, 1U);
  EXPECT_EQ(pool.stats(false).pooled_bytes, 40'000U);
  EXPECT_EQ(pool.stats(false).evicted, 0U);
}

}  // namespace unimem::testing
