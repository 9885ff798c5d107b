#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>

#include "device/conformance_fixture.hpp"
#include "device/coroutine_task.hpp"
#include "device/gate.hpp"
#include "device/opencl_faulty_api.hpp"
#include "device/opencl_fixture.hpp"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

// `co_await event`, on every backend. Time-outs are the assertions where a wake-up could be lost.

namespace unimem {
namespace {

using namespace std::chrono_literals;

Device& slow_sim() {
  static auto& device = make_sim({.memory_bytes = std::size_t{64} << 20, .latency = 20us});
  return device;
}

/// A copy between addresses that are no memory of the device.
Event fail_on_sim(Queue& queue) {
  return queue.copy({0x1000, 0, 8}, {0x2000, 0, 8}, 8);
}

Event fail_on_cpu(Queue& queue) {
  auto const throws = [](Range, std::size_t, std::size_t, std::span<const HostArgument>) {
    throw std::out_of_range("the kernel's own words");
  };
  return queue.run(device("cpu").compile({"throws", "", throws}), Range{1}, {});
}

/// What a coroutine saw, written by it and read once it has ended.
struct Seen {
  std::thread::id before, after;
  int resumptions = 0;
};

Task see(Event event, Seen& seen) {
  seen.before = std::this_thread::get_id();
  co_await event;
  seen.after = std::this_thread::get_id();
  ++seen.resumptions;
}

/// Work that ends at once, on memory that lives as long as the test program.
Event touch(Queue& queue, DeviceMemory memory) {
  std::byte const one{1};
  return queue.fill(memory, {&one, 1});
}

class Awaiting : public DeviceConformance {
 protected:
  void SetUp() override {
    if (GetParam().name.starts_with("OpenCl") && found_opencl().devices.empty()) GTEST_SKIP() << found_opencl().reason;
  }

