#pragma once

#include <unimem/device/timed_wait.hpp>

#include "device/conformance_fixture.hpp"
#include "device/gate.hpp"

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

namespace unimem {

TEST_P(DeviceConformance, AnEventOfNothingIsDone) {
  Event const nothing;
  EXPECT_TRUE(nothing.ready());
  EXPECT_EQ(nothing.wait_for_error(), nullptr);
  EXPECT_EQ(nothing.error(), nullptr);
  EXPECT_EQ(nothing.queue_id(), 0U);
  auto queue = device().create_queue();
  queue.wait(nothing);
  EXPECT_EQ(queue.record(), nothing) << "a queue that was given no work has none to wait for";
  EXPECT_EQ(queue.completed(), 0U);
}

TEST_P(DeviceConformance, TicketsCountFromOneAndEndInOrder) {
  Allocated const piece{device(), 1000};
  auto queue = device().create_queue();
  std::vector<Event> events;
  for (int i = 0; i < 50; ++i) events.push_back(queue.fill(piece.memory(), repeated(1, 1)));
  for (std::size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].ticket(), i + 1);
    EXPECT_EQ(events[i].queue_id(), queue.id());
  }
  events[30].wait();
  for (std::size_t i = 0; i <= 30; ++i) EXPECT_TRUE(events[i].ready());
  EXPECT_GE(queue.completed(), 31U);
  EXPECT_EQ(queue.record(), events.back());
  queue.synchronize();
  EXPECT_EQ(queue.completed(), 50U);
}

TEST_P(DeviceConformance, WorkEndsThoughNobodyWaits) {
  Allocated const piece{device(), 1 << 16};
  auto queue = device().create_queue();
  for (Ticket round = 1; round <= 20; ++round) {
    auto const event = queue.fill(piece.memory(), repeated(1, 1));
    while (!event.ready()) std::this_thread::yield();  // the test's time-out is the assertion
    EXPECT_EQ(queue.completed(), round);
  }
}

TEST_P(DeviceConformance, ATimedWaitEndsInTime) {
  if (works_in_the_submitting_thread(device())) GTEST_SKIP() << "nothing is ever pending";
  using Clock = std::chrono::steady_clock;
  Allocated const piece{device(), 1000};
  auto queue = device().create_queue();
  std::atomic<bool> begun{false}, open{false};
  std::optional<Gate> gate;
  if (device().info().runs_host_form) {
    auto const held = [&](Range, std::size_t, std::size_t, auto) {
      begun = true;
      open.wait(false);
    };
    queue.run(device().compile({"held", "", held}), Range{1}, {});
    while (!begun) std::this_thread::yield();  // the worker has it: who waits would run it himself
  } else {
    gate.emplace(queue);
  }
  auto const event = queue.fill(piece.memory(), repeated(1, 1));
  auto const until = Clock::now() + std::chrono::milliseconds{20};
  EXPECT_FALSE(wait_until(event, until));
  EXPECT_GE(Clock::now(), until);
  open = true;
  open.notify_all();
  gate.reset();
  EXPECT_TRUE(wait_until(event, Clock::time_point::max()));
  EXPECT_TRUE(event.ready());
}

TEST_P(DeviceConformance, CompletedNeverGoesBack) {
  Allocated const piece{device(), 5000};
  auto queue = device().create_queue();
  std::atomic<bool> stop{false};
  std::atomic<int> steps_back{0};
  std::vector<std::thread> watchers;
  for (int i = 0; i < 2; ++i) {
    watchers.emplace_back([&] {
      Ticket last = 0;
      while (!stop) {
        auto const now = queue.completed();
        steps_back += now < last;
        last = now;
      }
    });
  }
  for (int i = 0; i < 300; ++i) {
    auto const event = queue.fill(piece.memory(), repeated(1, 1));
    if (i % 7 == 0) event.wait();
  }
  queue.synchronize();
  stop = true;
  for (auto& watcher : watchers) watcher.join();
  EXPECT_EQ(steps_back, 0);
  EXPECT_EQ(queue.completed(), 300U);
}

