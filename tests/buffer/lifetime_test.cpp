#include "buffer/buffer_fixture.hpp"
#include "device/gate.hpp"

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace unimem::testing {
namespace {

using ::testing::Each;

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

}  // namespace
}  // namespace unimem::testing