  /// Whether pending work can be had at all.
  [[nodiscard]] static bool works_at_once() { return works_in_the_submitting_thread(device()); }
};

#define UNIMEM_NEEDS_PENDING_WORK() \
  if (works_at_once()) GTEST_SKIP() << device().info().name << " works in the submitting thread"

INSTANTIATE_TEST_SUITE_P(
    , Awaiting,
    ::testing::Values(DeviceCase{"Cpu", []() -> Device& { return device("cpu"); }, fail_on_cpu},
                      DeviceCase{"Sim", slow_sim, fail_on_sim},
                      DeviceCase{"OpenCl", []() -> Device& { return *found_opencl().devices.front(); }, {}},
                      DeviceCase{"OpenClFaulty", faulty_device, [](Queue& queue) { return fail(queue); }}),
    case_name);

TEST_P(Awaiting, WhatIsDoneDoesNotSuspend) {
  Allocated const piece{device(), 64};
  auto queue = device().create_queue();
  auto const done = touch(queue, piece.memory());
  done.wait();
  for (auto const& event : {Event{}, done}) {
    Seen seen;
    auto const task = see(event, seen);
    ASSERT_TRUE(task.done());
    EXPECT_EQ(seen.after, std::this_thread::get_id());
  }
}

TEST_P(Awaiting, WhatIsNotDoneSuspendsUntilItIs) {
  UNIMEM_NEEDS_PENDING_WORK();
  constexpr std::size_t bytes = 100'000;
  Allocated const piece{device(), bytes};
  auto const news = noise(bytes, 1);
  Bytes result(bytes);
  auto queue = device().create_queue();
  std::optional<Gate> gate{queue};
  queue.upload(piece.memory(), news.data(), bytes);
  Seen seen;
  auto const task = see(queue.download(result.data(), piece.memory(), bytes), seen);
  EXPECT_FALSE(task.done());
  EXPECT_EQ(result, Bytes(bytes));
  gate.reset();
  task.get();
  EXPECT_EQ(result, news) << "what the work wrote is visible to who awaited it";
  EXPECT_EQ(seen.before, std::this_thread::get_id());
  EXPECT_NE(seen.after, std::this_thread::get_id());
  EXPECT_EQ(seen.resumptions, 1);
}

/// Brings `rounds` pieces of news to the device and back, each step when the one before has ended.
Task shuttle(Queue& queue, DeviceMemory memory, int rounds, int& wrong) {
  for (int round = 0; round < rounds; ++round) {
    auto const news = noise(memory.bytes, static_cast<unsigned>(round));
    Bytes result(memory.bytes);
    co_await queue.upload(memory, news.data(), news.size());
    co_await queue.download(result.data(), memory, result.size());
    wrong += result != news;
  }
}

TEST_P(Awaiting, StepsOfOneCoroutineFollowOneAnother) {
  Allocated const piece{device(), 10'000};
  auto queue = device().create_queue();
  int wrong = 0;
  shuttle(queue, piece.memory(), 200, wrong).get();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(queue.completed(), 400U);
}

TEST_P(Awaiting, CoroutinesResumeInTicketOrder) {
  UNIMEM_NEEDS_PENDING_WORK();
  constexpr int count = 50;
  static auto const note = [](Event event, int number, std::vector<int>& order) -> Task {
    co_await event;
    order.push_back(number);  // no lock: all are resumed by one thread
  };
  Allocated const piece{device(), 64};
  auto queue = device().create_queue();
  std::vector<int> order;
  std::vector<Task> tasks;
  {
    Gate const gate{queue};
    std::vector<Event> events;
    for (int i = 0; i < count; ++i) events.push_back(touch(queue, piece.memory()));
    for (int i = 0; i < count; ++i) {  // from both ends, so that neither coming first nor coming last decides
      auto const number = i % 2 == 0 ? i / 2 : count - 1 - i / 2;
      tasks.push_back(note(events[static_cast<std::size_t>(number)], number, order));
    }
  }
  for (auto const& task : tasks) task.get();
  std::vector<int> expected(count);
  for (int i = 0; i < count; ++i) expected[static_cast<std::size_t>(i)] = i;
  EXPECT_EQ(order, expected);
}

TEST_P(Awaiting, EverybodyWhoAwaitsOneEventGoesOn) {
  UNIMEM_NEEDS_PENDING_WORK();
  constexpr std::size_t threads = 4, each = 25;
  Allocated const piece{device(), 64};
  auto queue = device().create_queue();
  std::vector<Seen> seen(threads * each);
  std::vector<std::vector<Task>> tasks(threads);
  {
    Gate const gate{queue};
    auto const event = touch(queue, piece.memory());
    std::vector<std::thread> callers;
    for (std::size_t t = 0; t < threads; ++t) {
      callers.emplace_back([&, t] {
        for (std::size_t i = 0; i < each; ++i) tasks[t].push_back(see(event, seen[t * each + i]));
      });
    }
    for (auto& caller : callers) caller.join();
  }
  for (auto const& some : tasks) {
    for (auto const& task : some) task.get();
  }
  for (auto const& one : seen) {
    EXPECT_EQ(one.resumptions, 1);
    EXPECT_EQ(one.after, seen.front().after) << "the library's thread is one";
    EXPECT_NE(one.after, one.before);
  }
}

TEST_P(Awaiting, AFailureReachesTheCoroutine) {
  if (!GetParam().fail) GTEST_SKIP() << "a failure cannot be had on purpose on " << device().id();
  UNIMEM_NEEDS_PENDING_WORK();
  auto queue = device().create_queue();
  std::optional<Gate> gate{queue};
  auto const event = GetParam().fail(queue);
  Seen seen;
  auto const pending = see(event, seen);
  EXPECT_FALSE(pending.done());
  gate.reset();
  std::string thrown;
  try {
    pending.get();
  } catch (std::exception const& error) {
    thrown = error.what();
  }
  EXPECT_NE(event.error(), nullptr);
  EXPECT_EQ(thrown, message_of(event.error()));
  EXPECT_EQ(seen.resumptions, 0) << "it goes on where it catches, not behind co_await";

  auto const late = see(event, seen);  // a failure that is known does not suspend, and is thrown all the same
  ASSERT_TRUE(late.done());
  EXPECT_THROW(late.get(), std::exception);
}

TEST_P(Awaiting, AThousandCoroutinesEachResumeOnce) {
  constexpr std::size_t queues = 5, count = 1000;
  Allocated const piece{device(), 4096};
  auto const before = noise(count, 7);
  Bytes after(count);
  std::vector<Queue> all;
  for (std::size_t i = 0; i < queues; ++i) all.push_back(device().create_queue());
  write(piece.window(0, count), before);
  std::vector<Seen> seen(count);
  std::vector<Task> tasks;
  for (std::size_t i = 0; i < count; ++i) {
    tasks.push_back(see(all[i % queues].download(&after[i], piece.window(i, 1), 1), seen[i]));
  }
  for (auto const& task : tasks) task.get();
  EXPECT_EQ(after, before);
  for (auto const& one : seen) EXPECT_EQ(one.resumptions, 1);
}

TEST_P(Awaiting, WorkThatEndsMeanwhileIsNotMissed) {
  // Submitting and awaiting race with the work's end in every round; a wake-up lost is a test that never ends.
  constexpr int threads = 3, rounds = 1000;
  static auto const many = [](Queue& queue, DeviceMemory memory, int& done) -> Task {
    for (int i = 0; i < rounds; ++i) {
      co_await touch(queue, memory);
      ++done;
    }
  };
  Allocated const piece{device(), 64};
  std::vector<Queue> queues;
  for (int i = 0; i < threads; ++i) queues.push_back(device().create_queue());
  std::vector<int> done(threads, 0);
  std::vector<Task> tasks;
  for (std::size_t i = 0; i < threads; ++i) tasks.push_back(many(queues[i], piece.window(16 * i, 16), done[i]));
  for (auto const& task : tasks) task.get();
  EXPECT_EQ(done, std::vector<int>(threads, rounds));
}

TEST_P(Awaiting, AQueueHeldBackHoldsNoOtherUp) {
  UNIMEM_NEEDS_PENDING_WORK();
  Allocated const piece{device(), 1000};
  auto held = device().create_queue(), free = device().create_queue();
  std::optional<Gate> gate{held};
  Seen slow, fast;
  auto const waits = see(touch(held, piece.window(0, 8)), slow);
  for (int i = 0; i < 50; ++i) see(touch(free, piece.window(8, 8)), fast).get();
  EXPECT_EQ(fast.resumptions, 50);
  EXPECT_FALSE(waits.done());
  gate.reset();
  waits.get();
  EXPECT_EQ(slow.resumptions, 1);
}

TEST_P(Awaiting, EarlierWorkResumesNoLaterWaiter) {
  // Resumed too soon, it would wait on the library's thread, and nobody else would go on.
  UNIMEM_NEEDS_PENDING_WORK();
  Allocated const piece{device(), 1000};
  auto held = device().create_queue(), free = device().create_queue();
  std::optional<Gate> first{held};
  Seen early, late, other;
  auto const before = see(touch(held, piece.window(0, 8)), early);
  std::optional<Gate> second{held};
  auto const after = see(touch(held, piece.window(0, 8)), late);
  first.reset();
  before.get();
  see(touch(free, piece.window(8, 8)), other).get();
  EXPECT_FALSE(after.done());
  second.reset();
  after.get();
  EXPECT_EQ(early.resumptions + late.resumptions, 2);
}

TEST_P(Awaiting, AQueueMayEndWhileAwaited) {
  Allocated const piece{device(), 1 << 16};
  for (int i = 0; i < 50; ++i) {
    Seen seen;
    auto queue = std::make_unique<Queue>(device().create_queue());
    auto const task = see(touch(*queue, piece.memory()), seen);
    queue.reset();
    task.get();
    EXPECT_EQ(seen.resumptions, 1);
  }
}

TEST_P(Awaiting, ACoroutineDestroyedWhileItWaitsIsWithdrawn) {
  UNIMEM_NEEDS_PENDING_WORK();
  Allocated const piece{device(), 64};
  auto queue = device().create_queue();
  std::vector<Seen> seen(6);
  std::vector<std::optional<Task>> tasks;
  {
    Gate const gate{queue};
    for (auto& one : seen) tasks.emplace_back(see(touch(queue, piece.memory()), one));
    for (auto const dropped : {0U, 2U, 3U, 5U}) tasks[dropped].reset();
  }
  queue.synchronize();
  tasks[1]->get();
  tasks[4]->get();
  Seen last;
  see(touch(queue, piece.memory()), last).get();  // whoever were still in line would have come before
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i].resumptions, i == 1 || i == 4) << i;
}

TEST_P(Awaiting, AResumedCoroutineMayDestroyOthers) {
  // All await the same event, so the others are ready to go on when the first one runs: nobody else could tell.
  UNIMEM_NEEDS_PENDING_WORK();
  static auto const race = [](Event event, std::vector<std::optional<Task>>& others, int& winners) -> Task {
    co_await event;
    ++winners;
    for (auto& other : others) other.reset();
  };
  Allocated const piece{device(), 64};
  auto queue = device().create_queue();
  std::vector<Seen> seen(10);
  std::vector<std::optional<Task>> others;
  int winners = 0;
  std::optional<Gate> gate{queue};
  auto const event = touch(queue, piece.memory());
  auto const winner = race(event, others, winners);
  for (auto& one : seen) others.emplace_back(see(event, one));
  gate.reset();
  winner.get();
  Seen last;
  see(touch(queue, piece.memory()), last).get();
  EXPECT_EQ(winners, 1);
  for (auto const& one : seen) EXPECT_EQ(one.resumptions, 0);
}

TEST_P(Awaiting, AResumedCoroutineMayUseTheLibrary) {
  static auto const busy = [](Device& device, Event event, Bytes& result) -> Task {
    co_await event;
    Allocated const piece{device, result.size()};
    auto const news = noise(result.size(), 3);
    auto queue = device.create_queue();
    queue.upload(piece.memory(), news.data(), news.size()).wait();
    co_await queue.download(result.data(), piece.memory(), result.size());
    queue.synchronize();
  };
  Allocated const piece{device(), 64};
  auto queue = device().create_queue();
  Bytes result(5000);
  busy(device(), touch(queue, piece.memory()), result).get();
  EXPECT_EQ(result, noise(5000, 3));
}

/// How long the library's thread has been on a core so far.
class ThreadClock {
 public:
  /// To be made on the thread whose clock it is.
  ThreadClock() { pthread_getcpuclockid(pthread_self(), &clock_); }

