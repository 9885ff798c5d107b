#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "device/gate.hpp"
#include "forked_child.hpp"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

// Buffers when their process ends, and in a child that it forks.

namespace unimem::testing {
namespace {

using ::testing::ExitedWithCode;

/// Whether a thread of this process sleeps, by what the system says of it.
bool is_asleep(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(file, text);
  auto const state = text.rfind(") ");
  return state != std::string::npos && text.compare(state + 2, 1, "S") == 0;
}

/// Scenarios in processes of their own, as death tests that do not die.
class ProcessWithBuffers : public ::testing::Test {
 protected:
  ProcessWithBuffers() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  [[nodiscard]] static Device& slow_sim() {
    static auto& sim = make_sim({.latency = std::chrono::milliseconds(1)});
    return sim;
  }
  [[nodiscard]] static BufferOptions on(Device& device) {
    BufferOptions options;
    options.device = &device;
    return options;
  }
  /// Much more work than anybody waits for.
  static void keep_busy(UnifiedBuffer<std::uint32_t>& buffer) {
    buffer.fill(1);
    buffer.prefetch();
    for (std::uint32_t i = 0; i < 5000; ++i) {
      Operand const operand{&buffer.core(), {0, buffer.size_bytes()}, Intent::write};
      auto& queue = slow_sim().default_queue();
      use_on_device(queue, {&operand, 1}, [&](std::span<const DeviceMemory> memory, std::span<const Event>) {
        return queue.fill(memory.front(), std::as_bytes(std::span{&i, 1}));
      });
    }
  }
};

TEST_F(ProcessWithBuffers, ExitsPromptlyDespiteWorkOnStaticBuffers) {
  auto const begin = std::chrono::steady_clock::now();
  auto const scenario = [] {
    // Made before the manager and the device that serve it, so destroyed after whatever of them is destroyed.
    static std::optional<UnifiedBuffer<std::uint32_t>> early;
    static auto& device = slow_sim();
    early.emplace(1000, on(device));
    static UnifiedBuffer<std::uint32_t> buffer(1000, on(device));
    static auto const slice = buffer.slice(0, 10);
    keep_busy(*early);
    keep_busy(buffer);
    static auto late = buffer.clone();
    std::exit(late.core().default_device().default_queue().record().ready() ? 1 : 7);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30)) << "what nobody waits for is not done";
}

TEST_F(ProcessWithBuffers, ExitsCleanlyWithUnfreedLeasesMappingsAndBuffers) {
  auto const scenario = [] {
    static DeviceSpan<std::uint32_t> lease;
    static Mapping<std::uint32_t> mapping;
    static auto* const never_destroyed = new UnifiedBuffer<std::uint32_t>(1000, on(slow_sim()));
    {
      UnifiedBuffer<std::uint32_t> buffer(1000, on(slow_sim()));
      buffer.fill(1);
      lease = buffer.device(slow_sim().default_queue());
      mapping = buffer.map(MapMode::read_write);
    }
    keep_busy(*never_destroyed);
    std::exit(mapping[999] == 1 ? 7 : 1);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(ProcessWithBuffers, ExitsFromAKernelThatStaticBuffersAwait) {
  auto const scenario = [] {
    alarm(30);
    static UnifiedBuffer<std::uint32_t> looked_at(1000, on(slow_sim())), left_alone(1000, on(slow_sim()));
    static std::vector<std::uint32_t> memory(1000);
    static auto wrapped = default_manager().wrap(memory.data(), 1000, Location::host, Ownership::borrow());
    std::vector<Operand> operands;
    for (auto* const buffer : {&looked_at, &left_alone, &wrapped}) {
      buffer->fill(1);
      operands.push_back({&buffer->core(), {0, 4000}, Intent::read_write});
    }
    auto& queue = slow_sim().default_queue();
    static std::atomic<bool> go{false};
    static auto const main_thread = ::gettid();
    auto const exits = slow_sim().compile({"exits", "", [](auto, auto, auto, auto) {
                                             while (!go) std::this_thread::yield();
                                             // Not before the main thread waits, if that does not run this itself.
                                             while (::gettid() != main_thread && !is_asleep(main_thread)) {
                                               std::this_thread::yield();
                                             }
                                             std::exit(7);
                                           }});
    use_on_device(queue, operands, [&](std::span<const DeviceMemory> of, std::span<const Event> needs) {
      std::vector<KernelArgument> arguments(of.size());
      for (std::size_t i = 0; i < of.size(); ++i) arguments[i].memory = of[i];
      return queue.run(exits, Range{1}, arguments, needs);
    });
    wrapped.sync_to_host_async();  // borrowed memory waits for its work before it is its owner's again
    go = true;
    std::ignore = looked_at.to_vector();  // waits for the kernel, and maybe runs it itself
    std::_Exit(1);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(ProcessWithBuffers, ExitsCleanlyWhileThreadsGoOnUsingBuffers) {
  auto const scenario = [] {
    // Of the heap: no thread may use what exit destroys under it.
    static auto& buffer = *new UnifiedBuffer<std::uint32_t>(1000, on(slow_sim()));
    buffer.fill(3);
    buffer.sync_to_device();
    std::thread([] {
      for (;;) static_cast<void>(std::as_const(buffer).prefetch());
    }).detach();
    std::exit(std::as_const(buffer).at(0) == 3 ? 7 : 1);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

class ForkedChild : public BufferTest {
 protected:
  Queue first = sim.create_queue();
};

TEST_F(ForkedChild, UsesHostDataAndIsRefusedTheDevice) {
  auto buffer = synchronized();
  UnifiedBuffer<std::uint32_t> fresh(100, on_sim());
  EXPECT_EQ(in_child([&] {
              EXPECT_HERE(buffer.to_vector() == counting(100));
              buffer.host()[5] = 500;
              buffer.fill(7, 90, 10);
              EXPECT_HERE(buffer.state() == BufferState::host_dirty || buffer.state() == BufferState::mixed ||
                          buffer.state() == BufferState::device_dirty);
              EXPECT_HERE(is_refused([&] { buffer.sync_to_device(); }));
              EXPECT_HERE(is_refused([&] { std::ignore = buffer.device(first); }));
              EXPECT_HERE(std::as_const(buffer).at(5) == 500);
              EXPECT_HERE(is_refused([&] { fresh.copy_from(counting(100, 9)); }));  // it has no memory yet
              EXPECT_HERE(is_refused([&] { buffer.resize(200); }));
              EXPECT_HERE(is_refused([&] { std::ignore = buffer.clone(); }));  // by its manager
              auto of_child = on_sim();
              of_child.manager = nullptr;
              UnifiedBuffer<std::uint32_t> own(100, std::move(of_child));
              own.copy_from(counting(100, 9));
              own.host()[0] = 1;
              own.resize(200);
              EXPECT_HERE(own.at(99) == 108);
              EXPECT_HERE(is_refused([&] { std::ignore = own.device_view(); }));
              EXPECT_HERE(own.at(99) == 108);
              auto copied = own.clone();
              EXPECT_HERE(copied.at(99) == 108);
              return 7;
            }),
            7);
  EXPECT_EQ(buffer.to_vector(), counting(100)) << "the parent goes on as if nothing had been";
  EXPECT_EQ(device_bytes(buffer, sim), counting(100));
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400, 1, 0, 0}));
}

TEST_F(ForkedChild, HasTheHostSideOfDataInFlight) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  std::optional<Gate> gate{first};
  auto const on_its_way = buffer.prefetch(first);
  EXPECT_EQ(in_child([&] {
              EXPECT_HERE(std::as_const(buffer).host_view()[99] == 99);
              EXPECT_HERE(is_refused([&] { on_its_way.wait(); }));
              EXPECT_HERE(is_refused([&] { buffer.sync_to_device(); }));
              EXPECT_HERE(buffer.to_vector() == counting(100));
              buffer.host()[0] = 4;
              EXPECT_HERE(std::as_const(buffer).at(0) == 4);
              return 7;
            }),
            7);
  gate.reset();
  EXPECT_EQ(device_bytes(buffer, sim), counting(100));
  EXPECT_EQ(buffer.to_vector(), counting(100));
}

TEST_F(ForkedChild, IsRefusedBytesThatAKernelIsWriting) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  std::optional<Gate> gate{first};
  add(first, buffer.slice(0), 1);
  EXPECT_EQ(in_child([&] {
              EXPECT_HERE(is_refused([&] { std::ignore = std::as_const(buffer).host_view(); }));
              EXPECT_HERE(is_refused([&] { std::ignore = buffer.to_vector(); }));
              return 7;
            }),
            7);
  gate.reset();
  EXPECT_EQ(buffer.to_vector(), counting(100, 1));
}

TEST_F(ForkedChild, IsRefusedBytesThatOnlyADeviceHas) {
  auto buffer = synchronized();
  set(first, buffer.slice(50, 50), 9).wait();
  EXPECT_EQ(in_child([&] {
              EXPECT_HERE(std::as_const(buffer).host_view(0, 50)[49] == 49);
              EXPECT_HERE(is_refused([&] { std::ignore = std::as_const(buffer).host_view(); }));
              EXPECT_HERE(is_refused([&] { std::ignore = buffer.to_vector(); }));
              std::ranges::fill(buffer.host_overwrite(50, 50), 3U);
              EXPECT_HERE(buffer.to_vector()[99] == 3);
              return 7;
            }),
            7);
  auto expected = counting(100);
  std::fill_n(expected.begin() + 50, 50, 9U);
  EXPECT_EQ(buffer.to_vector(), expected);
}

TEST_F(ForkedChild, DestroysBuffersInUseByTheParent) {
  std::optional<UnifiedBuffer<std::uint32_t>> buffer{synchronized()};
  std::optional<Gate> gate{first};
  auto const work = add(first, buffer->slice(0), 1);
  EXPECT_EQ(in_child([&] {
              buffer.reset();
              return 7;
            }),
            7);
  EXPECT_FALSE(work.ready());
  gate.reset();
  EXPECT_EQ(buffer->to_vector(), counting(100, 1));
}

}  // namespace
}  // namespace unimem::testing
