#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>

#include "buffer/buffer_pool_fixture.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

// What a pool of whole buffers lends and keeps. What it refuses: buffer_pool_misuse_test.cpp; what of one owner must
// not reach the next: buffer_pool_reuse_test.cpp; threads: buffer_pool_threads_test.cpp.

namespace unimem::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

static_assert(!std::is_copy_constructible_v<BufferPool> && !std::is_move_constructible_v<BufferPool>);
static_assert(!std::is_copy_constructible_v<PooledBuffer<int>> &&
              std::is_nothrow_move_constructible_v<PooledBuffer<int>> &&
              std::is_nothrow_move_assignable_v<PooledBuffer<int>>);

class BufferPools : public BufferPoolTest {
 protected:
  void limit(BufferPoolLimits const& pageable) {
    auto settings = pool.settings();
    settings.pageable = pageable;
    pool.configure(settings);
  }
  /// Lends buffers of these sizes, all at once, and has them back in this order.
  void release_all(std::vector<std::size_t> const& counts, bool pinned = false) {
    std::vector<Numbers> buffers;
    for (auto const count : counts) buffers.push_back(pool.acquire<std::uint32_t>(count, pinned));
    for (auto& buffer : buffers) pool.release(buffer);
  }
  /// Whether a buffer of this size is kept; it is kept afterwards too, as the youngest.
  [[nodiscard]] bool keeps(std::size_t count) {
    auto const before = pool.stats().hits;
    auto buffer = pool.acquire<std::uint32_t>(count);
    bool const hit = pool.stats().hits != before;
    if (hit) pool.release(buffer);
    return hit;
  }
};

TEST_F(BufferPools, LendAReleasedBufferForItsOwnKind) {
  auto buffer = pool.acquire<float>({10, 100});
  EXPECT_THAT(buffer.shape(), ::testing::ElementsAre(10, 100));
  auto const* const core = &buffer.core();
  pool.release(buffer);
  EXPECT_EQ(pool.pool_size(), 1U);
  EXPECT_EQ(pool.total_bytes(), 4000U);
  auto const again = pool.acquire<float>({10, 100});
  EXPECT_EQ(&again.core(), core) << "same buffer!";
  EXPECT_EQ(pool.pool_size(), 0U);
  EXPECT_EQ(pool.total_bytes(), 0U);
}

TEST_F(BufferPools, LendNoBufferOfAnotherKind) {
  auto buffer = pool.acquire<float>({10, 100});
  auto const* const core = &buffer.core();
  pool.release(buffer);
  EXPECT_NE(&pool.acquire<float>({100, 10}).core(), core);
  EXPECT_NE(&pool.acquire<float>(1000).core(), core);
  EXPECT_NE(&pool.acquire<float>({1, 10, 100}).core(), core);
  EXPECT_NE(&pool.acquire<std::int32_t>({10, 100}).core(), core) << "as large, and not the same";
  EXPECT_NE(&pool.acquire<float>({10, 100}, true).core(), core);
  EXPECT_EQ(pool.stats().hits, 0U);
  EXPECT_EQ(pool.stats().misses, 6U);
  EXPECT_EQ(&pool.acquire<float>({10, 100}).core(), core) << "it is still there";
}

TEST_F(BufferPools, LendTheOneReleasedLastFirst) {
  auto first = pool.acquire<int>(10), second = pool.acquire<int>(10);
  auto const* const core = &second.core();
  pool.release(first);
  pool.release(second);
  EXPECT_EQ(&pool.acquire<int>(10).core(), core);
}

TEST_F(BufferPools, TakeEveryShapeThatABufferCanHave) {
  for (auto const& shape : {Shape{}, Shape(0), Shape{3, 0}, Shape{2, 3, 4}}) {
    auto buffer = pool.acquire<double>(shape);
    EXPECT_EQ(buffer.size(), shape.count());
    auto const* const core = &buffer.core();
    pool.release(buffer);
    EXPECT_EQ(&pool.acquire<double>(shape).core(), core);
  }
  EXPECT_THROW((void)pool.acquire<double>(std::size_t{1} << 62), InvalidArgument);
  EXPECT_THROW((void)pool.acquire<std::uint8_t>(std::size_t{1} << 63), InvalidArgument);
  EXPECT_EQ(pool.stats().misses, 4U) << "refused arguments are not counted";
}

