#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>

#include "device/coroutine_task.hpp"
#include "device/coroutine_thread.hpp"
#include "device/gate.hpp"
#include "device/opencl_fixture.hpp"
#include "forked_child.hpp"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

// How a process with suspended coroutines ends, and what is left of them in a forked child. Each scenario runs in a
// process of its own, as death tests that do not die.

namespace unimem {
namespace {

using namespace std::chrono_literals;
using ::testing::ExitedWithCode;

Event touch(Queue& queue, DeviceMemory memory) {
  std::byte const one{1};
  return queue.fill(memory, {&one, 1});
}

Device& sim(std::chrono::nanoseconds latency = {}) {
  return make_sim({.latency = latency});
}

Task count(Event event, std::atomic<int>& resumptions) {
  co_await event;
  ++resumptions;
}

/// Touches `memory` again and again.
Task go_on_for_ever(Queue& queue, DeviceMemory memory, std::atomic<int>& rounds) {
  while (true) {
    co_await touch(queue, memory);
    ++rounds;
  }
}

/// Whether coroutines are resumed no more.
bool is_ending() {
  return !detail::CoroutineThread::instance().start();
}

class AwaitingAtProcessEnd : public ::testing::Test {
 protected:
  AwaitingAtProcessEnd() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(AwaitingAtProcessEnd, ASuspendedCoroutineIsForgotten) {
  auto const begin = std::chrono::steady_clock::now();
  auto const scenario = [] {
    static std::atomic<int> resumptions{0};
    static std::optional<Task> task;  // destroyed after the library's thread has become still
    auto& slow = sim(1h);
    auto const memory = slow.allocate(64, Location::device);
    touch(slow.default_queue(), memory);
    task.emplace(count(touch(slow.default_queue(), memory), resumptions));
    std::exit(7);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s) << "nobody waits an hour for it";
}

TEST_F(AwaitingAtProcessEnd, NothingIsResumedOnceStaticsAreDestroyed) {
  auto const scenario = [] {
    static std::atomic<bool> destroyed{false};
    static std::shared_ptr<void> const witness{nullptr, [](void*) { destroyed = true; }};
    static auto const watch = [](Queue& queue, DeviceMemory memory) -> Task {
      while (true) {
        co_await touch(queue, memory);
        if (destroyed) std::_Exit(1);
      }
    };
    auto& fast = sim();
    static std::vector<Task> tasks;
    for (int i = 0; i < 20; ++i) {
      tasks.push_back(watch(fast.default_queue(), fast.allocate(64, Location::device)));
    }
    std::exit(7);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(AwaitingAtProcessEnd, ARunningCoroutineStopsAtItsNextWait) {
  auto const scenario = [] {
    static std::atomic<int> rounds{0};
    static struct Last {
      ~Last() {
        auto const reached = rounds.load();
        std::this_thread::sleep_for(50ms);
        std::_Exit(rounds == reached ? 7 : 1);
      }
    } const last;
    auto& cpu = device("cpu");
    static std::vector<Task> tasks;
    for (int i = 0; i < 10; ++i) {
      tasks.push_back(go_on_for_ever(cpu.default_queue(), cpu.allocate(64, Location::device), rounds));
    }
    while (rounds < 1000) std::this_thread::yield();
    std::exit(0);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(AwaitingAtProcessEnd, ExitWaitsUntilACoroutinesNextWait) {
  auto const scenario = [] {
    static std::atomic<bool> running{false}, reached{false}, went_on{false};
    static struct Last {
      ~Last() { std::_Exit(reached && !went_on ? 7 : 1); }
    } const last;
    static auto const outlasts = [](Queue& queue, DeviceMemory memory) -> Task {
      co_await touch(queue, memory);
      running = true;
      while (!is_ending()) std::this_thread::yield();
      std::this_thread::sleep_for(50ms);  // work that would be torn down under it
      reached = true;
      co_await touch(queue, memory);  // pending for good: queues do nothing of themselves any more
      went_on = true;
    };
    auto& device = sim(20ms);
    static std::optional<Task> task;
    task.emplace(outlasts(device.default_queue(), device.allocate(64, Location::device)));
    while (!running) std::this_thread::yield();
    std::exit(0);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(AwaitingAtProcessEnd, AwaitingInAStaticsDestructorWaits) {
  auto const scenario = [] {
    static Device* device = nullptr;
    static DeviceMemory memory;
    static std::atomic<int> resumptions{0};
    static struct Last {
      ~Last() {
        auto const task = count(touch(device->default_queue(), memory), resumptions);
        std::_Exit(task.done() && resumptions == 2 ? 7 : 1);
      }
    } const last;
    device = &sim(20ms);
    memory = device->allocate(64, Location::device);
    count(touch(device->default_queue(), memory), resumptions).get();
    std::exit(0);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(AwaitingAtProcessEnd, ACoroutineMayEndTheProcess) {
  auto const scenario = [] {
    static std::chrono::steady_clock::time_point begin;
    static struct Last {
      ~Last() { std::_Exit(std::chrono::steady_clock::now() - begin < 900ms ? 7 : 1); }
    } const last;
    static auto const ends = [](Event event) -> Task {
      co_await event;
      begin = std::chrono::steady_clock::now();
      std::exit(0);
    };
    auto& device = sim(20ms);
    auto const task = ends(touch(device.default_queue(), device.allocate(64, Location::device)));
    while (true) std::this_thread::sleep_for(1s);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(AwaitingAtProcessEnd, AnEndlessCoroutineDoesNotBlockExit) {
  auto const scenario = [] {
    static std::atomic<bool> stuck{false};
    static auto const sticks = [](Event event) -> Task {
      co_await event;
      stuck = true;
      while (true) std::this_thread::sleep_for(1s);
    };
    auto& device = sim(20ms);
    static std::optional<Task> task;
    task.emplace(sticks(touch(device.default_queue(), device.allocate(64, Location::device))));
    while (!stuck) std::this_thread::yield();
    std::exit(7);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(AwaitingAtProcessEnd, UnderOpenClEveryMomentIsClean) {
  if (found_opencl().devices.empty()) GTEST_SKIP() << found_opencl().reason;
  if (works_in_the_submitting_thread(*found_opencl().devices.front())) GTEST_SKIP() << "nothing is ever pending";
  auto const scenario = [] {
    // A host queue first, so that the library's own exit handler is older than the driver's.
    static std::atomic<int> resumptions{0}, rounds{0};
    count(touch(device("cpu").default_queue(), device("cpu").allocate(64, Location::device)), resumptions).get();
    auto& opencl = *found_opencl().devices.front();
    static std::vector<Task> tasks;
    for (int i = 0; i < 5; ++i) {
      tasks.push_back(go_on_for_ever(opencl.default_queue(), opencl.allocate(4096, Location::device), rounds));
    }
    while (rounds < 100) std::this_thread::yield();
    std::exit(7);
  };
  for (int i = 0; i < 5; ++i) EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(AwaitingAtProcessEnd, UnderOpenClCoroutinesStopBeforeTheDriver) {
  if (found_opencl().devices.empty()) GTEST_SKIP() << found_opencl().reason;
  if (works_in_the_submitting_thread(*found_opencl().devices.front())) GTEST_SKIP() << "nothing is ever pending";
  auto const scenario = [] {
    // A host queue first, so that the library's own exit handler is older than the driver's.
    auto& cpu = device("cpu");
    touch(cpu.default_queue(), cpu.allocate(64, Location::device)).wait();
    auto& opencl = *found_opencl().devices.front();
    std::atexit([] { std::_Exit(is_ending() ? 7 : 1); });  // where the driver's stands
    static std::atomic<int> resumptions{0};
    std::optional<Gate> gate{opencl.default_queue()};
    auto const task = count(touch(opencl.default_queue(), opencl.allocate(64, Location::device)), resumptions);
    gate.reset();
    task.get();
    std::exit(0);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(AwaitingAtProcessEnd, UnderOpenClSuspendedCoroutinesAreForgotten) {
  if (found_opencl().devices.empty()) GTEST_SKIP() << found_opencl().reason;
  if (works_in_the_submitting_thread(*found_opencl().devices.front())) GTEST_SKIP() << "nothing is ever pending";
  auto const scenario = [] {
    auto& opencl = *found_opencl().devices.front();
    static std::atomic<int> resumptions{0};
    static std::optional<Task> task;
    static Gate* volatile never_opened = nullptr;  // volatile: a pointer nobody reads is no owner to a leak checker
    never_opened = new Gate{opencl.default_queue()};
    if (never_opened == nullptr) std::_Exit(1);
    task.emplace(count(touch(opencl.default_queue(), opencl.allocate(64, Location::device)), resumptions));
    std::exit(7);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(AwaitingAtProcessEnd, AForkedChildMayDestroyCoroutines) {
  auto& device = sim();
  auto const memory = device.allocate(64, Location::device);
  static auto queue = device.create_queue();
  std::optional<Gate> gate{queue};
  std::atomic<int> resumptions{0};
  std::optional<Task> task{count(touch(queue, memory), resumptions)};
  auto const pending = queue.record();
  EXPECT_EQ(in_child(
                [&] {
                  task.reset();
                  auto const another = count(pending, resumptions);
                  if (!another.done()) return 1;  // nobody would resume it
                  try {
                    another.get();
                  } catch (UnsupportedOperation const&) {
                    return resumptions == 0 ? 7 : 2;
                  }
                  return 3;
                },
                std::exit),
            7);
  gate.reset();
  task->get();
  EXPECT_EQ(resumptions, 1) << "the parent's goes on";
}

}  // namespace
}  // namespace unimem