  [[nodiscard]] std::chrono::nanoseconds now() const {
    timespec time{};
    clock_gettime(clock_, &time);
    return std::chrono::seconds{time.tv_sec} + std::chrono::nanoseconds{time.tv_nsec};
  }

 private:
  clockid_t clock_{};
};

TEST_P(Awaiting, CostsNextToNothingWhileNothingHappens) {
  UNIMEM_NEEDS_PENDING_WORK();
  static auto const look = [](Event event, std::optional<ThreadClock>& clock) -> Task {
    co_await event;
    clock.emplace();
  };
  Allocated const piece{device(), 64};
  auto queue = device().create_queue();
  std::optional<ThreadClock> clock;
  std::optional<Gate> gate{queue};
  auto const task = look(touch(queue, piece.memory()), clock);
  gate.reset();
  task.get();
  ASSERT_TRUE(clock);
  auto const spent_in = [&](std::chrono::milliseconds time) {
    auto const begin = clock->now();
    std::this_thread::sleep_for(time);
    return clock->now() - begin;
  };
  EXPECT_LT(spent_in(200ms), 10ms) << "nothing is awaited";
  gate.emplace(queue);
  Seen seen;
  auto const pending = see(touch(queue, piece.memory()), seen);
  EXPECT_LT(spent_in(200ms), 60ms) << "what is awaited takes long";
  gate.reset();
  pending.get();
}

TEST(AwaitingSim, TheErrorKeepsItsTypeAndItsFields) {
  auto& sim = make_sim({.fail_upload = 2});
  Allocated const piece{sim, 64};
  auto const news = noise(64, 1);
  auto queue = sim.create_queue();
  static auto const upload = [](Queue& on, DeviceMemory to, Bytes const& from,
                                std::optional<DeviceError>& caught) -> Task {
    co_await on.upload(to, from.data(), from.size());
    try {
      co_await on.upload(to, from.data(), from.size());
    } catch (DeviceError const& error) {
      caught.emplace(error);
    }
    co_await on.upload(to, from.data(), from.size());  // having caught it, it goes on
  };
  std::optional<DeviceError> caught;
  upload(queue, piece.memory(), news, caught).get();
  ASSERT_TRUE(caught);
  EXPECT_EQ(caught->backend, "sim");
  EXPECT_EQ(caught->call, "upload");
  EXPECT_EQ(caught->code, 1);
  std::string reported;
  try {
    queue.synchronize();
  } catch (DeviceError const& error) {
    reported = error.what();
  }
  EXPECT_EQ(caught->what(), reported);
  EXPECT_EQ(queue.completed(), 3U);
}

TEST(AwaitingSim, ASlowDeviceHoldsNoFastOneUp) {
  auto &slow = make_sim({.latency = 500ms}), &fast = make_sim();
  Allocated const there{slow, 64}, here{fast, 64};
  auto slow_queue = slow.create_queue(), fast_queue = fast.create_queue();
  auto const late = touch(slow_queue, there.memory());
  Seen last, first;
  auto const waits = see(late, last);
  int ended_before = 0;
  for (int i = 0; i < 20; ++i) {
    see(touch(fast_queue, here.memory()), first).get();
    ended_before += !waits.done();
  }
  EXPECT_GT(ended_before, 0) << "not one of 20 within half a second";
  waits.get();
  EXPECT_TRUE(late.ready());
  EXPECT_EQ(last.resumptions + first.resumptions, 21);
}

TEST(AwaitingAcrossBackends, EverybodyGoesOnInTheSameThread) {
  std::vector<Device*> devices{&device("cpu"), &make_sim()};
  if (!found_opencl().devices.empty() && !works_in_the_submitting_thread(*found_opencl().devices.front())) {
    devices.push_back(found_opencl().devices.front().get());
  }
  std::vector<std::thread::id> threads;
  for (auto* const one : devices) {
    Allocated const piece{*one, 64};
    auto queue = one->create_queue();
    std::optional<Gate> gate{queue};
    Seen seen;
    auto const task = see(touch(queue, piece.memory()), seen);
    gate.reset();
    task.get();
    threads.push_back(seen.after);
  }
  for (auto const& thread : threads) EXPECT_EQ(thread, threads.front());
}

}  // namespace
}  // namespace unimem
