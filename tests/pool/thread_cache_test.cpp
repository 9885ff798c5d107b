#include <unimem/pool/memory_pool.hpp>

#include "core/sanitizers.hpp"
#include "core/sizes.hpp"
#include "pool/depots.hpp"
#include "pool/magazines.hpp"
#include "pool/near_exact.hpp"
#include "pool/scripted_device.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <latch>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

// Blocks that their threads keep for themselves: what is gained by it, and that nobody else loses by it.
namespace unimem {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

/// Runs `work` on a thread of its own and waits until that has ended.
template <class Work>
void on_another_thread(Work work) {
  std::jthread{std::move(work)}.join();
}

/// A thread that does what it is told, one thing at a time, and meanwhile only waits: its magazines stay as they are.
class Colleague {
 public:
  template <class Work>
  void do_this(Work work) {
    std::latch done{1};
    {
      std::lock_guard const lock{mutex_};
      tasks_.emplace_back([&] {
        work();
        done.count_down();
      });
    }
    changed_.notify_one();
    done.wait();
  }

  ~Colleague() {
    {
      std::lock_guard const lock{mutex_};
      leaving_ = true;
    }
    changed_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock{mutex_};
    for (;;) {
      changed_.wait(lock, [this] { return leaving_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      auto const task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool leaving_ = false;
  std::jthread thread_{[this] { run(); }};
};

TEST(NearExactClass, HoldsEverySizeUpToItsLimit) {
  for (std::size_t bytes = 1; bytes <= 8 * MiB; bytes += bytes < 70'000 ? 1 : 997) {
    auto const index = detail::near_exact_class(bytes);
    ASSERT_LE(bytes, detail::near_exact_limit(index));
    ASSERT_TRUE(index == 0 || bytes > detail::near_exact_limit(index - 1)) << bytes;
    if (bytes < detail::exact_from) {
      ASSERT_EQ(detail::block_capacity(bytes), detail::near_exact_limit(index));
    }
  }
  EXPECT_EQ(detail::near_exact_class(detail::largest_small_block) + 1, detail::small_classes);
}

TEST(PoolThreadCache, AThreadTakesBackItsLastRelease) {
  ScriptedDevice device{16 * GiB};
  MemoryPool pool{device, Location::device};
  for (auto const bytes : {std::size_t{1}, 256 * KiB, 1 * MiB, 2 * MiB, 2 * MiB + 1, 16 * MiB, 256 * MiB}) {
    auto const object = pool.acquire(bytes).memory().object;
    for (int i = 0; i < 5; ++i) ASSERT_EQ(pool.acquire(bytes).memory().object, object) << bytes;
  }
  EXPECT_EQ(device.driver_calls(), 7U);
  EXPECT_EQ(pool.statistics().pool_hits, 35U);
  pool.validate();
}

TEST(PoolThreadCache, AtTheLimitAnothersCacheIsTaken) {
  ScriptedDevice device{1 * GiB};
  MemoryPool pool{device, Location::device, {.max_bytes = 1 * MiB}};
  Colleague colleague;
  colleague.do_this([&] { pool.acquire(768 * KiB).release(); });
  EXPECT_EQ(pool.statistics().total_pooled_bytes, 768 * KiB);

  auto const mine = pool.acquire(512 * KiB);  // does not fit beside what the colleague keeps
  EXPECT_EQ(mine.capacity(), 512 * KiB);
  EXPECT_EQ(device.live_bytes(), 512 * KiB);
  EXPECT_EQ(pool.statistics().total_pooled_bytes, 0U);
  colleague.do_this([&] { EXPECT_THROW(static_cast<void>(pool.acquire(768 * KiB)), OutOfMemory); });
  pool.validate();
}

TEST(PoolThreadCache, AnothersCacheIsReusedBeforeAnError) {
  ScriptedDevice device{1 * GiB};
  MemoryPool pool{device, Location::device, {.max_bytes = 1 * MiB}};
  Colleague colleague;
  std::uintptr_t object = 0;
  colleague.do_this([&] {
    auto const block = pool.acquire(1 * MiB);
    object = block.memory().object;
  });
  EXPECT_EQ(pool.acquire(1 * MiB).memory().object, object);
  EXPECT_EQ(device.driver_calls(), 1U);
}

TEST(PoolThreadCache, OneThreadsPeakIsExact) {
  constexpr unsigned seed = 7;
  std::mt19937 random{seed};
  ScriptedDevice device{16 * GiB};
  MemoryPool pool{device, Location::device};
  std::vector<Allocation> blocks;
  std::size_t live = 0, peak = 0;
  for (int round = 0; round < 5'000; ++round) {
    if (blocks.size() < 12 && random() % 2 == 0) {
      blocks.push_back(pool.acquire(1 + random() % (std::size_t{1} << (12 + random() % 15))));
      live += blocks.back().capacity();
      peak = std::max(peak, live);
    } else if (!blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      live -= blocks.back().capacity();
      blocks.pop_back();
    }
    ASSERT_EQ(pool.statistics().peak_active_bytes, peak) << "seed " << seed << ", round " << round;
  }
  pool.validate();
}

TEST(PoolThreadCache, TrimTakesFromEveryThread) {
  ScriptedDevice device{1 * GiB};
  MemoryPool pool{device, Location::device};
  Colleague first, second;
  first.do_this([&] { pool.acquire(64 * KiB).release(); });
  second.do_this([&] { pool.acquire(1 * MiB).release(); });
  pool.acquire(16 * MiB).release();
  EXPECT_EQ(pool.trim(), 17 * MiB + 64 * KiB);
  EXPECT_EQ(device.live_bytes(), 0U);
  // And it does not end there: what is released afterwards is kept again.
  first.do_this([&] {
    pool.acquire(64 * KiB).release();
    pool.acquire(64 * KiB).release();
  });
  EXPECT_EQ(pool.statistics().pool_hits, 1U);
  pool.validate();
}

TEST(PoolThreadCache, TheOldestReleaseGoesFirstWhoeverKeepsIt) {
  ScriptedDevice device{1 * GiB};
  MemoryPool pool{device, Location::device};
  auto small = pool.acquire(4 * KiB), medium = pool.acquire(64 * KiB), large = pool.acquire(4 * MiB);
  auto const oldest = medium.memory().object;
  medium.release();
  large.release();
  small.release();
  std::vector<std::uintptr_t> gone;
  device.on_release = [&gone](DeviceMemory memory) { gone.push_back(memory.object); };
  EXPECT_EQ(pool.trim(4 * MiB + 4 * KiB), 64 * KiB);
  EXPECT_THAT(gone, ElementsAre(oldest));
  device.on_release = nullptr;
}

TEST(PoolThreadCache, AThreadThatEndsHandsItsBlocksBack) {
  ScriptedDevice device{1 * GiB};
  MemoryPool pool{device, Location::device};
  std::uintptr_t object = 0;
  on_another_thread([&] {
    auto const block = pool.acquire(32 * KiB);
    object = block.memory().object;
  });
  EXPECT_EQ(pool.acquire(32 * KiB).memory().object, object);
  EXPECT_EQ(device.driver_calls(), 1U);
  EXPECT_EQ(pool.statistics().pool_hits, 1U);
  pool.validate();
}

TEST(PoolThreadCache, AThreadMayEndAfterItsPool) {
  ScriptedDevice device{1 * GiB};
  Colleague colleague;
  {
    MemoryPool pool{device, Location::device};
    colleague.do_this([&] { pool.acquire(32 * KiB).release(); });
  }
  EXPECT_EQ(device.live_bytes(), 0U) << "nothing waits for the thread to end";
  MemoryPool next{device, Location::device};
  colleague.do_this([&] { next.acquire(32 * KiB).release(); });
  EXPECT_EQ(next.statistics().total_pooled_bytes, 32 * KiB);
  next.validate();
}

TEST(PoolThreadCache, AnEndingThreadMayRelease) {
  ScriptedDevice device{1 * GiB};
  MemoryPool pool{device, Location::device};
  on_another_thread([&] {
    static thread_local std::optional<Allocation> kept;  // destroyed after what the pool keeps for the thread
    kept.emplace(pool.acquire(8 * KiB));
    pool.acquire(8 * KiB).release();
  });
  EXPECT_EQ(pool.statistics().active_allocations, 0U);
  EXPECT_EQ(pool.statistics().total_pooled_bytes, 16 * KiB);
  pool.validate();
}

TEST(PoolThreadCache, ManyPoolsBlocksAreKeptApart) {
  ScriptedDevice device{1 * GiB};
  std::deque<MemoryPool> pools;
  std::vector<std::uintptr_t> objects;
  for (int i = 0; i < 40; ++i) {
    pools.emplace_back(device, Location::device);
    objects.push_back(pools.back().acquire(4 * KiB).memory().object);
  }
  for (std::size_t i = 0; i < pools.size(); ++i) {
    EXPECT_EQ(pools[i].acquire(4 * KiB).memory().object, objects[i]);
    pools[i].validate();
  }
  EXPECT_EQ(device.driver_calls(), 40U);
}

TEST(PoolThreadCache, APendingBlockIsTakenByItsQueue) {
  ScriptedDevice device{1 * GiB};
  auto [queue, script] = device.scripted_queue();
  auto [other, other_script] = device.scripted_queue();
  MemoryPool pool{device, Location::device};
  auto block = pool.acquire(64 * KiB, {.queue = &queue});
  auto const object = block.memory().object;
  block.release(script->work());

  auto again = pool.acquire(64 * KiB, {.queue = &queue});
  EXPECT_EQ(again.memory().object, object);
  EXPECT_THAT(script->ordered_behind, SizeIs(0)) << "nothing to wait for within one queue";
  again.release();  // its owner did nothing: the work before him still counts

  auto const theirs = pool.acquire(64 * KiB, {.queue = &other, .may_wait = false});
  EXPECT_TRUE(theirs.memory().object != object || !other_script->ordered_behind.empty());
}

TEST(PoolThreadCache, CachedBlocksComeBeforeNewMemory) {
  ScriptedDevice device{8 * GiB};
  MemoryPool pool{device, Location::device};
  Colleague colleague;
  // Everything a thread released at once, of all sizes: some is with it, some in depots, most with the core.
  colleague.do_this([&] {
    std::vector<Allocation> blocks;
    for (std::size_t bytes = 4 * KiB; bytes <= 32 * MiB; bytes *= 2) {
      for (int i = 0; i < 40; ++i) blocks.push_back(pool.acquire(bytes));
    }
  });
  auto const before = device.driver_calls();
  std::vector<Allocation> mine;
  for (std::size_t bytes = 4 * KiB; bytes <= 32 * MiB; bytes *= 2) {
    for (int i = 0; i < 40; ++i) mine.push_back(pool.acquire(bytes));
  }
  EXPECT_EQ(device.driver_calls(), before);
  EXPECT_EQ(pool.statistics().total_pooled_bytes, 0U);
  pool.validate();
}

TEST(PoolThreadCache, LargeCachedBlocksComeBeforeNewMemory) {
  ScriptedDevice device{GiB};
  MemoryPool pool{device, Location::device};
  Colleague colleague;
  colleague.do_this([&] {
    std::vector<Allocation> blocks;
    for (int i = 0; i < 3; ++i) blocks.push_back(pool.acquire(16 * MiB));
  });
  auto const before = device.driver_calls();
  std::vector<Allocation> mine;
  for (int i = 0; i < 3; ++i) mine.push_back(pool.acquire(16 * MiB));
  EXPECT_EQ(device.driver_calls(), before);
  EXPECT_EQ(pool.statistics().reserved_bytes, 48 * MiB);
  pool.validate();
}

TEST(Magazines, KeepNoUnusedLargeBlocks) {
  detail::Magazines magazines;
  std::array<detail::Block, detail::Magazines::most_unclaimed + 1> blocks;
  for (auto& block : blocks) {
    block.memory.bytes = 8 * MiB;
    block.magazine = static_cast<std::uint32_t>(detail::near_exact_class(8 * MiB));
  }
  detail::Block small;
  small.memory.bytes = 4 * KiB;
  small.magazine = static_cast<std::uint32_t>(detail::near_exact_class(4 * KiB));

  for (auto& block : std::span{blocks}.first(detail::Magazines::most_unclaimed)) {
    ASSERT_FALSE(magazines.sends_on(block));
    ASSERT_TRUE(magazines.keep(block));
    static_cast<void>(magazines.take_oldest_large());  // as for any that there is no room for
  }
  auto& last = blocks.back();
  EXPECT_TRUE(magazines.sends_on(last));
  EXPECT_FALSE(magazines.keep(last));
  EXPECT_FALSE(magazines.sends_on(small)) << "of these there are many, and a batch is cheaper than each";
  EXPECT_TRUE(magazines.keep(small));
  magazines.send_on(last);
  EXPECT_EQ(magazines.take(9 * MiB, 0, {}), nullptr);
  EXPECT_TRUE(magazines.sends_on(last)) << "it would not have been of use";
  EXPECT_EQ(magazines.take(8 * MiB, 0, {}), nullptr);
  EXPECT_TRUE(magazines.keep(last)) << "the last one would";
  EXPECT_EQ(magazines.take_ready(8 * MiB, {}), &last);
}

TEST(Magazines, CanBeLeftWithTheirSmallBlocksAlone) {
  std::array<detail::Block, 2> blocks;
  auto& [small, large] = blocks;
  small.memory.bytes = 4 * KiB;
  large.memory.bytes = 8 * MiB;
  for (auto& block : blocks) block.magazine = static_cast<std::uint32_t>(detail::near_exact_class(block.capacity()));
  detail::Magazines magazines;
  for (auto& block : blocks) ASSERT_TRUE(magazines.keep(block));
  EXPECT_EQ(magazines.large_bytes(), 8 * MiB);
  std::vector<detail::Block*> taken;
  magazines.take_all_large([&](detail::Block& block) { taken.push_back(&block); });
  EXPECT_THAT(taken, ElementsAre(&large));
  EXPECT_EQ(magazines.large_bytes(), 0U);
  EXPECT_EQ(magazines.bytes(), 4 * KiB);
  EXPECT_EQ(magazines.take_ready(4 * KiB, {}), &small);

  detail::Depots depots{true};
  auto* const one = &small;
  ASSERT_EQ(depots.put({&one, 1}), 1U);
  ASSERT_TRUE(depots.put_large(large));
  EXPECT_EQ(depots.large_bytes(), 8 * MiB);
  taken.clear();
  depots.take_all_large([&](detail::Block& block) { taken.push_back(&block); });
  EXPECT_THAT(taken, ElementsAre(&large));
  EXPECT_EQ(depots.large_bytes(), 0U);
  EXPECT_EQ(depots.bytes(), 4 * KiB);
  depots.validate();
}

TEST(Depots, HoldAQueueTheLatestOnTop) {
  constexpr std::size_t each = 4;
  detail::Depots depots{true};
  std::vector<detail::Block> blocks(detail::Depots::most_bytes / MiB + each);
  std::vector<detail::Block*> all;
  for (auto& block : blocks) {
    block.memory.bytes = MiB;
    all.push_back(&block);
  }
  std::size_t held = 0;
  for (; held + each < blocks.size(); held += each) {
    ASSERT_EQ(depots.put(std::span{all}.subspan(held, each)), each) << held << " lie there";
  }
  EXPECT_EQ(depots.bytes(), detail::Depots::most_bytes);
  EXPECT_EQ(depots.put(std::span{all}.subspan(held, each)), 0U) << "together they may hold no more";
  depots.validate();
  std::array<detail::Block*, each> taken{};
  for (; held != 0; held -= each) {
    ASSERT_EQ(depots.take(MiB, taken), each);
    ASSERT_THAT(taken, ElementsAre(all[held - 1], all[held - 2], all[held - 3], all[held - 4]));
  }
  EXPECT_EQ(depots.take(MiB, taken), 0U);
  EXPECT_EQ(depots.bytes(), 0U);
  depots.validate();
}

TEST(Depots, TakeNoLargeBlocksThatNobodyTakes) {
  detail::Depots depots{true};
  std::array<detail::Block, detail::Magazines::most_unclaimed + 2> blocks;
  for (auto& block : blocks) block.memory.bytes = 4 * MiB;
  for (auto& block : std::span{blocks}.first(detail::Magazines::most_unclaimed)) ASSERT_TRUE(depots.put_large(block));
  auto& last = blocks.back();
  EXPECT_FALSE(depots.put_large(last));
  depots.take_all([](detail::Block&) {});
  EXPECT_FALSE(depots.put_large(last)) << "bringing them back is no use of them";
  EXPECT_EQ(depots.take_large(5 * MiB, 0), nullptr);
  EXPECT_FALSE(depots.put_large(last));
  EXPECT_EQ(depots.take_large(4 * MiB, 0), nullptr);
  EXPECT_TRUE(depots.put_large(last)) << "it would have been taken";
  EXPECT_EQ(depots.take_large(4 * MiB, 0), &last);
  EXPECT_EQ(depots.bytes(), 0U);
  depots.validate();
}

TEST(Depots, TakeMoreLargeBlocksTakenLate) {
  constexpr std::size_t first = detail::Magazines::most_unclaimed;
  detail::Depots depots{true};
  std::vector<detail::Block> blocks(detail::Depots::large_slots + 1);
  for (auto& block : blocks) block.memory.bytes = 256 * MiB;
  auto const put_in_a_row = [&] {
    auto const refused = std::ranges::find_if_not(blocks, [&](auto& block) { return depots.put_large(block); });
    return static_cast<std::size_t>(refused - blocks.begin());
  };
  auto const take_all = [&] {
    while (depots.take_large(256 * MiB, 0) != nullptr) {
    }
  };
  EXPECT_EQ(put_in_a_row(), first);
  for (auto most = 2 * first; most <= detail::Depots::large_slots; most *= 2) {
    take_all();
    EXPECT_EQ(put_in_a_row(), most) << "whatever their size, and the one refused would have been taken";
  }
  take_all();
  EXPECT_EQ(put_in_a_row(), detail::Depots::large_slots);
  depots.validate();
  depots.take_all([](detail::Block&) {});
  EXPECT_EQ(put_in_a_row(), 0U) << "wanted elsewhere, and taken by nobody since";
}

/// Blocks of one size, made by one thread and released by another.
class PoolThreadCacheThreadsOfSize : public ::testing::TestWithParam<std::size_t> {};

TEST_P(PoolThreadCacheThreadsOfSize, BlocksThatOneReleasesAnotherAcquires) {
  auto const bytes = GetParam();
  ScriptedDevice device{64 * GiB};
  MemoryPool pool{device, Location::device};
  constexpr std::size_t fewer = detail::under_address_sanitizer ? 40 : 1;  // each is poisoned as a whole
  std::size_t const blocks = bytes > MiB ? 20'000 / fewer : 200'000;
  std::array<std::atomic<Allocation*>, 64> belt{};
  std::jthread consumer{[&] {
    for (std::size_t i = 0; i < blocks; ++i) {
      auto& place = belt[i % belt.size()];
      Allocation* block = nullptr;
      while ((block = place.exchange(nullptr)) == nullptr) std::this_thread::yield();
      delete block;
    }
  }};
  for (std::size_t i = 0; i < blocks; ++i) {
    auto& place = belt[i % belt.size()];
    while (place.load() != nullptr) std::this_thread::yield();
    place = new Allocation{pool.acquire(bytes)};
  }
  consumer.join();
  auto const counts = pool.statistics();
  EXPECT_EQ(counts.total_allocations, std::uint64_t{blocks});
  EXPECT_LE(counts.peak_active_bytes, (belt.size() + 2) * bytes) << "what is parked is in nobody's use";
  EXPECT_EQ(counts.active_allocations, 0U);
  EXPECT_LT(device.driver_calls(), 500U) << "they come back";
  pool.validate();
}

INSTANTIATE_TEST_SUITE_P(Sizes, PoolThreadCacheThreadsOfSize, ::testing::Values(4 * KiB, 1 * MiB, 16 * MiB, 256 * MiB));

TEST(PoolThreadCacheThreads, StatisticsAreTrueAtEveryMoment) {
  ScriptedDevice device{1 * GiB};
  MemoryPool pool{device, Location::device};
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> acquired{0};
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        std::uint64_t mine = 0;
        std::vector<Allocation> held;
        for (std::size_t i = t; !stop; ++i) {
          held.push_back(pool.acquire((i * 7919) % (300 * KiB) + 1));
          ++mine;
          if (held.size() > 20) held.erase(held.begin() + static_cast<std::ptrdiff_t>(i % held.size()));
        }
        acquired += mine;
      });
    }
    for (int i = 0; i < 300; ++i) {
      auto const counts = pool.statistics();
      ASSERT_EQ(counts.pool_hits + counts.pool_misses, counts.total_allocations);
      ASSERT_EQ(counts.active_bytes + counts.total_pooled_bytes, counts.reserved_bytes);
      ASSERT_GE(counts.peak_active_bytes, counts.active_bytes);
      ASSERT_GE(counts.peak_reserved_bytes, counts.peak_active_bytes);
      pool.validate();
      if (i % 50 == 0) pool.trim();
    }
    stop = true;
  }
  EXPECT_EQ(pool.statistics().total_allocations, acquired.load());
  EXPECT_EQ(pool.statistics().active_allocations, 0U);
  EXPECT_EQ(pool.statistics().reserved_bytes, device.live_bytes());
  pool.validate();
}

TEST(PoolThreadCacheThreads, AFittingBlockIsNeverReportedAsMissing) {
  // Two blocks of room and two threads that hold one at most: nobody may ever be refused, wherever the other is cached.
  ScriptedDevice device{1 * GiB};
  MemoryPool pool{device, Location::device, {.max_bytes = 2 * 64 * KiB}};
  std::barrier start{2};
  std::vector<std::jthread> threads;
  for (unsigned t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      for (int i = 0; i < 20'000; ++i) {
        ASSERT_NO_THROW(static_cast<void>(pool.acquire(i % 3 == 0 ? 64 * KiB : 40 * KiB)));
      }
    });
  }
  threads.clear();
  pool.validate();
}

}  // namespace
}  // namespace unimem