TEST_P(DeviceConformance, ManyThreadsWaitForTheSameWork) {
  constexpr std::size_t threads = 6, bytes = 100'000;
  Allocated const piece{device(), bytes};
  auto const news = noise(bytes, 1);
  for (int round = 0; round < 20; ++round) {
    auto queue = device().create_queue();
    Bytes result(bytes);
    std::vector<Event> events;
    for (std::size_t i = 0; i < threads; ++i) {
      queue.upload(piece.memory(), news.data(), bytes);
      events.push_back(queue.download(result.data(), piece.memory(), bytes));
    }
    std::atomic<std::size_t> early{0};
    std::vector<std::thread> waiters;
    for (std::size_t i = 0; i < threads; ++i) {
      waiters.emplace_back([&, i] {
        events[i].wait();
        early += queue.completed() < events[i].ticket();
      });
    }
    for (auto& waiter : waiters) waiter.join();
    ASSERT_EQ(early, 0U);
    ASSERT_EQ(result, news);
  }
}

TEST_P(DeviceConformance, AFailureSticksToItsTicket) {
  if (!GetParam().fail) GTEST_SKIP() << "a failure cannot be had on purpose on " << device().id();
  constexpr std::size_t bytes = 5000;
  Allocated const piece{device(), bytes};
  auto const news = noise(bytes, 1);
  Bytes result(bytes);
  auto queue = device().create_queue();
  auto const before = queue.upload(piece.memory(), news.data(), bytes);
  auto const failing = GetParam().fail(queue);
  auto const after = queue.download(result.data(), piece.memory(), bytes);

  after.wait();
  EXPECT_EQ(result, news) << "later work runs all the same";
  EXPECT_EQ(before.wait_for_error(), nullptr);
  ASSERT_TRUE(failing.ready());
  auto const what = message_of(failing.error());
  EXPECT_FALSE(what.empty());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(message_of(failing.wait_for_error()), what) << "every time one asks";
  EXPECT_THROW(failing.wait(), std::exception);
  std::thread{[&] { EXPECT_EQ(message_of(failing.wait_for_error()), what) << "every thread that asks"; }}.join();
}

TEST_P(DeviceConformance, SynchronizingAQueueReportsAFailureOnce) {
  if (!GetParam().fail) GTEST_SKIP() << "a failure cannot be had on purpose on " << device().id();
  auto queue = device().create_queue();
  auto const first = GetParam().fail(queue);
  GetParam().fail(queue);
  device().synchronize();  // says nothing: errors stay with their tickets
  std::string thrown;
  try {
    queue.synchronize();
  } catch (std::exception const& error) {
    thrown = error.what();
  }
  EXPECT_EQ(thrown, message_of(first.error()));
  queue.synchronize();  // both failures lie before the first call
  EXPECT_NE(first.error(), nullptr) << "the ticket keeps what the queue has reported";
}

TEST_P(DeviceConformance, AFailureDoesNotStopWaitingQueues) {
  if (!GetParam().fail) GTEST_SKIP() << "a failure cannot be had on purpose on " << device().id();
  constexpr std::size_t bytes = 5000;
  Allocated const piece{device(), bytes};
  auto const news = noise(bytes, 2);
  Bytes result(bytes);
  auto failing = device().create_queue(), waiting = device().create_queue();
  auto const failed = GetParam().fail(failing);
  waiting.wait(failed);
  waiting.upload(piece.memory(), news.data(), bytes);
  auto const done = waiting.download(result.data(), piece.memory(), bytes);
  EXPECT_EQ(done.wait_for_error(), nullptr);
  EXPECT_TRUE(failed.ready());
  EXPECT_EQ(result, news);
}

TEST_P(DeviceConformance, NeedingFailedWorkFailsWithItsError) {
  if (!GetParam().fail) GTEST_SKIP() << "a failure cannot be had on purpose on " << device().id();
  constexpr std::size_t bytes = 5000;
  Allocated const piece{device(), bytes}, another{device(), bytes};
  Bytes from(bytes), to(bytes);
  auto queue = device().create_queue(), other = device().create_queue();
  auto const failed = GetParam().fail(queue);
  auto const what = message_of(failed.wait_for_error());
  auto const same_queue = queue.upload(piece.memory(), from.data(), bytes, {{failed}});
  auto const other_queue = other.download(to.data(), another.memory(), bytes, {{failed}});
  auto const far = other.fill(another.memory(), repeated(1, 1));
  auto const joined = queue.join({{far, same_queue, other_queue}});
  EXPECT_EQ(message_of(same_queue.wait_for_error()), what);
  EXPECT_EQ(message_of(other_queue.wait_for_error()), what);
  EXPECT_EQ(message_of(joined.wait_for_error()), what);
  EXPECT_EQ(far.wait_for_error(), nullptr);
}