TEST_F(BufferPools, CountHitsAndMissesAsDocumented) {
  EXPECT_EQ(pool.stats().hit_rate(), 0.0);
  {
    std::vector<UnifiedBuffer<int>> buffers;
    for (int i = 0; i < 1052; ++i) buffers.push_back(pool.acquire<int>(16));
    EXPECT_EQ(pool.stats().active_buffers, 1052U);
    for (auto& buffer : buffers) pool.release(buffer);
  }
  for (int i = 0; i < 9471; ++i) pool.release(pool.acquire<int>(16));
  auto const stats = pool.stats();
  EXPECT_EQ(stats.hits, 9471U);
  EXPECT_EQ(stats.misses, 1052U);
  EXPECT_NEAR(stats.hit_rate() * 100, 90.0, 0.05);
  EXPECT_EQ(stats.active_buffers, 0U);
  EXPECT_EQ(stats.pooled_bytes, 1052U * 64);
  EXPECT_EQ(stats.peak_pooled_bytes, 1052U * 64);
}

TEST_F(BufferPools, ForgetBuffersThatTheirOwnersDestroy) {
  for (int i = 0; i < 1000; ++i) static_cast<void>(pool.acquire<int>(16));
  EXPECT_EQ(pool.stats().active_buffers, 0U);
  EXPECT_EQ(pool.stats().misses, 1000U);
  EXPECT_EQ(pool.pool_size(), 0U);
}

/// A pool forgets kinds of which it keeps none, also while it has lent some of them.
TEST_F(BufferPools, KeepBuffersWhoseKindTheyHaveForgottenMeanwhile) {
  auto const lend_again = [&](std::size_t count) {
    auto buffer = pool.acquire<std::uint32_t>(count);
    pool.release(buffer);
    return pool.acquire<std::uint32_t>(count);
  };
  auto first = lend_again(1), second = lend_again(2);
  for (std::size_t count = 3; count < 100; ++count) static_cast<void>(lend_again(count));
  auto another = pool.acquire<std::uint32_t>(1);
  auto const *const core = &first.core(), *const other = &another.core();
  pool.release(another);
  pool.release(first);
  pool.release(second);
  pool.validate();
  EXPECT_EQ(pool.pool_size(), 3U);
  auto const again = pool.acquire<std::uint32_t>(1), next = pool.acquire<std::uint32_t>(1);
  EXPECT_EQ(&again.core(), core);
  EXPECT_EQ(&next.core(), other);
  EXPECT_TRUE(keeps(2));
}

TEST_F(BufferPools, KeepTheNewestWithinTheByteLimit) {
  limit({.max_bytes = 4000});
  release_all({400, 300, 200, 100});
  EXPECT_EQ(pool.total_bytes(), 4000U) << "all of it may be used";
  release_all({50});
  EXPECT_FALSE(keeps(400)) << "the oldest has made room";
  EXPECT_EQ(pool.total_bytes(), 2600U);
  EXPECT_TRUE(keeps(300));  // and is the youngest now
  release_all({500});
  EXPECT_FALSE(keeps(200));
  EXPECT_TRUE(keeps(300));
  EXPECT_TRUE(keeps(500));
  EXPECT_EQ(pool.stats().peak_pooled_bytes, 4000U);
}

TEST_F(BufferPools, KeepNoMoreBuffersThanTheLimit) {
  limit({.max_buffers = 3});
  release_all({1, 2, 3, 4});
  EXPECT_EQ(pool.pool_size(), 3U);
  EXPECT_FALSE(keeps(1));
  limit({.max_buffers = 0});
  EXPECT_EQ(pool.pool_size(), 0U);
  release_all({1});
  EXPECT_EQ(pool.pool_size(), 0U);
}

TEST_F(BufferPools, NeverKeepBuffersAboveTheLargestSize) {
  limit({.max_buffer_bytes = 400});
  release_all({100, 101});
  EXPECT_TRUE(keeps(100));
  EXPECT_FALSE(keeps(101));
  auto const stats = pool.stats();
  EXPECT_EQ(stats.let_go, 1U);
  EXPECT_EQ(stats.evicted, 0U) << "what cannot stay makes nobody go";
}

TEST_F(BufferPools, KeepNoBufferAboveTheByteLimit) {
  limit({.max_bytes = 400});
  release_all({50, 101});
  EXPECT_TRUE(keeps(50));
  EXPECT_FALSE(keeps(101));
}

