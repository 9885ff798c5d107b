#include <unimem/pool/memory_pool.hpp>

#include "core/sizes.hpp"
#include "pool/scripted_device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <tuple>

namespace unimem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Two queues whose work ends when the test says. The pool goes first, then the queues, then the device.
class PoolTickets : public ::testing::Test {
 protected:
  void TearDown() override { pool.validate(); }

  ScriptedDevice device{64 * MiB};
  std::pair<Queue, Script*> a_ = device.scripted_queue(), b_ = device.scripted_queue();
  Queue &a = a_.first, &b = b_.first;
  Script &work_a = *a_.second, &work_b = *b_.second;
  MemoryPool pool{device, Location::device};
};

TEST_F(PoolTickets, TheSameQueueReusesAPendingBlock) {
  auto block = pool.acquire(MiB, {.queue = &a});
  auto const first = block.memory();
  auto const last_use = work_a.work();
  block.release(last_use);

  auto const again = pool.acquire(MiB, {.queue = &a});
  EXPECT_EQ(again.memory(), first);
  EXPECT_FALSE(last_use.ready());
  EXPECT_THAT(work_a.ordered_behind, IsEmpty());
  EXPECT_EQ(work_a.host_waits, 0);
  EXPECT_EQ(pool.statistics().pool_hits, 1U);
}

TEST_F(PoolTickets, AnotherQueueIsOrderedBehindThePendingWork) {
  auto block = pool.acquire(MiB, {.queue = &a});
  auto const first = block.memory();
  auto const last_use = work_a.work();
  block.release(last_use);

  auto const again = pool.acquire(MiB, {.queue = &b});
  EXPECT_EQ(again.memory(), first);
  EXPECT_THAT(work_b.ordered_behind, ElementsAre(last_use));
  EXPECT_EQ(work_a.host_waits, 0) << "no thread may block for it";
}

TEST_F(PoolTickets, TheHostWaitsForABlocksWork) {
  auto block = pool.acquire(MiB, {.queue = &a});
  auto const first = block.memory();
  auto const last_use = work_a.work();
  block.release(last_use);

  auto const again = pool.acquire(MiB);
  EXPECT_EQ(again.memory(), first);
  EXPECT_TRUE(last_use.ready());
  EXPECT_EQ(work_a.host_waits, 1);
}

TEST_F(PoolTickets, DoneBlocksAreTakenBeforePendingOnes) {
  auto pending = pool.acquire(MiB), done = pool.acquire(MiB);
  auto const done_memory = done.memory();
  pending.release(work_a.work());
  done.release();

  auto const again = pool.acquire(MiB);
  EXPECT_EQ(again.memory(), done_memory);
  EXPECT_EQ(work_a.host_waits, 0);
}

TEST_F(PoolTickets, DoneBlocksAreTakenBeforeBetterFits) {
  auto pending = pool.acquire(MiB), done = pool.acquire(MiB + MiB / 16);
  auto const done_memory = done.memory();
  pending.release(work_a.work());
  done.release();
  EXPECT_EQ(pool.acquire(MiB).memory(), (DeviceMemory{done_memory.object, 0, MiB}));
}

TEST_F(PoolTickets, WithoutWaitingOnlyReadyBlocksAreTaken) {
  auto block = pool.acquire(MiB, {.queue = &a});
  auto const first = block.memory();
  block.release(work_a.work());

  auto fresh = pool.acquire(MiB, {.queue = &b, .may_wait = false});
  EXPECT_NE(fresh.memory(), first) << "that one is in use by another queue";
  auto own = pool.acquire(MiB, {.queue = &a, .may_wait = false});
  EXPECT_EQ(own.memory(), first) << "its own work is no reason to wait";
  own.release(work_a.work());
  pool.set_max_bytes(2 * MiB);
  EXPECT_THROW(std::ignore = pool.acquire(MiB, {.queue = &b, .may_wait = false}), OutOfMemory);
  EXPECT_THAT(work_b.ordered_behind, IsEmpty());
  EXPECT_EQ(work_a.host_waits, 0);
  EXPECT_EQ(pool.acquire(MiB, {.queue = &b}).memory(), first) << "who may, waits";
}

