#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/manager/memory_manager.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

// How a process ends while host kernels are in states that once hung: by `exit` on the main thread and on another, and
// by Ctrl-C. Each is a process of its own, a death test; ctest ends what hangs. Kernels take a while, so that they are
// under way then.

namespace unimem {
namespace {

using ::testing::ExitedWithCode;
using ::testing::KilledBySignal;

enum class End : unsigned char { exit, exit_on_another_thread, signal };

[[noreturn]] void ensure_resident(End end) {
  switch (end) {
    case End::exit:
      std::exit(7);
    case End::exit_on_another_thread:
      std::thread{[] { std::exit(7); }}.join();
      break;
    case End::signal:
      std::raise(SIGINT);
  }
  std::abort();
}

struct Setting {
  Device& device;
  Queue queue;
  UnifiedBuffer<int> x, other;
  std::promise<void> reached;  ///< by the kernel, when it is in the state

  explicit Setting(Device& on)
      : device(on), queue(on.create_queue()), x(100, options(on)), other(100, options(make_sim({}))) {
    x.fill(1);
    other.fill(2);
  }
  static BufferOptions options(Device& on) {
    BufferOptions result;
    result.device = &on;
    return result;
  }
  void run(UnifiedBuffer<int>& on, Queue& by, std::function<void()> work) {
    auto const kernel = Kernel("works").host([work = std::move(work)](WorkItem, std::span<int>) { work(); });
    launch(by, kernel, Range{1}, readwrite(on));
  }
};

/// Returns when the process has come to the state.
using State = void (*)(Setting&);

/// What the kernel is refused, it is refused before the process ends.
void refused(Setting& all, std::function<void()> const& waits) {
  std::promise<void> launched;  // before that the buffer is not the kernel's yet
  all.run(all.x, all.queue, [&all, waits, begins = launched.get_future().share()] {
    begins.wait();
    try {
      waits();
      std::abort();  // it has waited for itself
    } catch (UnsupportedOperation const&) {
      all.reached.set_value();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // under way when the process ends
  });
  launched.set_value();
  all.reached.get_future().wait();
}

std::map<std::string, State, std::less<>> const states{
    {"KernelAtItsOwnBuffer", [](Setting& all) { refused(all, [&all] { static_cast<void>(all.x.host_view()); }); }},
    {"KernelThatSynchronizesItsQueue", [](Setting& all) { refused(all, [&all] { all.queue.synchronize(); }); }},
    {"QueueDestroyedByItsOwnWork",
     [](Setting& all) {
       auto const own = std::make_shared<std::optional<Queue>>(all.device.create_queue());
       auto const queue = own->operator->();
       std::promise<void> launched;
       all.run(all.x, *queue, [&all, own, begins = launched.get_future().share()] {
         begins.wait();
         own->reset();
         all.reached.set_value();
         std::this_thread::sleep_for(std::chrono::milliseconds(200));
       });
       launched.set_value();
       all.reached.get_future().wait();
     }},
    {"WrappedMemoryDroppedWhileItsKernelRuns",
     [](Setting& all) {
       static std::vector<int> memory(100, 1);
       std::optional<UnifiedBuffer<int>> wrapped{
           default_manager().wrap<int>(memory.data(), memory.size(), Location::host, Ownership::take([](void*) {}))};
       all.run(*wrapped, all.queue, [&all] {
         all.reached.set_value();
         std::this_thread::sleep_for(std::chrono::milliseconds(200));
       });
       all.reached.get_future().wait();
       wrapped.reset();
     }},
    {"KernelAtABufferThatAnotherThreadUses",
     [](Setting& all) {
       std::promise<void> begun;
       all.run(all.other, all.other.core().default_device().default_queue(), [&begun] {
         begun.set_value();
         std::this_thread::sleep_for(std::chrono::milliseconds(500));
       });
       begun.get_future().wait();
       std::thread{[&all] { static_cast<void>(all.other.host_view()); }}.detach();  // waits with the lock
       all.run(all.x, all.queue, [&all] {
         all.reached.set_value();
         static_cast<void>(all.other.valid_on_host());
       });
       all.reached.get_future().wait();
     }},
};

class ProcessInState : public ::testing::TestWithParam<std::tuple<std::string, char const*, End>> {
 protected:
  ProcessInState() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_P(ProcessInState, Ends) {
  auto const& [state, on, end] = GetParam();
  auto const scenario = [&] {
    // Never destroyed: kernels and another thread go on with it until the process has ended.
    static auto& all = *new Setting(std::string_view(on) == "cpu" ? device("cpu") : make_sim({}));
    states.find(state)->second(all);
    ensure_resident(end);
  };
  if (end == End::signal) {
    EXPECT_EXIT(scenario(), KilledBySignal(SIGINT), "");
  } else {
    EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
  }
}

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (auto const& [name, state] : states) result.push_back(name);
  return result;
}

INSTANTIATE_TEST_SUITE_P(All, ProcessInState,
                         ::testing::Combine(::testing::ValuesIn(names()), ::testing::Values("cpu", "sim"),
                                            ::testing::Values(End::exit, End::exit_on_another_thread, End::signal)),
                         [](auto const& test) {
                           auto const end = std::get<2>(test.param);
                           return std::get<0>(test.param) + "_" + std::get<1>(test.param) +
                                  (end == End::exit     ? "_exit"
                                   : end == End::signal ? "_signal"
                                                        : "_exit_on_another_thread");
                         });

}  // namespace
}  // namespace unimem
