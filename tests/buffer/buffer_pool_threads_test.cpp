#include <unimem/core/error.hpp>

#include "buffer/buffer_pool_fixture.hpp"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace unimem::testing {
namespace {

constexpr unsigned thread_count = 4;

/// Runs `work(thread)` on all threads at once.
template <class Work>
void on_threads(Work work) {
  std::barrier start{static_cast<std::ptrdiff_t>(thread_count)};
  std::vector<std::jthread> threads;
  for (unsigned thread = 0; thread < thread_count; ++thread) {
    threads.emplace_back([&, thread] {
      start.arrive_and_wait();
      work(thread);
    });
  }
}

class BufferPoolThreads : public BufferPoolTest {
 protected:
  void SetUp() override {
    auto settings = pool.settings();
    settings.pageable = {.max_bytes = 8000, .max_buffers = 6};
    pool.configure(settings);
  }
};

TEST_F(BufferPoolThreads, NoBufferIsEverHeldByTwo) {
  std::atomic<std::uint64_t> acquires{0};
  on_threads([&](unsigned thread) {
    std::mt19937 random{thread};
    for (std::uint32_t i = 0; i < 400; ++i) {
      auto const count = 100 * (1 + random() % 4);
      auto const tag = thread << 16 | i;
      auto buffer = pool.acquire<std::uint32_t>(count, random() % 5 == 0);
      ++acquires;
      ASSERT_EQ(buffer.state(), BufferState::uninitialized);
      std::ranges::fill(buffer.host_overwrite(), tag);
      if (random() % 2 == 0) {
        buffer.sync_to_device();
        buffer.fill(tag + 1);
        ASSERT_EQ(buffer.to_vector(), std::vector<std::uint32_t>(count, tag + 1));
      } else {
        std::this_thread::yield();
        ASSERT_EQ(buffer.to_vector(), std::vector<std::uint32_t>(count, tag));
      }
      if (random() % 8 != 0) pool.release(buffer);
      if (i % 50 == 0) pool.trim(random() % 4000);
      if (i % 25 == 0) {
        pool.validate();  // limits included
      }
    }
  });
  auto const stats = pool.stats();
  EXPECT_EQ(stats.hits + stats.misses, acquires);
  EXPECT_EQ(stats.active_buffers, 0U);
  EXPECT_EQ(stats.refused, 0U);
  EXPECT_GT(stats.hits, 0U);
}

TEST_F(BufferPoolThreads, OneOfManyConcurrentReleasesSucceeds) {
  std::atomic<std::uint64_t> refused{0};
  for (int round = 0; round < 100; ++round) {
    auto const core = pool.acquire_core(detail::buffer_kind<std::uint32_t>(100, false));
    on_threads([&](unsigned) {
      auto mine = core;
      try {
        pool.release_core(mine);
      } catch (InvalidArgument const&) {
        ++refused;
      }
    });
  }
  EXPECT_EQ(refused, 100U * (thread_count - 1));
  EXPECT_EQ(pool.stats().released, 100U);
  EXPECT_EQ(pool.pool_size(), 0U) << "the test had a hold on each";
}

TEST_F(BufferPoolThreads, SettingsMayChangeWhileBuffersComeAndGo) {
  on_threads([&](unsigned thread) {
    std::mt19937 random{thread + 100};
    for (int i = 0; i < 300; ++i) {
      if (thread == 0) {
        auto settings = pool.settings();
        settings.pageable.max_buffers = random() % 6;
        settings.zero_on_release = random() % 2 == 0;
        pool.configure(settings);
        if (i % 20 == 0) pool.clear();
        pool.validate();
      } else {
        PooledBuffer<std::uint32_t> const batch{pool, static_cast<std::size_t>(1 + random() % 3)};
        ASSERT_EQ(batch->state(), BufferState::uninitialized);
      }
    }
  });
  EXPECT_EQ(pool.stats().active_buffers, 0U);
}

}  // namespace
}  // namespace unimem::testing
