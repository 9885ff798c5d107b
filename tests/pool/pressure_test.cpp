#include <unimem/device/sim.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "core/sizes.hpp"
#include "pool/scripted_device.hpp"
#include "pool/watched_pages.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <new>
#include <optional>
#include <thread>
#include <vector>

namespace unimem {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

/// What acquire threw, if it was OutOfMemory.
std::optional<OutOfMemory> refusal(MemoryPool& pool, std::size_t bytes, AcquireOptions const& options = {}) {
  try {
    auto const block = pool.acquire(bytes, options);
    return std::nullopt;
  } catch (OutOfMemory const& error) {
    return error;
  }
}

TEST(PoolPressure, TheLimitIsReachedExactly) {
  ScriptedDevice device{64 * MiB};
  MemoryPool pool{device, Location::device, {.max_bytes = 8 * MiB}};
  auto const five = pool.acquire(5 * MiB);
  auto const three = pool.acquire(3 * MiB);
  EXPECT_EQ(pool.statistics().reserved_bytes, 8 * MiB);
  EXPECT_TRUE(refusal(pool, 1));
  EXPECT_EQ(device.peak_bytes(), 8 * MiB);
  pool.validate();
}

TEST(PoolPressure, ALimitBetweenClassesIsUsedEntirely) {
  ScriptedDevice device{64 * MiB};
  MemoryPool pool{device, Location::device, {.max_bytes = 70'001}};
  auto block = pool.acquire(70'001);
  EXPECT_EQ(block.capacity(), 70'001U);
  block.release();
  EXPECT_TRUE(refusal(pool, 70'002));
  EXPECT_FALSE(refusal(pool, 1));
}

TEST(PoolPressure, ADeviceIsUsedToItsLastByte) {
  ScriptedDevice device{70'001};
  MemoryPool pool{device, Location::device};
  EXPECT_EQ(pool.acquire(70'001).capacity(), 70'001U);
}

TEST(PoolPressure, ARefusedRoundedSizeIsTriedExactly) {
  ScriptedDevice device{MiB};
  MemoryPool pool{device, Location::device};
  device.on_allocate = [](std::size_t bytes) {
    if (bytes > 70'001) throw std::bad_alloc{};
  };
  EXPECT_EQ(pool.acquire(70'001).capacity(), 70'001U);
}

TEST(PoolPressure, CachedBlocksMakeRoomOldestFirst) {
  ScriptedDevice device{64 * MiB};
  MemoryPool pool{device, Location::device, {.max_bytes = 10 * MiB}};
  auto first = pool.acquire(2 * MiB), second = pool.acquire(3 * MiB), third = pool.acquire(4 * MiB);
  auto const oldest = second.memory(), next = third.memory(), youngest = first.memory();
  second.release();
  third.release();
  first.release();
  auto const before = pool.statistics();
  EXPECT_EQ(before.seizures + before.trims + before.waits, 0U) << "there was nothing in the way";

  auto const block = pool.acquire(5 * MiB);  // 1 MiB is left, 4 more are needed: 3 + 4
  auto const after = pool.statistics();
  EXPECT_EQ(after.seizures, 1U);
  EXPECT_EQ(after.trims, 1U);
  EXPECT_EQ(after.waits, 0U);
  EXPECT_FALSE(device.holds(oldest));
  EXPECT_FALSE(device.holds(next));
  EXPECT_TRUE(device.holds(youngest));
  EXPECT_EQ(pool.statistics().total_pooled_bytes, 2 * MiB);
  pool.validate();
}

TEST(PoolPressure, DoneBlocksGoBeforePendingOnes) {
  ScriptedDevice device{64 * MiB};
  auto [queue, script] = device.scripted_queue();
  MemoryPool pool{device, Location::device, {.max_bytes = 8 * MiB}};
  auto first = pool.acquire(4 * MiB), second = pool.acquire(4 * MiB);
  auto const older = first.memory(), younger = second.memory();
  first.release(script->work());
  second.release();

  auto const block = pool.acquire(2 * MiB);
  EXPECT_TRUE(device.holds(older));
  EXPECT_FALSE(device.holds(younger));
  EXPECT_EQ(script->host_waits, 0);
}

TEST(PoolPressure, PendingBlocksAreWaitedForBeforeGivingUp) {
  ScriptedDevice device{64 * MiB};
  auto [queue, script] = device.scripted_queue();
  MemoryPool pool{device, Location::device, {.max_bytes = 8 * MiB}};
  auto first = pool.acquire(4 * MiB), second = pool.acquire(4 * MiB);
  first.release(script->work());
  second.release(script->work());

  auto const block = pool.acquire(6 * MiB);
  EXPECT_EQ(script->host_waits, 2);
  auto const statistics = pool.statistics();
  EXPECT_EQ(statistics.reserved_bytes, 6 * MiB);
  EXPECT_EQ(statistics.trims, 1U);
  EXPECT_EQ(statistics.waits, 1U);
}

TEST(PoolPressure, ImpossibleRequestsGiveNothingBack) {
  ScriptedDevice device{64 * MiB};
  auto [queue, script] = device.scripted_queue();
  MemoryPool pool{device, Location::device, {.max_bytes = 8 * MiB}};
  auto const live = pool.acquire(4 * MiB);
  pool.acquire(MiB).release(script->work());
  pool.acquire(2 * MiB).release();
  EXPECT_TRUE(refusal(pool, 4 * MiB + 1));
  EXPECT_EQ(pool.statistics().total_pooled_bytes, 3 * MiB);
  EXPECT_EQ(script->host_waits, 0);
}

TEST(PoolPressure, AFullDriverGetsCachedBlocksBack) {
  ScriptedDevice device{8 * MiB};
  MemoryPool cache{device, Location::device}, other{device, Location::device};
  auto const outside = other.acquire(3 * MiB);  // what this pool cannot know of
  cache.acquire(2 * MiB).release();
  cache.acquire(3 * MiB).release();
  auto const block = cache.acquire(5 * MiB);
  EXPECT_EQ(cache.statistics().total_pooled_bytes, 0U);
  EXPECT_EQ(device.live_bytes(), 8 * MiB);
  cache.validate();
}

TEST(PoolPressure, ManySizesDoNotFillTheCache) {
  ScriptedDevice device{8192 * MiB};
  MemoryPool pool{device, Location::device};
  for (std::size_t bytes = 400 * MiB; bytes > MiB; bytes -= bytes / 6) pool.acquire(bytes).release();
  EXPECT_EQ(pool.statistics().pool_hits, 0U) << "each is too small for the blocks before it";
  EXPECT_LE(pool.statistics().peak_reserved_bytes, 400 * MiB * 6 / 5);
  EXPECT_GT(pool.statistics().total_pooled_bytes, 300 * MiB) << "and yet it keeps what the budget allows";
  pool.validate();
}

TEST(PoolPressure, LargeOldBlocksGoFirst) {
  std::vector<std::size_t> released;
  ScriptedDevice device{8192 * MiB};
  MemoryPool pool{device, Location::device};
  pool.acquire(1000 * MiB).release();
  pool.trim();
  device.on_release = [&](DeviceMemory memory) { released.push_back(memory.bytes); };
  pool.acquire(4 * MiB).release();  // the oldest
  {
    auto const first = pool.acquire(500 * MiB), second = pool.acquire(500 * MiB);
  }
  auto const larger = pool.acquire(600 * MiB);
  EXPECT_THAT(released, ElementsAre(500 * MiB)) << "one of them is enough";
  pool.acquire(4 * MiB).release();
  EXPECT_EQ(pool.statistics().total_pooled_bytes, 504 * MiB);
  auto [queue, script] = device.scripted_queue();
  pool.acquire(500 * MiB).release(script->work());
  auto const another = pool.acquire(300 * MiB);
  EXPECT_THAT(released, ElementsAre(500 * MiB, 4 * MiB)) << "but nothing whose work is pending";
  EXPECT_EQ(script->host_waits, 0);
  pool.validate();
}

TEST(PoolPressure, OutOfMemoryTellsEverythingKnown) {
  ScriptedDevice device{64 * MiB};
  MemoryPool pool{device, Location::device, {.max_bytes = 12 * MiB}};
  auto const small = pool.acquire(MiB, {.name = Name{"indices"}});
  auto const large = pool.acquire(4 * MiB, {.name = Name{"weights"}});
  auto const more = pool.acquire(2 * MiB, {.name = Name{"weights"}});
  pool.acquire(MiB).release();
  pool.acquire(3 * MiB).release();

  auto const error = refusal(pool, 6 * MiB);
  ASSERT_TRUE(error);
  auto const& facts = error->facts();
  EXPECT_EQ(facts.where, "scripted:0 device");
  EXPECT_EQ(facts.requested, 6 * MiB);
  EXPECT_EQ(facts.limit, 12 * MiB);
  EXPECT_EQ(facts.live, 7 * MiB);
  EXPECT_EQ(facts.cached, 4 * MiB);
  EXPECT_EQ(facts.leased, 0U);
  EXPECT_EQ(facts.largest_free, 3 * MiB);
  EXPECT_DOUBLE_EQ(facts.fragmentation, 0.25);
  EXPECT_EQ(facts.device_free, 53 * MiB);
  EXPECT_EQ(facts.reason, "limit reached");
  using Holder = OutOfMemory::Holder;
  EXPECT_THAT(
      facts.holders,
      ElementsAre(AllOf(Field(&Holder::name, "weights"), Field(&Holder::bytes, 6 * MiB), Field(&Holder::count, 2U)),
                  AllOf(Field(&Holder::name, "indices"), Field(&Holder::bytes, MiB), Field(&Holder::count, 1U))));
  EXPECT_THAT(error->what(), AllOf(HasSubstr("6 MiB requested"), HasSubstr("limit 12 MiB"), HasSubstr("7 MiB live"),
                                   HasSubstr("6 MiB in 2 allocations of weights")));
  EXPECT_EQ(pool.statistics().failed_allocations, 1U);
}

TEST(PoolPressure, TheDriversOwnWordsAreTheReason) {
  ScriptedDevice device{8 * MiB};
  MemoryPool pool{device, Location::device}, other{device, Location::device};
  auto const outside = other.acquire(5 * MiB);
  auto const error = refusal(pool, 4 * MiB);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->facts().reason, "the scripted driver is full");
  EXPECT_EQ(error->facts().device_free, 3 * MiB);
  EXPECT_EQ(error->facts().held_elsewhere, 5 * MiB);
}

TEST(PoolPressure, HugeSizesDoNotReachTheDriver) {
  ScriptedDevice device{8 * MiB, 6 * MiB};
  MemoryPool pool{device, Location::device};
  constexpr auto most = std::numeric_limits<std::size_t>::max();
  for (auto const bytes : {most, most - 1, most - 255, most / 2 + 1, 8 * MiB + 1, 6 * MiB + 1}) {
    auto const error = refusal(pool, bytes);
    ASSERT_TRUE(error) << bytes;
    EXPECT_EQ(error->requested(), bytes);
  }
  EXPECT_EQ(device.driver_calls(), 0U);
  EXPECT_EQ(refusal(pool, 8 * MiB + 1)->limit(), 8 * MiB);
  auto const in_one_piece = refusal(pool, 6 * MiB + 1);
  EXPECT_EQ(in_one_piece->limit(), 6 * MiB);
  EXPECT_THAT(in_one_piece->what(), HasSubstr("in one piece"));
  EXPECT_FALSE(refusal(pool, 6 * MiB));
}

TEST(PoolPressure, OtherFailuresKeepTheCache) {
  ScriptedDevice device{8 * MiB};
  MemoryPool pool{device, Location::device};
  pool.acquire(MiB).release();
  device.on_allocate = [](std::size_t) { throw DeviceError("scripted", "allocate", -5, "SCRIPTED_LOST"); };
  EXPECT_THROW((void)pool.acquire(2 * MiB), DeviceError);
  auto const statistics = pool.statistics();
  EXPECT_EQ(statistics.failed_allocations, 1U);
  EXPECT_EQ(statistics.total_pooled_bytes, MiB);
  EXPECT_EQ(statistics.total_allocations, 1U);
  pool.validate();
  EXPECT_FALSE(refusal(pool, MiB)) << "what is cached still serves";
}

TEST(PoolPressure, ALoweredLimitGivesCachedBlocksBack) {
  ScriptedDevice device{64 * MiB};
  auto [queue, script] = device.scripted_queue();
  MemoryPool pool{device, Location::device};
  auto const live = pool.acquire(4 * MiB);
  pool.acquire(3 * MiB).release(script->work());
  pool.acquire(2 * MiB).release();

  EXPECT_THROW(pool.set_max_bytes(4 * MiB - 1), InvalidArgument);
  EXPECT_EQ(pool.max_bytes(), std::numeric_limits<std::size_t>::max());
  EXPECT_EQ(pool.statistics().total_pooled_bytes, 5 * MiB);

  pool.set_max_bytes(6 * MiB);
  EXPECT_EQ(pool.max_bytes(), 6 * MiB);
  EXPECT_LE(device.live_bytes(), 6 * MiB);
  pool.set_max_bytes(4 * MiB);
  EXPECT_EQ(device.live_bytes(), 4 * MiB);
  EXPECT_TRUE(refusal(pool, 1));
  pool.set_max_bytes(5 * MiB);
  EXPECT_FALSE(refusal(pool, MiB));
  pool.validate();
}

TEST(PoolPressure, ALimitIsNotLoweredBelowKeptMemory) {
  WatchedPages pages{*make_sim({.memory_bytes = 64 * MiB}).pages()};
  ScriptedDevice device{64 * MiB};
  device.page_source = &pages;
  MemoryPool pool{device, Location::device, {.max_bytes = 32 * MiB, .backing = PoolBacking::pages}};
  auto const live = pool.acquire(2 * MiB);
  pool.acquire(8 * MiB).release();
  pages.on_unmap = [] { throw DeviceError("scripted", "unmap", -1, "SCRIPTED_FAILURE"); };
  EXPECT_THROW(pool.set_max_bytes(4 * MiB), InvalidArgument) << "nothing is said to hold that does not";
  EXPECT_EQ(pool.max_bytes(), 32 * MiB);
  EXPECT_EQ(pages.live_bytes(), 10 * MiB);
  pool.validate();
  pages.on_unmap = {};
  pool.set_max_bytes(4 * MiB);
  EXPECT_LE(pages.live_bytes(), 4 * MiB);
  EXPECT_TRUE(refusal(pool, 3 * MiB));
  pool.validate();
}

TEST(PoolPressure, NoLockIsHeldInADriverCall) {
  ScriptedDevice device{8 * MiB};
  MemoryPool pool{device, Location::device};
  std::size_t calls = 0;
  auto const look_in = [&] {
    ++calls;
    std::jthread{[&] { EXPECT_LE(pool.statistics().reserved_bytes, 8 * MiB); }};  // would hang if it were
  };
  device.on_allocate = [&](std::size_t) { look_in(); };
  device.on_release = [&](DeviceMemory) { look_in(); };
  pool.acquire(2 * MiB).release();
  pool.acquire(7 * MiB).release();
  pool.trim();
  EXPECT_EQ(calls, 4U);
}

TEST(PoolPressure, MemoryBeingReturnedIsNotMissing) {
  std::atomic<bool> started{false}, asks{false};
  ScriptedDevice device{8 * MiB};
  MemoryPool pool{device, Location::device};
  pool.acquire(8 * MiB).release();
  std::jthread asker;
  // While one thread is inside the driver with the only block, another finds neither room nor cache: it waits for the
  // outcome.
  device.on_release = [&](DeviceMemory) {
    if (started.exchange(true)) return;
    asker = std::jthread{[&] {
      asks = true;
      EXPECT_FALSE(refusal(pool, 5 * MiB));
    }};
    while (!asks) std::this_thread::yield();
    for (int turn = 0; turn < 1000; ++turn) std::this_thread::yield();  // time enough to be refused wrongly
  };
  EXPECT_EQ(pool.trim(), 8 * MiB);
  asker.join();
  EXPECT_EQ(pool.statistics().failed_allocations, 0U);
}

/// A small scenario that takes, returns, trims and fills up, in which one driver call fails.
class PoolFaults : public ::testing::TestWithParam<std::size_t> {};

TEST_P(PoolFaults, NoFailedAllocationLeaks) {
  ScriptedDevice device{32 * MiB};
  std::size_t calls = 0, failures = 0;
  device.on_allocate = [&](std::size_t) {
    if (++calls != GetParam()) return;
    ++failures;
    OutOfMemory::Facts facts;
    facts.reason = "planned";
    throw OutOfMemory(facts);
  };
  auto [queue, script] = device.scripted_queue();
  MemoryPool pool{device, Location::device, {.max_bytes = 16 * MiB}};
  std::vector<Allocation> held;
  std::size_t refused = 0;
  for (std::size_t const bytes :
       {300 * KiB, 3 * MiB, 5 * MiB, 70 * KiB, 2 * MiB, 9 * MiB, 4 * MiB, 40 * KiB, 6 * MiB}) {
    auto const before = pool.statistics();
    try {
      held.push_back(pool.acquire(bytes, {.queue = &queue}));
    } catch (OutOfMemory const& error) {
      ++refused;
      EXPECT_EQ(error.requested(), bytes);
      auto const after = pool.statistics();
      EXPECT_EQ(after.active_bytes, before.active_bytes);
      EXPECT_EQ(after.total_allocations, before.total_allocations);
      EXPECT_EQ(after.failed_allocations, before.failed_allocations + 1);
      held.clear();
    }
    pool.validate();
    ASSERT_EQ(device.live_bytes(), pool.statistics().reserved_bytes);
    if (held.size() == 3) {
      held[1].release(script->work());
      held.erase(held.begin() + 1);
    }
  }
  EXPECT_EQ(failures, calls >= GetParam() ? 1U : 0U);
  EXPECT_LE(refused, 3U);
  held.clear();
  pool.trim();
  EXPECT_EQ(device.live_bytes(), 0U);
}

INSTANTIATE_TEST_SUITE_P(EachCall, PoolFaults, ::testing::Range<std::size_t>(1, 16));

}  // namespace
}  // namespace unimem