TEST_P(DeviceConformance, NeedingKnownFailuresNeverBegins) {
  if (!GetParam().fail) GTEST_SKIP() << "a failure cannot be had on purpose on " << device().id();
  constexpr std::size_t bytes = 5000;
  Allocated const piece{device(), bytes};
  auto const kept = noise(bytes, 3), news = noise(bytes, 4);
  Bytes result(bytes), landed = repeated(bytes, 9);
  auto failing = device().create_queue(), queue = device().create_queue();
  queue.upload(piece.memory(), kept.data(), bytes);
  auto const failed = GetParam().fail(failing);
  auto const what = message_of(failed.wait_for_error());
  EXPECT_FALSE(failed.never_began());
  for (auto const event : {queue.upload(piece.memory(), news.data(), bytes, {{failed}}),
                           queue.download(landed.data(), piece.memory(), bytes, {{failed}})}) {
    EXPECT_EQ(message_of(event.wait_for_error()), what);
    EXPECT_TRUE(event.never_began());
  }
  auto const skipped = queue.upload(piece.memory(), news.data(), bytes, {{failed}});
  auto const skipped_too = queue.download(landed.data(), piece.memory(), bytes, {{failed}});
  struct Joined {
    Event event;
    bool never_began;
  };
  for (auto const& [joined, never_began] :
       {Joined{queue.join({{skipped, skipped_too}}), true}, Joined{queue.join({{skipped, failed}}), false},
        Joined{queue.join({{skipped, failing.download(result.data(), piece.memory(), bytes)}}), false}}) {
    EXPECT_EQ(message_of(joined.wait_for_error()), what);
    EXPECT_EQ(joined.never_began(), never_began);
  }
  EXPECT_EQ(landed, repeated(bytes, 9));
  auto const done = queue.download(result.data(), piece.memory(), bytes);
  EXPECT_EQ(done.wait_for_error(), nullptr);
  EXPECT_FALSE(done.never_began());
  EXPECT_EQ(result, kept);
}

TEST_P(DeviceConformance, NeverBegunWorkEndsBehindOtherNeeds) {
  if (!GetParam().fail) GTEST_SKIP() << "a failure cannot be had on purpose on " << device().id();
  if (works_in_the_submitting_thread(device())) GTEST_SKIP() << "nothing is ever pending";
  constexpr std::size_t bytes = 500;
  Allocated const piece{device(), bytes};
  Bytes const from(bytes);
  Bytes result(bytes);
  auto failing = device().create_queue(), slow = device().create_queue(), queue = device().create_queue();
  auto const failed = GetParam().fail(failing);
  static_cast<void>(failed.wait_for_error());
  std::optional<Gate> gate{slow};
  auto const running = slow.fill(piece.memory(), repeated(1, 1));
  auto const never = queue.upload(piece.memory(), from.data(), bytes, {{running, failed}});
  auto const behind = queue.fill(piece.memory(), repeated(1, 2));
  EXPECT_FALSE(never.ready());
  EXPECT_FALSE(behind.ready()) << "later work does not overtake what was needed";
  EXPECT_EQ(never.error(), nullptr) << "nor does asking wait for it";
  gate.reset();
  EXPECT_EQ(message_of(never.wait_for_error()), message_of(failed.wait_for_error()));
  queue.download(result.data(), piece.memory(), bytes).wait();
  EXPECT_EQ(result, repeated(bytes, 2));
}

TEST_P(DeviceConformance, AJoinEndsWithItsLastEvent) {
  constexpr std::size_t bytes = 100'000;
  Allocated const a{device(), bytes}, b{device(), bytes};
  auto const news = noise(bytes, 5);
  Bytes from_a(bytes), from_b(bytes);
  auto first = device().create_queue(), second = device().create_queue(), third = device().create_queue();
  EXPECT_EQ(third.join({}), Event{});
  first.upload(a.memory(), news.data(), bytes);
  second.upload(b.memory(), news.data(), bytes);
  auto const one = first.download(from_a.data(), a.memory(), bytes);
  auto const two = second.download(from_b.data(), b.memory(), bytes);
  EXPECT_EQ(third.join({{one}}), one);
  third.join({{one, two}}).wait();
  EXPECT_TRUE(one.ready() && two.ready());
  EXPECT_EQ(from_a, news);
  EXPECT_EQ(from_b, news);
}

TEST_P(DeviceConformance, EventsAndErrorsOutliveTheirQueue) {
  if (!GetParam().fail) GTEST_SKIP() << "a failure cannot be had on purpose on " << device().id();
  Event failed;
  {
    auto queue = device().create_queue();
    failed = GetParam().fail(queue);
  }
  EXPECT_TRUE(failed.ready());
  EXPECT_FALSE(message_of(failed.wait_for_error()).empty());
}

}  // namespace unimem