TEST_F(BufferPools, KeepEachClassWithinItsLimit) {
  limit({.max_buffers_per_class = 2});
  release_all({1, 2000, 2, 2001, 3, 2002});  // two classes: up to 4 KiB, up to 8 KiB
  EXPECT_EQ(pool.pool_size(), 4U);
  EXPECT_FALSE(keeps(1));
  EXPECT_FALSE(keeps(2000));
  EXPECT_TRUE(keeps(2));
  EXPECT_TRUE(keeps(2002));
}

TEST_F(BufferPools, ApplyLowerLimitsAtOnceToKeptBuffers) {
  auto lent = pool.acquire<std::uint32_t>(1000);
  lent.copy_from(counting(1000));
  release_all({400, 300, 200});
  limit({.max_bytes = 2000, .max_buffer_bytes = 1200});
  EXPECT_EQ(pool.total_bytes(), 2000U);
  EXPECT_FALSE(keeps(400)) << "too large now";
  EXPECT_EQ(lent.to_vector(), counting(1000));
  pool.release(lent);
  EXPECT_FALSE(keeps(1000));
}

TEST_F(BufferPools, LetBuffersGoAfterTheInterval) {
  auto settings = pool.settings();
  settings.trim_interval = 10s;
  pool.configure(settings);
  release_all({1});
  now += 6s;
  release_all({2});
  now += 4s;
  release_all({3});
  EXPECT_EQ(pool.pool_size(), 3U) << "the interval has not passed yet";
  now += 1s;
  release_all({4});
  EXPECT_EQ(pool.pool_size(), 3U) << "an acquire, or a release, has looked";
  now += 1min;
  EXPECT_EQ(pool.trim(8), 4 * (2 + 3 + 4U)) << "the old go though they might stay";
  EXPECT_EQ(pool.pool_size(), 0U);
}

TEST_F(BufferPools, LendAnOldBufferBeforeTrimmingIt) {
  auto settings = pool.settings();
  settings.trim_interval = 10s;
  pool.configure(settings);
  release_all({1, 2});
  now += 1h;
  auto const buffer = pool.acquire<std::uint32_t>(1);
  EXPECT_EQ(pool.stats().hits, 1U);
  EXPECT_EQ(pool.pool_size(), 0U) << "and the other has gone";
}

TEST_F(BufferPools, CountAgesFromWhenAnIntervalIsSet) {
  release_all({1});
  now += 1h;
  auto settings = pool.settings();
  settings.trim_interval = 10s;
  pool.configure(settings);
  EXPECT_TRUE(keeps(1));
}

TEST_F(BufferPools, TrimOldestFirstDownToTheTarget) {
  release_all({100});
  release_all({200}, true);
  release_all({300});
  EXPECT_EQ(pool.trim(1300), 1200U);
  EXPECT_EQ(pool.stats(false).pooled_bytes, 1200U);
  EXPECT_EQ(pool.stats(true).pooled_bytes, 0U);
  EXPECT_EQ(pool.trim(1200), 0U);
  EXPECT_EQ(pool.trim(), 1200U);
}

TEST_F(BufferPools, GoOnKeepingAfterATrim) {
  release_all({100, 200});
  pool.trim();
  release_all({100});
  EXPECT_TRUE(keeps(100)) << "a trim is not the end of caching";
}

TEST_F(BufferPools, ClearKeptBuffersAndSpareLentOnes) {
  auto lent = pool.acquire<std::uint32_t>(100);
  lent.copy_from(counting(100));
  release_all({0, 1, 100, 200});
  pool.clear();
  EXPECT_EQ(pool.pool_size(), 0U);
  EXPECT_EQ(pool.total_bytes(), 0U);
  EXPECT_EQ(pool.stats().active_buffers, 1U);
  lent.sync_to_device();
  EXPECT_EQ(device_bytes(lent, sim), counting(100));
  auto const* const core = &lent.core();
  pool.release(lent);
  EXPECT_EQ(pool.pool_size(), 1U) << "and it may be released";
  EXPECT_EQ(&pool.acquire<std::uint32_t>(100).core(), core);
}