/// One that holds what the work may be waiting for.
TEST_F(PoolTickets, NoBlockIsGivenWhereThatWouldWait) {
  auto block = pool.acquire(MiB, {.queue = &a});
  auto const first = block.memory();
  block.release(work_a.work());
  auto const before = pool.statistics();

  EXPECT_EQ(pool.acquire_without_waiting(MiB), std::nullopt) << "the host would have the pending one";
  pool.set_max_bytes(2 * MiB);
  EXPECT_EQ(pool.acquire_without_waiting(2 * MiB, {.queue = &b}), std::nullopt) << "it would be in the way";
  EXPECT_THROW(std::ignore = pool.acquire_without_waiting(3 * MiB), OutOfMemory) << "nothing to wait for";
  auto const after = pool.statistics();
  EXPECT_EQ(after.total_allocations, before.total_allocations);
  EXPECT_EQ(after.failed_allocations, before.failed_allocations + 1);
  EXPECT_EQ(after.waits, before.waits);
  EXPECT_EQ(after.reserved_bytes, before.reserved_bytes);
  EXPECT_EQ(work_a.host_waits, 0);

  auto ordered = pool.acquire_without_waiting(MiB, {.queue = &b});
  ASSERT_TRUE(ordered.has_value());
  EXPECT_EQ(ordered->memory(), first) << "the queue waits, and no thread";
  EXPECT_EQ(work_a.host_waits + work_b.host_waits, 0);
  ordered->release();
  work_a.finish_all();
  work_b.finish_all();
  auto const fits = pool.acquire_without_waiting(2 * MiB);
  ASSERT_TRUE(fits.has_value());
  EXPECT_EQ(fits->size(), 2 * MiB);
  EXPECT_TRUE(pool.acquire_without_waiting(0)->empty());
}

TEST_F(PoolTickets, LiveMemoryIsRefusedWithoutWaiting) {
  pool.set_max_bytes(2 * MiB);
  auto const live = pool.acquire(MiB);
  pool.acquire(MiB, {.queue = &a}).release(work_a.work());
  EXPECT_THROW(std::ignore = pool.acquire_without_waiting(MiB + MiB / 2), OutOfMemory);
  EXPECT_EQ(pool.acquire_without_waiting(MiB / 2), std::nullopt);
  EXPECT_EQ(work_a.host_waits, 0);
}

TEST_F(PoolTickets, ReturnsBehindWorkAreNotWaitedFor) {
  std::atomic<bool> on_its_way{false}, returning{false}, goes_on{false};
  pool.set_max_bytes(8 * MiB);
  pool.acquire(6 * MiB).release(work_a.work());
  device.on_release = [&](DeviceMemory) {
    on_its_way = true;
    returning = true;
    returning.notify_all();
    goes_on.wait(false);
  };
  std::jthread giving{[&] {
    pool.trim();
    returning = true;
    returning.notify_all();
  }};
  returning.wait(false);
  EXPECT_TRUE(on_its_way) << "what another thread has cached is given back too";
  EXPECT_EQ(pool.acquire_without_waiting(4 * MiB), std::nullopt);
  EXPECT_THROW(std::ignore = pool.acquire(4 * MiB, {.may_wait = false}), OutOfMemory);
  goes_on = true;
  goes_on.notify_all();
  EXPECT_EQ(pool.acquire(4 * MiB).size(), 4 * MiB);
  giving.join();
  device.on_release = nullptr;
}

TEST_F(PoolTickets, AtHandMeansReadyOrNothing) {
  EXPECT_TRUE(pool.acquire_cached(MiB).empty()) << "nothing is cached, and nothing is taken from the device";
  EXPECT_TRUE(pool.acquire_cached(0).empty());
  auto block = pool.acquire(MiB, {.queue = &a});
  auto const first = block.memory();
  auto const last_use = work_a.work();
  block.release(last_use);
  EXPECT_TRUE(pool.acquire_cached(MiB).empty()) << "its work is pending";
  work_a.finish(last_use);
  EXPECT_TRUE(pool.acquire_cached(2 * MiB).empty());
  auto const before = pool.statistics();
  auto const again = pool.acquire_cached(MiB, Name("at hand"));
  EXPECT_EQ(again.memory(), first);
  EXPECT_EQ(work_a.host_waits, 0);
  auto const after = pool.statistics();
  EXPECT_EQ(after.pool_hits, before.pool_hits + 1);
  EXPECT_EQ(after.failed_allocations, 0U) << "to find nothing is no failure";
  EXPECT_EQ(after.reserved_bytes, before.reserved_bytes);
  EXPECT_EQ(pool.holders(1).front().name, "at hand");
  pool.validate();
}

