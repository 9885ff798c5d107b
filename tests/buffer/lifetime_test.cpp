#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "device/gate.hpp"
#include "forked_child.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace unimem::testing {
namespace {

/// Whether a thread of this process sleeps, by what the system says of it.
bool is_asleep(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(file, text);
  auto const state = text.rfind(") ");
  return state != std::string::npos && text.compare(state + 2, 1, "S") == 0;
}

using ::testing::Each;
using ::testing::ExitedWithCode;

class Lifetime : public BufferTest {
 protected:
  /// Copies one buffer to another on the device when its turn comes.
  static Event copy_behind(Queue& queue, UnifiedBuffer<std::uint32_t>& from, UnifiedBuffer<std::uint32_t>& to) {
    std::array const operands{Operand{&from.core(), {0, from.size_bytes()}, Intent::read},
                              Operand{&to.core(), {0, to.size_bytes()}, Intent::write}};
    return run(queue, operands, [](std::span<const HostArgument> arguments) {
      std::memcpy(arguments[1].data, arguments[0].data, arguments[0].bytes);
    });
  }

  [[nodiscard]] std::size_t active() { return manager.pool(sim, Location::device).statistics().active_bytes; }

  Queue first = sim.create_queue();
  Queue second = sim.create_queue();
};

TEST_F(Lifetime, DestroyingABufferDoesNotAwaitItsWork) {
  auto result = synchronized();
  std::optional<Gate> gate{first};
  Event work;
  {
    auto source = synchronized();
    add(first, source.slice(0), 1000);
    work = copy_behind(first, source, result);
  }
  EXPECT_FALSE(work.ready()) << "the buffer is gone and its work has not begun";
  // Blocks of its size, for another queue: whoever is given its own goes behind its work.
  std::vector<UnifiedBuffer<std::uint32_t>> intruders;
  for (int i = 0; i < 5; ++i) {
    intruders.emplace_back(100, on_sim());
    set(second, intruders.back().slice(0), 666);
  }
  EXPECT_FALSE(work.ready());
  gate.reset();
  EXPECT_EQ(result.to_vector(), counting(100, 1000));
  for (auto& intruder : intruders) EXPECT_THAT(intruder.to_vector(), Each(666U));
  EXPECT_EQ(device_bytes(result, sim), counting(100, 1000));
  intruders.clear();
  result.free();
  EXPECT_EQ(active(), 0U) << "all of it returned";
}

TEST_F(Lifetime, DestroyingAnUploadsSourceDoesNotWait) {
  auto kept = synchronized();
  std::optional<Gate> gate{first};
  Event work;
  {
    UnifiedBuffer<std::uint32_t> source(100, on_sim());
    source.copy_from(counting(100, 70));
    work = copy_behind(first, source, kept);
  }
  EXPECT_FALSE(work.ready());
  // Host memory of the same size: who is given the source's waits for it.
  UnifiedBuffer<std::uint32_t> intruder(100, on_sim());
  std::jthread writer([&] { intruder.fill(666); });
  gate.reset();
  writer.join();
  EXPECT_EQ(kept.to_vector(), counting(100, 70));
  EXPECT_THAT(intruder.to_vector(), Each(666U));
  EXPECT_EQ(moved(kept.statistics()), (Moved{400, 1, 400, 1}));
}

TEST_F(Lifetime, AMovedBufferTakesItsWorkAlong) {
  auto buffer = synchronized();
  std::optional<Gate> gate{first};
  auto const work = add(first, buffer.slice(0), 5);
  auto moved_to = std::move(buffer);
  EXPECT_FALSE(work.ready());
  EXPECT_EQ(moved_to.state(), BufferState::device_dirty);
  gate.reset();
  EXPECT_EQ(moved_to.to_vector(), counting(100, 5));
  EXPECT_EQ(moved(moved_to.statistics()), (Moved{400, 1, 400, 1}));
  EXPECT_EQ(device_bytes(moved_to, sim), counting(100, 5));
}

TEST_F(Lifetime, ReassigningABufferLetsItsOldWorkFinish) {
  auto buffer = synchronized(), result = synchronized();
  std::optional<Gate> gate{first};
  add(first, buffer.slice(0), 5);
  auto const work = copy_behind(first, buffer, result);
  buffer = UnifiedBuffer<std::uint32_t>(100, on_sim());
  buffer.fill(3);
  set(second, buffer.slice(50, 50), 4);
  EXPECT_FALSE(work.ready());
  gate.reset();
  EXPECT_EQ(result.to_vector(), counting(100, 5));
  auto expected = std::vector<std::uint32_t>(100, 3U);
  std::fill_n(expected.begin() + 50, 50, 4U);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

TEST_F(Lifetime, FreeingABufferLetsItsOldWorkFinish) {
  auto buffer = synchronized(), result = synchronized();
  std::optional<Gate> gate{first};
  set(first, buffer.slice(0), 5);
  auto const work = copy_behind(first, buffer, result);
  buffer.free();
  EXPECT_FALSE(work.ready());
  set(second, buffer.slice(0), 6);
  EXPECT_FALSE(work.ready());
  gate.reset();
  EXPECT_THAT(result.to_vector(), Each(5U));
  EXPECT_THAT(buffer.to_vector(), Each(6U)) << "what the old work wrote is nobody's any more";
  EXPECT_THAT(device_bytes(buffer, sim), Each(6U));
}

TEST_F(Lifetime, ReadersKeepTheirMemoryDespiteALaterMark) {
  auto result = synchronized();
  std::optional<Gate> gate{first};
  Event work;
  {
    auto source = synchronized();
    work = copy_behind(first, source, result);
    auto unrelated = synchronized();
    source.mark_device_dirty(0, all, set(second, unrelated.slice(0), 1));
  }
  std::vector<UnifiedBuffer<std::uint32_t>> intruders;
  for (int i = 0; i < 5; ++i) {
    intruders.emplace_back(100, on_sim());
    set(second, intruders.back().slice(0), 666);
  }
  EXPECT_FALSE(work.ready());
  gate.reset();
  EXPECT_EQ(result.to_vector(), counting(100)) << "nobody was given the memory it was still to read";
}

TEST_F(Lifetime, AWriteAwaitsEarlierReadersDespiteAMark) {
  auto source = synchronized(), result = synchronized(), unrelated = synchronized();
  std::optional<Gate> gate{first};
  auto const reads = copy_behind(first, source, result);
  source.mark_device_dirty(0, all, set(second, unrelated.slice(0), 1));
  auto const writes = set(second, source.slice(0), 9);
  EXPECT_FALSE(writes.ready());
  gate.reset();
  writes.wait();
  EXPECT_TRUE(reads.ready());
  EXPECT_EQ(result.to_vector(), counting(100));
  EXPECT_THAT(source.to_vector(), Each(9U));
}

TEST_F(Lifetime, RapidlyRecycledBuffersKeepEveryPattern) {
  auto& slow = make_sim({.memory_bytes = 1 << 20, .latency = std::chrono::milliseconds(1)});
  auto options = on_sim();
  options.device = &slow;
  std::array queues{slow.create_queue(), slow.create_queue()};
  std::vector<std::pair<UnifiedBuffer<std::uint32_t>, std::uint32_t>> results;
  for (std::uint32_t round = 0; round < 40; ++round) {
    UnifiedBuffer<std::uint32_t> source(1000, options), result(1000, options);
    set(queues[round % 2], source.slice(0), round);
    copy_behind(queues[round / 2 % 2], source, result);
    if (round % 4 == 0) results.emplace_back(std::move(result), round);
  }
  for (auto& [result, round] : results) EXPECT_THAT(result.to_vector(), Each(round));
}

TEST_F(Lifetime, TheDestructorAwaitsWorkOnBorrowedMemory) {
  std::vector<std::uint32_t> memory = counting(100);
  auto result = synchronized();
  {
    std::optional<Gate> gate{first};
    auto borrowed = manager.wrap(memory.data(), memory.size(), Location::host, Ownership::borrow());
    copy_behind(first, borrowed, result);
    gate.reset();
  }
  std::ranges::fill(memory, 9U);
  EXPECT_EQ(result.to_vector(), counting(100)) << "its destructor did wait: the memory is not the library's to keep";
}

TEST_F(Lifetime, TheDestructorAwaitsEvictionIntoBorrowedMemory) {
  constexpr std::size_t count = 250'000;
  auto& small = make_sim({.memory_bytes = 1 << 20});
  auto options = on_sim();
  options.device = &small;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::uint32_t> memory(count, 1);
    std::optional borrowed{manager.wrap(memory.data(), count, Location::host, Ownership::borrow())};
    std::optional<Gate> gate{small.default_queue()};
    set(small.default_queue(), borrowed->slice(0), 3);
    std::jthread const evicting([&] {
      UnifiedBuffer<std::uint32_t> greedy(count, options);
      greedy.fill(5);
      greedy.sync_to_device();
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::jthread const opening([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      gate.reset();
    });
    borrowed.reset();
    std::ranges::fill(memory, 7U);
    small.default_queue().synchronize();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_THAT(memory, Each(7U));
  }
}

/// Work that is the last owner of its buffer, on a device that has room for one buffer at a time.
class LastOwners : public BufferTest {
 protected:
  using Buffer = UnifiedBuffer<std::uint32_t>;
  using Last = std::shared_ptr<std::optional<BufferSlice<std::uint32_t>>>;
  static constexpr std::size_t count = 150'000;

  [[nodiscard]] static std::vector<std::uint32_t> all_of(std::uint32_t value) { return std::vector(count, value); }
  [[nodiscard]] Buffer on_small(std::uint32_t value) {
    auto options = on_sim();
    options.device = &small;
    Buffer buffer(count, options);
    buffer.copy_from(all_of(value));
    return buffer;
  }
  /// Uses a buffer whose last slice goes with the work: during it, or as it ends.
  void use_and_drop(bool during) {
    auto buffer = on_small(1);
    auto const last = std::make_shared<Last::element_type>(buffer.slice(0));
    Operand const operand{&buffer.core(), {0, count * 4}, Intent::read_write};
    run(small.default_queue(), {&operand, 1}, [last, during](std::span<const HostArgument>) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (during) last->reset();
    });
  }

  Device& small = make_sim({.memory_bytes = std::size_t{1} << 20});
};

TEST_F(LastOwners, MayEndWhileTheirBufferIsEvicted) {
  for (bool const during : {false, true}) {
    for (std::uint32_t round = 0; round < 50; ++round) {
      use_and_drop(during);
      auto next = on_small(round);
      next.sync_to_device(small);  // takes the memory of the one before
      ASSERT_TRUE(next.to_vector() == all_of(round));
    }
  }
}

TEST_F(LastOwners, MayEndWhileManyThreadsEvictTheirBuffers) {
  std::vector<std::jthread> threads;
  for (std::uint32_t number = 0; number < 4; ++number) {
    threads.emplace_back([this, number] {
      for (std::uint32_t round = 0; round < 10; ++round) {
        use_and_drop(round % 2 == 0);
        auto next = on_small(number);
        next.sync_to_device(small);
        ASSERT_TRUE(next.to_vector() == all_of(number));
      }
    });
  }
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

class ForkedChild : public Lifetime {};

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
