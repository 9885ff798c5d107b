#include <unimem/core/error.hpp>
#include <unimem/device/detail/blocking_wait.hpp>
#include <unimem/device/timed_wait.hpp>

#include "device/task_queue.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <latch>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace unimem::detail {
namespace {

TEST(HostQueue, RunsTasksInOrderOneAtATime) {
  TaskQueue queue;
  std::vector<int> order;  // plain memory: the queue's own order makes it visible
  for (int i = 0; i < 1000; ++i) queue.submit([&order, i] { order.push_back(i); });
  queue.control().wait(1000);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(HostQueue, AWaiterRunsTheWorkItself) {
  // A hushed executor's worker takes nothing up, as one that has not woken up yet.
  auto& control = QueueControl::create();
  auto const executor = std::make_shared<HostExecutor>(control);
  control.set_waiter(executor);
  executor->shut_down();
  std::vector<std::pair<int, std::thread::id>> runs;
  std::vector<Event> events;
  for (int i = 0; i < 5; ++i) {
    events.push_back(executor->submit([&runs, i] { runs.emplace_back(i, std::this_thread::get_id()); }));
  }
  EXPECT_FALSE(events[0].ready());
  auto const here = std::this_thread::get_id();
  events[2].wait();
  EXPECT_THAT(runs, ::testing::ElementsAre(std::pair{0, here}, std::pair{1, here}, std::pair{2, here}));
  EXPECT_FALSE(events[3].ready()) << "it runs no further than it must";

  std::thread other{[&] { events[4].wait(); }};
  auto const there = other.get_id();
  other.join();
  EXPECT_EQ(runs.back(), (std::pair{4, there}));
  executor->close();
  control.set_waiter(nullptr);
}

TEST(HostQueue, ATimedWaitEndsInTime) {
  using Clock = std::chrono::steady_clock;
  TaskQueue queue;
  std::latch begun{1}, go{1};
  auto const event = queue.submit([&] {
    begun.count_down();
    go.wait();
    throw std::runtime_error("on purpose");
  });
  begun.wait();  // the worker has it
  auto const until = Clock::now() + std::chrono::milliseconds{20};
  EXPECT_FALSE(wait_until(event, until));
  EXPECT_GE(Clock::now(), until);
  EXPECT_FALSE(wait_until(event, Clock::time_point::min()));
  go.count_down();
  EXPECT_TRUE(wait_until(event, Clock::time_point::max()));
  EXPECT_TRUE(wait_until(event, Clock::time_point::min()));
  EXPECT_THROW(event.wait(), std::runtime_error) << "the error is for who waits for the work";
  EXPECT_TRUE(wait_until(Event{}, Clock::time_point::min()));
}

TEST(HostQueue, ATimedWaitCarriesOutNoWork) {
  TaskQueue queue;
  for (int i = 0; i < 100; ++i) {
    std::latch go{1};
    std::thread::id ran;
    // The worker may not have it yet: a waiter that took it would wait for itself.
    auto const event = queue.submit([&] {
      ran = std::this_thread::get_id();
      go.wait();
    });
    auto const until = std::chrono::steady_clock::now() + std::chrono::microseconds{100};
    EXPECT_FALSE(wait_until(event, until));
    go.count_down();
    EXPECT_TRUE(wait_until(event, until + std::chrono::minutes{1}));
    EXPECT_NE(ran, std::this_thread::get_id());
  }
}

TEST(HostQueue, ATimedWaiterRunsTheWorkItself) {
  auto& control = QueueControl::create();
  auto const executor = std::make_shared<HostExecutor>(control);
  control.set_waiter(executor);
  executor->shut_down();
  std::thread::id ran;
  auto const event = executor->submit([&ran] { ran = std::this_thread::get_id(); });
  EXPECT_TRUE(wait_until(event, std::chrono::steady_clock::time_point::max()));
  EXPECT_EQ(ran, std::this_thread::get_id());
  executor->close();
  control.set_waiter(nullptr);
}

std::string error_of(Event event) {
  try {
    event.wait();
  } catch (UnsupportedOperation const& error) {
    return error.what();
  }
  return "none";
}

/// Whether a wait for the event is refused at once, also one with a limit.
bool waits_for_itself(Event event) {
  return BlockingWait{event, {.limit = BlockingWait::Clock::now()}}.is_deadlocked();
}

TEST(HostQueue, WorkKnowsThatItWouldWaitForItself) {
  TaskQueue queue, other;
  std::promise<Event> own, behind;
  std::vector<bool> seen;
  auto const earlier = queue.submit([] {});
  auto const event = queue.submit([&] {
    auto const itself = own.get_future().get();
    auto const later = behind.get_future().get();
    auto const elsewhere = other.submit([&] { seen.push_back(waits_for_itself(itself)); });
    elsewhere.wait();  // carried out here or by the other queue's worker
    seen.clear();
    for (auto const one : {itself, later, earlier, elsewhere, Event{}}) seen.push_back(waits_for_itself(one));
  });
  own.set_value(event);
  behind.set_value(queue.submit([] {}));
  EXPECT_FALSE(waits_for_itself(event)) << "this thread is in the middle of nothing";
  event.wait();
  EXPECT_THAT(seen, ::testing::ElementsAre(true, true, false, false, false));
}

TEST(HostQueue, OneOfTwoMutualWaitsIsRefused) {
  constexpr std::size_t count = 3;
  std::array<TaskQueue, count> queues;
  std::array<Event, count> events;
  std::latch submitted{1}, all_run{count};
  std::atomic<int> told{0};
  for (std::size_t i = 0; i < count; ++i) {
    events[i] = queues[i].submit([&, i] {
      submitted.wait();
      all_run.arrive_and_wait();
      auto const next = events[(i + 1) % count];
      BlockingWait wait{next};
      if (!wait.run([&](auto until) { return wait_until(next, until); })) ++told;
    });
  }
  EXPECT_FALSE(BlockingWait{events[0]}.is_deadlocked()) << "this thread is in the middle of nothing";
  submitted.count_down();
  while (!all_run.try_wait()) std::this_thread::yield();  // each by its own worker
  for (auto const event : events) event.wait();
  EXPECT_EQ(told, 1);
}

/// In the same words as in Python (`test_waits.py`).
TEST(HostQueue, ARefusalSaysWhatTheWaitIsFor) {
  TaskQueue first, second;
  std::latch submitted{1}, both_run{2};
  Event one, other;
  auto const own = first.submit([&] {
    submitted.wait();
    one.wait();
  });
  one = own;
  submitted.count_down();
  EXPECT_EQ(error_of(own),
            "waiting for work is not supported on the queue that this kernel runs on: it comes after the "
            "kernel, or is the kernel itself, and would never end");
  std::latch known{1};
  auto const waits_for = [&](Event const& event) {
    return [&] {
      known.wait();
      both_run.arrive_and_wait();
      event.wait();
    };
  };
  one = first.submit(waits_for(other));
  other = second.submit(waits_for(one));
  known.count_down();
  while (!both_run.try_wait()) std::this_thread::yield();  // each by its own worker
  std::array const errors{error_of(one), error_of(other)};
  EXPECT_THAT(errors, ::testing::Each("waiting for work is not supported on another queue: it waits for this kernel in "
                                      "its turn, and would never end"));
}

TEST(HostQueue, ATimedWaitInACircleEnds) {
  TaskQueue first, second;
  std::latch known{1}, both_run{2};
  Event one, other;
  auto const waits_for = [&](Event const& event, WaitTerms terms, bool& ended) {
    return [&, terms] {
      known.wait();
      both_run.arrive_and_wait();
      ended = await_end(event, terms, [&](auto until) { return wait_until(event, until); });
    };
  };
  bool soon = true, at_last = false;
  one = first.submit(waits_for(other, {.limit = BlockingWait::Clock::now() + std::chrono::milliseconds{50}}, soon));
  other = second.submit(waits_for(one, {}, at_last));
  known.count_down();
  while (!both_run.try_wait()) std::this_thread::yield();  // each by its own worker
  one.wait();
  other.wait();
  EXPECT_FALSE(soon);
  EXPECT_TRUE(at_last);
}

TEST(HostQueue, WaitsWithoutACircleAreNotRefused) {
  TaskQueue first, second;
  std::latch begun{1}, go{1};
  auto const ends = first.submit([&] {
    begun.count_down();
    go.wait();
  });
  std::vector<bool> seen;
  begun.wait();
  auto const waits = second.submit([&] {
    BlockingWait known{ends};
    seen.push_back(known.is_deadlocked());
    go.count_down();
    ends.wait();
    seen.push_back(known.is_deadlocked());
  });
  waits.wait();
  EXPECT_THAT(seen, ::testing::ElementsAre(false, false));
}

TEST(HostQueue, AWaiterRunsNoFurtherThanItMust) {
  TaskQueue queue;
  std::latch begun{1}, go{1};
  std::atomic<bool> later_ran{false};
  auto const first = queue.submit([&] { begun.count_down(); });
  auto const second = queue.submit([&] { go.wait(); });
  auto const third = queue.submit([&] { later_ran = true; });
  first.wait();  // would hang if it went on to the second
  EXPECT_FALSE(later_ran);
  go.count_down();
  third.wait();
  EXPECT_TRUE(later_ran);
  EXPECT_TRUE(second.ready());
}

TEST(HostQueue, AbandonedWorkIsTakenUp) {
  TaskQueue queue;
  for (int round = 0; round < 300; ++round) {
    Event second;
    // Submitted while a waiter is executing, so the worker is told only when that waiter leaves.
    queue.submit([&] { second = queue.submit([] {}); }).wait();
    while (!second.ready()) std::this_thread::yield();  // the test's time-out is the assertion
  }
  EXPECT_EQ(queue.control().completed(), 600U);
}

TEST(HostQueue, ATasksDataGoesBeforeItsEventEnds) {
  TaskQueue queue;
  auto& control = queue.control();
  std::vector<Ticket> completed_when_dropped;
  for (int i = 0; i < 10; ++i) {
    std::shared_ptr<void> held{nullptr, [&](void*) { completed_when_dropped.push_back(control.completed()); }};
    queue.submit([held = std::move(held)] {});
  }
  control.wait(10);
  EXPECT_THAT(completed_when_dropped, ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST(HostQueue, AShutDownWorkerBeginsNothing) {
  auto& control = QueueControl::create();
  auto const executor = std::make_shared<HostExecutor>(control);
  control.set_waiter(executor);
  std::latch begun{1}, go{1};
  std::atomic<int> runs{0};
  executor->submit([&] {
    begun.count_down();
    go.wait();
    ++runs;
  });
  for (int i = 0; i < 100; ++i) executor->submit([&] { ++runs; });
  begun.wait();
  executor->shut_down();
  go.count_down();
  executor->await_quiet(std::chrono::steady_clock::now() + std::chrono::seconds{30});
  EXPECT_EQ(runs, 1);
  executor->close();  // which waits for the rest, and so does it
  EXPECT_EQ(runs, 101);
  control.set_waiter(nullptr);
}

TEST(HostQueue, WhatATaskThrowsBelongsToItsTicket) {
  TaskQueue queue;
  auto const bad = queue.submit([] { throw std::runtime_error("bad"); });
  auto const worse = queue.submit([] { throw 42; });
  auto const good = queue.submit([] {});
  EXPECT_EQ(good.wait_for_error(), nullptr);
  EXPECT_THROW(bad.wait(), std::runtime_error);
  EXPECT_THROW(worse.wait(), int);
}

TEST(HostQueue, AFailureStaysWithItsTicket) {
  TaskQueue first, second;
  auto const bad = first.submit([] { throw std::runtime_error("bad"); });
  second.wait(bad);
  auto const wait_ticket = second.control().submitted();
  auto const good = second.submit([] {});
  EXPECT_EQ(good.wait_for_error(), nullptr);
  EXPECT_EQ(second.control().error(wait_ticket), nullptr);
  EXPECT_EQ(second.control().take_error(), nullptr);
}

TEST(QueueControl, AFailureIsInheritedAlongAnyChain) {
  TaskQueue first, second;
  std::promise<void> go;
  auto const gate = go.get_future().share();
  auto const bad = first.submit([gate] {
    gate.wait();
    throw std::runtime_error("bad");
  });
  // To and fro between two queues, each link needing the one before, and nobody asks until the end.
  auto last = bad;
  for (int link = 0; link < 20'000; ++link) {
    auto& queue = link / 3 % 2 == 0 ? second : first;  // some stay in their queue
    auto const before = last;
    queue.wait(before);
    last = queue.submit([] {});
    queue.control().inherit(last.ticket(), {&before, 1});
  }
  auto const good = first.submit([] {});
  go.set_value();
  EXPECT_THROW(last.wait(), std::runtime_error);
  EXPECT_EQ(good.wait_for_error(), nullptr);
}

TEST(HostQueue, AWaitingTaskDoesTheOthersWork) {
  // The second queue's wait can end only if somebody runs the first queue's task: its own worker, or the thread that
  // waits.
  for (int round = 0; round < 100; ++round) {
    TaskQueue first, second;
    int value = 0;
    auto const set = first.submit([&] { value = 1; });
    second.wait(set);
    second.submit([&] { value *= 2; }).wait();
    ASSERT_EQ(value, 2);
  }
}

TEST(HostQueue, DestructionRunsWhatIsLeft) {
  for (int round = 0; round < 100; ++round) {
    int runs = 0;
    std::vector<Event> events;
    {
      TaskQueue queue;
      for (int i = 0; i < 20; ++i) events.push_back(queue.submit([&] { ++runs; }));
    }
    ASSERT_EQ(runs, 20);
    for (auto const& event : events) ASSERT_TRUE(event.ready());
  }
}

TEST(HostQueue, WaitersSurviveTheQueuesEnd) {
  for (int round = 0; round < 100; ++round) {
    std::optional<TaskQueue> queue{std::in_place};
    std::vector<std::thread> waiters;
    std::atomic<int> runs{0};
    for (int i = 0; i < 4; ++i) {
      auto const event = queue->submit([&] { ++runs; });
      waiters.emplace_back([event] { event.wait(); });
    }
    queue.reset();
    EXPECT_EQ(runs, 4);
    for (auto& waiter : waiters) waiter.join();
  }
}

/// Threads that submit to, wait for and let queues wait for each other at random; nobody may be forgotten.
class HostQueueStress : public ::testing::TestWithParam<unsigned> {};

TEST_P(HostQueueStress, NothingIsLostOrReordered) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  constexpr std::size_t queues = 3, threads = 4, steps = 400;
  struct Watched {
    TaskQueue queue;
    std::size_t runs = 0;           // written by tasks alone
    std::atomic<bool> busy{false};  // to catch two tasks at once
  };
  std::vector<Watched> watched(queues);
  std::atomic<std::size_t> overlaps{0}, unfinished{0}, submitted{0};
  std::vector<std::thread> crowd;
  for (unsigned t = 0; t < threads; ++t) {
    crowd.emplace_back([&, t] {
      std::minstd_rand random{GetParam() * 31 + t + 1};
      std::vector<Event> mine(1);
      for (std::size_t step = 0; step < steps; ++step) {
        auto& target = watched[random() % queues];
        switch (random() % 4) {
          case 0:
          case 1:
            mine.push_back(target.queue.submit([&] {
              overlaps += target.busy.exchange(true);
              ++target.runs;
              target.busy = false;
            }));
            ++submitted;
            break;
          case 2: {
            auto const event = mine[random() % mine.size()];
            if (event.queue_id() != target.queue.control().id()) target.queue.wait(event);
            break;
          }
          default: {
            auto const event = mine[random() % mine.size()];
            event.wait();
            unfinished += !event.ready();
          }
        }
      }
    });
  }
  for (auto& thread : crowd) thread.join();
  std::size_t runs = 0;
  for (auto& one : watched) {
    // Nobody waits, so nobody helps: a hand-over to the worker that was lost shows as a time-out.
    auto const& control = one.queue.control();
    while (control.completed() < control.submitted()) std::this_thread::yield();
    runs += one.runs;
  }
  EXPECT_EQ(runs, submitted);
  EXPECT_EQ(overlaps, 0U);
  EXPECT_EQ(unfinished, 0U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, HostQueueStress, ::testing::Range(1U, 13U));

}  // namespace
}  // namespace unimem::detail
