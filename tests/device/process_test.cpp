#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>

#include "device/worker_threads.hpp"
#include "forked_child.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

// How a process with queues ends, and what is left of them in a forked child. Each scenario runs in a process of its
// own, as death tests that do not die.

namespace unimem {
namespace {

using namespace std::chrono_literals;
using ::testing::ExitedWithCode;

ProgramSource kernel(HostLoop loop) {
  return {"kernel", "", std::move(loop)};
}

/// Work that takes a millisecond a piece.
void submit(int pieces, Queue& queue, DeviceMemory memory) {
  std::byte const zero{};
  for (int i = 0; i < pieces; ++i) queue.fill(memory, {&zero, 1});
}

Device& slow_sim() {
  static auto& sim = make_sim({.latency = 1ms});
  return sim;
}

class ProcessEnd : public ::testing::Test {
 protected:
  ProcessEnd() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(ProcessEnd, WithPendingWorkInADefaultQueueIsCleanAndPrompt) {
  auto const begin = std::chrono::steady_clock::now();
  auto const scenario = [] {
    auto& sim = slow_sim();
    submit(10'000, sim.default_queue(), sim.allocate(64, Location::device));
    std::exit(7);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 8s) << "what nobody waits for is not done first";
}

TEST_F(ProcessEnd, StopsBackgroundWorkBeforeEarlierStaticsAreDestroyed) {
  auto const scenario = [] {
    // Made before the first queue, so destroyed after queues have been hushed.
    static std::vector<int> numbers(1000, 1);
    static std::atomic<bool> destroyed{false};
    static std::shared_ptr<void> const witness{nullptr, [](void*) { destroyed = true; }};
    auto& sim = slow_sim();
    auto const program = sim.compile(kernel([](Range, std::size_t, std::size_t, auto) {
      if (destroyed) std::_Exit(1);
      for (auto& number : numbers) ++number;
    }));
    for (int i = 0; i < 10'000; ++i) sim.default_queue().run(program, Range{1}, {});
    std::exit(7);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(ProcessEnd, AStaticQueueDoesItsWorkWhenItIsDestroyed) {
  auto const scenario = [] {
    static std::atomic<int> runs{0};
    static struct Last {
      ~Last() { std::_Exit(runs == 20 ? 7 : 1); }
    } const last;
    static std::optional<Queue> queue;
    auto& sim = slow_sim();
    auto const program = sim.compile(kernel([](Range, std::size_t, std::size_t, auto) { ++runs; }));
    queue.emplace(sim.create_queue());
    for (int i = 0; i < 20; ++i) queue->run(program, Range{1}, {});
    std::exit(0);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(ProcessEnd, AStaticMayWaitForWorkAndSubmitMore) {
  auto const scenario = [] {
    static std::atomic<int> runs{0};
    static Device* sim = nullptr;
    static std::shared_ptr<Program const> program;
    static Event event;
    static struct Waits {
      ~Waits() {
        event.wait();
        sim->default_queue().run(program, Range{1}, {}).wait();
        auto fresh = sim->create_queue();
        fresh.run(program, Range{1}, {}).wait();
        std::_Exit(runs >= 22 ? 7 : 1);
      }
    } const waits;
    sim = &slow_sim();
    program = sim->compile(kernel([](Range, std::size_t, std::size_t, auto) { ++runs; }));
    for (int i = 0; i < 20; ++i) event = sim->default_queue().run(program, Range{1}, {});
    std::exit(0);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(ProcessEnd, FromWithinAKernelDoesNotHang) {
  auto const scenario = [] {
    auto& cpu = device("cpu");
    cpu.default_queue().run(cpu.compile(kernel([](Range, std::size_t, std::size_t, auto) { std::exit(7); })), Range{1},
                            {});
    while (true) std::this_thread::sleep_for(1s);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(ProcessEnd, WithAKernelThatNeverEndsDoesNotHang) {
  auto const scenario = [] {
    static std::atomic<bool> running{false};
    auto& cpu = device("cpu");
    auto const endless = kernel([](Range, std::size_t, std::size_t, auto) {
      running = true;
      while (true) std::this_thread::sleep_for(1s);
    });
    cpu.default_queue().run(cpu.compile(endless), Range{1}, {});
    while (!running) std::this_thread::yield();
    std::exit(7);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(ProcessEnd, WorkThatIsWaitedForMayWantAnotherWorkerAndIsToldThatThereIsNone) {
  auto const scenario = [] {
    struct Idle final : detail::BackgroundWorker {
      void hush() noexcept override {}
      void await_quiet(std::chrono::steady_clock::time_point /*until*/) noexcept override {}
    };
    struct Working final : detail::BackgroundWorker {
      void hush() noexcept override {}
      void await_quiet(std::chrono::steady_clock::time_point /*until*/) noexcept override {
        static Idle another;
        bool enlisted = true;
        std::thread([&] { enlisted = detail::enlist(another); }).join();
        std::_Exit(enlisted ? 1 : 7);
      }
    };
    alarm(30);  // the one used to wait for the other
    static Working working;
    if (!detail::enlist(working)) std::_Exit(2);
    std::exit(3);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

// First of the two: no queue has been made in this process yet.
TEST_F(ProcessEnd, AChildForkedBeforeAnyWorkUsesDevicesAsItLikes) {
  EXPECT_EQ(in_child(
                [] {
                  auto& cpu = device("cpu");
                  int value = 0;
                  auto const program = cpu.compile(kernel([&](Range, std::size_t, std::size_t, auto) { value = 7; }));
                  cpu.default_queue().run(program, Range{1}, {}).wait();
                  return value;
                },
                std::exit),
            7);
}

TEST_F(ProcessEnd, AForkedChildIsToldThatItHasNoQueues) {
  auto& sim = slow_sim();
  auto const memory = sim.allocate(64, Location::device);
  static auto queue = sim.create_queue();  // destroyed in the child as well
  submit(1500, queue, memory);
  auto const pending = queue.record();
  EXPECT_EQ(in_child(
                [&] {
                  int refusals = 0;
                  try {
                    queue.fill(memory, std::array{std::byte{1}});
                  } catch (UnsupportedOperation const&) {
                    ++refusals;
                  }
                  try {
                    pending.wait();
                  } catch (UnsupportedOperation const&) {
                    ++refusals;
                  }
                  try {
                    queue.synchronize();
                  } catch (UnsupportedOperation const&) {
                    ++refusals;
                  }
                  try {
                    auto another = sim.create_queue();
                    another.fill(memory, std::array{std::byte{1}});
                  } catch (UnsupportedOperation const&) {
                    ++refusals;
                  }
                  return refusals;
                },
                std::exit),
            4);
  EXPECT_FALSE(pending.error());  // the parent's work goes on
}

}  // namespace
}  // namespace unimem