TEST_F(BufferPools, GiveMemoryBackWhenTheyLetGo) {
  auto buffer = pool.acquire<std::uint32_t>(100'000);
  buffer.allocate();
  pool.release(buffer);
  EXPECT_EQ(manager.pool(sim, Location::device).statistics().active_allocations, 1U) << "it is kept with its memory";
  pool.clear();
  EXPECT_EQ(manager.pool(sim, Location::device).statistics().active_allocations, 0U);
  manager.cleanup();
  EXPECT_EQ(sim.memory_info().free_bytes, sim.memory_info().total_bytes);
}

TEST_F(BufferPools, HaveSeparateLimitsAndCountsForPinnedBuffers) {
  auto settings = pool.settings();
  settings.pinned.max_bytes = 400;
  pool.configure(settings);
  release_all({100, 100});
  release_all({50, 60}, true);
  EXPECT_EQ(pool.stats(true).pooled_bytes, 240U);
  EXPECT_EQ(pool.stats(true).evicted, 1U);
  EXPECT_EQ(pool.stats(true).misses, 2U);
  EXPECT_EQ(pool.stats(false).pooled_bytes, 800U);
  EXPECT_EQ(pool.stats(false).evicted, 0U);
  EXPECT_EQ(pool.total_bytes(), 1040U);
  EXPECT_EQ(pool.pool_size(), 3U);
  auto buffer = pool.acquire<std::uint32_t>(60, true);
  static_cast<void>(buffer.host());
  EXPECT_TRUE(buffer.is_pinned());
  EXPECT_EQ(pool.stats(true).active_buffers, 1U);
  EXPECT_EQ(pool.stats(true).hits, 1U);
  EXPECT_EQ(pool.stats().hits, 1U);
}

TEST_F(BufferPools, LentBuffersOutliveTheirPool) {
  std::optional<BufferPool> brief(options());
  auto buffer = brief->acquire<std::uint32_t>(100);
  brief.reset();
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  EXPECT_EQ(device_bytes(buffer, sim), counting(100));
}

class PooledBuffers : public BufferPools {};

TEST_F(PooledBuffers, GoBackAtTheEndOfTheirScope) {
  BufferCore const* core = nullptr;
  {
    PooledBuffer<std::uint32_t> batch{pool, 100};
    batch->copy_from(counting(100));
    EXPECT_EQ((*batch).to_vector(), counting(100));
    core = &batch->core();
    EXPECT_EQ(pool.stats().active_buffers, 1U);
  }
  EXPECT_EQ(pool.pool_size(), 1U);
  EXPECT_EQ(&pool.acquire<std::uint32_t>(100).core(), core);
}

TEST_F(PooledBuffers, GoBackByAnExceptionToo) {
  auto const work = [&] {
    PooledBuffer<std::uint32_t> batch{pool, 100};
    batch->copy_from(counting(101));  // too many
  };
  EXPECT_THROW(work(), SizeMismatch);
  EXPECT_EQ(pool.pool_size(), 1U);
  EXPECT_EQ(pool.stats().active_buffers, 0U);
}

TEST_F(PooledBuffers, GoBackExactlyOnceHoweverTheyMove) {
  {
    PooledBuffer<std::uint32_t> first{pool, 100}, second{pool, 200};
    auto moved = std::move(first);
    EXPECT_EQ(pool.pool_size(), 0U);
    moved = std::move(second);
    EXPECT_EQ(pool.pool_size(), 1U) << "what was assigned over went back";
    auto& same = moved;
    moved = std::move(same);
    EXPECT_EQ(moved->size(), 200U) << "assigning a guard to itself keeps it";
    moved.release();
    moved.release();
    EXPECT_EQ(pool.pool_size(), 2U);
    PooledBuffer<std::uint32_t> by_hand{pool, 300};
    pool.release(*by_hand);
    EXPECT_EQ(pool.pool_size(), 3U);
  }
  EXPECT_EQ(pool.pool_size(), 3U);
  EXPECT_EQ(pool.stats().refused, 0U);
}

TEST_F(PooledBuffers, ReportWhatTheyCannotGiveBack) {
  ::testing::internal::CaptureStderr();
  {
    PooledBuffer<std::uint32_t> batch{pool, 100};
    *batch = Numbers(100, on_sim("a stranger"));
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("'a stranger'"));
  EXPECT_EQ(pool.pool_size(), 0U);
}

TEST(DefaultBufferPool, IsOneForTheProcessAndIsConfigured) {
  auto& pool = default_buffer_pool();
  EXPECT_EQ(&default_buffer_pool(), &pool);
  auto const before = pool.settings();
  auto settings = before;
  settings.pageable.max_buffers = 1;
  pool.configure(settings);
  auto first = pool.acquire<std::uint16_t>(10), second = pool.acquire<std::uint16_t>(20);
  pool.release(first);
  pool.release(second);
  EXPECT_EQ(pool.pool_size(), 1U);
  EXPECT_EQ(pool.total_bytes(), 40U);
  pool.configure(before);
  pool.clear();
}

}  // namespace
}  // namespace unimem::testing
