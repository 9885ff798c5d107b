#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>

#include "device/cpu/thread_pool.hpp"
#include "device/worker_threads.hpp"
#include "forked_child.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
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

TEST_F(ProcessEnd, WithPendingWorkIsPrompt) {
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

TEST_F(ProcessEnd, AStaticQueueFinishesItsWork) {
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

TEST_F(ProcessEnd, AStaticMaySubmitWork) {
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

/// The same with a queue that a static object owns, which waits for its work when it is destroyed: before queues are
/// hushed or after, and with work behind the kernel, on this queue and on another one.
TEST_F(ProcessEnd, FromAKernelDoesNotWaitForIt) {
  for (bool const hushed : {true, false}) {
    for (bool const helped : {false, true}) {
      auto const scenario = [=] {
        alarm(30);
        static std::atomic<int> runs{0};
        static struct Last {
          ~Last() {
            if (runs != 0) std::_Exit(1);
          }
        } const last;
        auto& cpu = device("cpu");
        static std::optional<Queue> after;                       // destroyed after queues are hushed
        static std::optional<Queue> before{cpu.create_queue()};  // and before they are
        if (hushed) after.emplace(std::move(*before));
        auto& first = hushed ? *after : *before;
        auto const counts = cpu.compile(kernel([](Range, std::size_t, std::size_t, auto) { ++runs; }));
        static auto second = cpu.create_queue();
        std::promise<void> go;  // once nobody else uses what exit destroys
        auto const gate = go.get_future().share();
        auto const exits = cpu.compile(kernel([gate](Range, std::size_t, std::size_t, auto) {
          gate.wait();
          std::exit(7);
        }));
        auto const end = first.run(exits, Range{1}, {});
        first.run(counts, Range{1}, {}, {{end}});
        second.run(counts, Range{1}, {}, {{end}});
        go.set_value();
        if (helped) end.wait();  // which runs the kernel in this very thread, as often as not
        while (true) std::this_thread::sleep_for(1s);
      };
      EXPECT_EXIT(scenario(), ExitedWithCode(7), "") << hushed << helped;
    }
  }
}

TEST_F(ProcessEnd, FromAHelpedKernelDoesNotHang) {
  if (detail::ThreadPool::shared().threads() == 1) GTEST_SKIP() << "one core: nobody helps";
  auto const scenario = [] {
    alarm(30);
    auto& cpu = device("cpu");
    static auto queue = cpu.create_queue();
    static std::atomic<std::thread::id> runner;
    static std::atomic<bool> go{false};
    // As many bytes as make a loop worth sharing.
    auto const memory = cpu.allocate(std::size_t{4} << 20, Location::host);
    KernelArgument argument;
    argument.memory = memory;
    auto const exits = cpu.compile(kernel([](Range, std::size_t begin, std::size_t, auto) {
      if (begin == 0) runner = std::this_thread::get_id();
      while (runner.load() == std::thread::id{}) std::this_thread::yield();
      while (!go) std::this_thread::yield();
      if (runner.load() != std::this_thread::get_id()) std::exit(7);
      while (true) std::this_thread::sleep_for(1s);
    }));
    queue.run(exits, Range{1 << 20}, {&argument, 1});
    go = true;
    while (true) std::this_thread::sleep_for(1s);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(ProcessEnd, WaitingForAnExitingKernelIsRefused) {
  auto const scenario = [] {
    alarm(30);
    static Event end;
    static struct Waits {
      ~Waits() {
        try {
          end.wait();
        } catch (UnsupportedOperation const& error) {
          std::_Exit(error.operation == "waiting for work that has called exit" ? 7 : 2);
        }
        std::_Exit(1);
      }
    } const waits;
    auto& cpu = device("cpu");
    static std::atomic<bool> go{false};
    auto const exits = cpu.compile(kernel([](Range, std::size_t, std::size_t, auto) {
      while (!go) std::this_thread::yield();
      std::exit(0);
    }));
    end = cpu.default_queue().run(exits, Range{1}, {});
    go = true;
    while (true) std::this_thread::sleep_for(1s);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(ProcessEnd, WithAnEndlessKernelDoesNotHang) {
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

TEST_F(ProcessEnd, RefusesNewWorkersDuringExit) {
  auto const scenario = [] {
    struct Idle final : detail::BackgroundWorker {
      void shut_down() noexcept override {}
      void await_quiet(std::chrono::steady_clock::time_point /*until*/) noexcept override {}
    };
    struct Working final : detail::BackgroundWorker {
      void shut_down() noexcept override {}
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
TEST_F(ProcessEnd, AChildForkedBeforeAnyWorkUsesDevices) {
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

TEST_F(ProcessEnd, AForkedChildHasNoQueues) {
  auto& sim = slow_sim();
  auto const memory = sim.allocate(64, Location::device);
  static auto queue = sim.create_queue();  // destroyed in the child as well
  submit(1500, queue, memory);
  auto const pending = queue.record();
  EXPECT_EQ(in_child(
                [&] {
                  EXPECT_HERE(is_refused([&] { queue.fill(memory, std::array{std::byte{1}}); }));
                  EXPECT_HERE(is_refused([&] { pending.wait(); }));
                  EXPECT_HERE(is_refused([&] { queue.synchronize(); }));
                  EXPECT_HERE(is_refused([&] { sim.synchronize(); }));
                  EXPECT_HERE(is_refused([&] {
                    auto another = sim.create_queue();
                    another.fill(memory, std::array{std::byte{1}});
                  }));
                  return 5;
                },
                std::exit),
            5);
  EXPECT_FALSE(pending.error());  // the parent's work goes on
}

}  // namespace
}  // namespace unimem