TEST_F(PoolTickets, WorkThatFailedIsWorkThatEnded) {
  auto block = pool.acquire(MiB, {.queue = &a});
  auto const first = block.memory();
  auto const last_use = work_a.work();
  block.release(last_use);
  work_a.fail(last_use);

  auto const again = pool.acquire(MiB);
  EXPECT_EQ(again.memory(), first);
  EXPECT_EQ(work_a.host_waits, 0);
}

TEST_F(PoolTickets, AnIdleOwnerKeepsEarlierWork) {
  auto block = pool.acquire(MiB, {.queue = &a});
  auto const last_use = work_a.work();
  block.release(last_use);
  block = pool.acquire(MiB, {.queue = &a});
  block.release();  // nothing of this owner's is pending; the one before's still is

  auto const for_the_host = pool.acquire(MiB);
  EXPECT_TRUE(last_use.ready());
}

TEST_F(PoolTickets, NorDoesAnOwnerOnAnotherQueue) {
  auto block = pool.acquire(MiB, {.queue = &a});
  auto const last_use = work_a.work();
  block.release(last_use);
  block = pool.acquire(MiB, {.queue = &b});
  block.release();

  auto const for_the_host = pool.acquire(MiB);
  EXPECT_TRUE(last_use.ready()) << "b is ordered behind it, so it is enough to have waited for b";
}

TEST_F(PoolTickets, WorkOfTwoQueuesStaysPending) {
  auto block = pool.acquire(MiB, {.queue = &a});
  auto const on_a = work_a.work();
  block.release(on_a);
  block = pool.acquire(MiB, {.queue = &a});
  auto const on_b = work_b.work();  // of the owner's own accord, not ordered behind a's
  block.release(on_b);

  auto const for_the_host = pool.acquire(MiB);
  EXPECT_TRUE(on_a.ready());
  EXPECT_TRUE(on_b.ready());
}

TEST_F(PoolTickets, AFailedOrderLeavesTheBlockCached) {
  auto block = pool.acquire(MiB, {.queue = &a});
  auto const last_use = work_a.work();
  block.release(last_use);
  auto const before = pool.statistics();

  work_b.on_wait = [] { throw DeviceError("scripted", "wait", -2, "SCRIPTED_REFUSAL"); };
  EXPECT_THROW((void)pool.acquire(MiB, {.queue = &b}), DeviceError);
  pool.validate();
  auto const after = pool.statistics();
  EXPECT_EQ(after.total_allocations, before.total_allocations);
  EXPECT_EQ(after.pool_hits, before.pool_hits);
  EXPECT_EQ(after.active_bytes, 0U);
  EXPECT_EQ(after.total_pooled_bytes, before.total_pooled_bytes);
  EXPECT_EQ(after.failed_allocations, before.failed_allocations + 1);

  auto const for_the_host = pool.acquire(MiB);
  EXPECT_TRUE(last_use.ready()) << "the work is still remembered";
}

TEST_F(PoolTickets, PendingBlocksDoNotGoToTheDriver) {
  Event last_use;
  device.on_release = [&](DeviceMemory) { EXPECT_TRUE(last_use.ready()); };
  auto block = pool.acquire(MiB, {.queue = &a});
  last_use = work_a.work();
  block.release(last_use);
  EXPECT_EQ(pool.trim(), MiB);
  EXPECT_EQ(work_a.host_waits, 1);
  EXPECT_EQ(device.live_bytes(), 0U);
}

TEST_F(PoolTickets, DestroyingThePoolWaitsForPendingWork) {
  Event last_use;
  device.on_release = [&](DeviceMemory) { EXPECT_TRUE(last_use.ready()); };
  {
    MemoryPool short_lived{device, Location::device};
    auto block = short_lived.acquire(MiB, {.queue = &a});
    last_use = work_a.work();
    block.release(last_use);
  }
  EXPECT_TRUE(last_use.ready());
  EXPECT_EQ(device.live_bytes(), 0U);
}

TEST_F(PoolTickets, ReleasingOverTheThresholdDoesNotBlock) {
  MemoryPool small{device, Location::device, {.release_threshold = MiB}};
  auto first = small.acquire(MiB), second = small.acquire(MiB);
  first.release(work_a.work());
  second.release(work_a.work());
  EXPECT_EQ(work_a.host_waits, 0);
  EXPECT_EQ(small.statistics().total_pooled_bytes, 2 * MiB);

  work_a.finish_all();
  auto third = small.acquire(16 * MiB);
  third.release();
  EXPECT_LE(small.statistics().total_pooled_bytes, MiB) << "a later release makes up for it";
}

}  // namespace
}  // namespace unimem
