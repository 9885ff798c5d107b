#include <unimem/buffer/sleep.hpp>
#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "buffer/spilling_fixture.hpp"
#include "core/sizes.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// Buffers that give their device memory back for a while.

namespace unimem::testing {
namespace {

using Word = std::uint32_t;
constexpr std::size_t count = 4 * MiB / sizeof(Word);
constexpr std::size_t bytes = count * sizeof(Word);

class Sleep : public ::testing::Test {
 protected:
  using Buffer = UnifiedBuffer<Word>;

  [[nodiscard]] static std::vector<Word> words(Word first, std::size_t many = count) {
    std::vector<Word> words(many);
    std::iota(words.begin(), words.end(), first);
    return words;
  }
  /// Current on the device alone.
  [[nodiscard]] Buffer on_device(std::string name, Word first, MemoryManager& of) {
    BufferOptions options;
    options.manager = &of;
    options.device = &sim;
    options.name = std::move(name);
    Buffer buffer(Shape(count), std::move(options));
    buffer.copy_from(words(first));
    static_cast<void>(buffer.device(sim));
    buffer.release_host();
    return buffer;
  }
  [[nodiscard]] Buffer on_device(std::string name, Word first) { return on_device(std::move(name), first, manager); }
  [[nodiscard]] std::size_t in_use() const {
    auto const memory = sim.memory_info();
    return memory.total_bytes - memory.free_bytes;
  }

  MemoryManager manager;
  Device& sim = make_sim({.memory_bytes = 64 * MiB});
};

TEST_F(Sleep, GivesTheMemoryOfADeviceBackAndWakeBringsItAgain) {
  auto one = on_device("model/one", 1), two = on_device("model.two", 2);
  auto other = on_device("models", 3);
  auto& pool = manager.pool(sim, Location::device);
  auto const before = in_use();
  auto const moved = sim.transfers();
  EXPECT_GE(sleep(manager, "model"), 2 * bytes);
  EXPECT_LE(in_use(), before - 2 * bytes);
  EXPECT_LT(pool.bytes_in_use(), 2 * bytes) << "the other's";
  EXPECT_EQ(pool.statistics().total_pooled_bytes, 0U) << "nothing is kept";
  EXPECT_EQ(sim.transfers().device_to_host_bytes - moved.device_to_host_bytes, 2 * bytes);
  EXPECT_TRUE(other.valid_on(sim));
  EXPECT_FALSE(one.valid_on(sim));
  EXPECT_TRUE(one.valid_on_host());

  EXPECT_EQ(wake(manager, "model"), 2 * bytes);
  EXPECT_EQ(sim.transfers().host_to_device_bytes - moved.host_to_device_bytes, 2 * bytes);
  EXPECT_TRUE(one.valid_on(sim));
  EXPECT_TRUE(two.valid_on(sim));
  auto const seen = one.device_view(sim);
  EXPECT_EQ(std::vector<Word>(seen.data(), seen.data() + count), words(1));
  EXPECT_EQ(two.to_vector(), words(2));
  EXPECT_EQ(other.to_vector(), words(3));
}

TEST_F(Sleep, OfAllLeavesTheDeviceEmpty) {
  auto& fresh = make_sim({.memory_bytes = 64 * MiB});
  BufferOptions options;
  options.manager = &manager;
  options.device = &fresh;
  options.name = "only";
  Buffer buffer(Shape(count), std::move(options));
  buffer.copy_from(words(5));
  static_cast<void>(buffer.device(fresh));
  EXPECT_GE(sleep(manager, ""), bytes);
  auto const memory = fresh.memory_info();
  EXPECT_EQ(memory.free_bytes, memory.total_bytes);
  EXPECT_EQ(wake(manager, ""), bytes);
  EXPECT_TRUE(buffer.valid_on(fresh));
  EXPECT_EQ(buffer.to_vector(), words(5));
}

TEST_F(Sleep, WhatTheHostHasAlreadyIsNotCopiedAgain) {
  auto buffer = on_device("synced", 1);
  buffer.sync_to_host();
  auto const before = sim.transfers().device_to_host_bytes;
  EXPECT_GE(sleep(manager, "synced"), bytes);
  EXPECT_EQ(sim.transfers().device_to_host_bytes, before);
  EXPECT_EQ(wake(manager, "synced"), bytes);
}

TEST_F(Sleep, GoesToTheSpillFolderWhereTheHostHasNoRoom) {
  Directory const directory;
  MemoryManager small(ManagerOptions{.spill = {.directory = directory.path()}});
  small.set_limit(device("cpu"), bytes + bytes / 2);
  std::vector<Buffer> buffers;
  for (Word i = 0; i < 4; ++i) buffers.push_back(on_device("layer." + std::to_string(i), i, small));
  EXPECT_GE(sleep(small, "layer"), 4 * bytes);
  EXPECT_GE(small.statistics().spill_files, 3U);
  EXPECT_EQ(small.pool(sim, Location::device).bytes_in_use(), 0U);
  EXPECT_EQ(wake(small, "layer"), 4 * bytes);
  for (Word i = 0; i < 4; ++i) {
    EXPECT_TRUE(buffers[i].valid_on(sim));
    EXPECT_EQ(buffers[i].to_vector(), words(i));
  }
}

TEST_F(Sleep, GoesStraightToTheSpillFolderWhereItIsLargerThanTheHostMayBe) {
  Directory const directory;
  MemoryManager small(ManagerOptions{.spill = {.directory = directory.path()}});
  auto buffer = on_device("large", 1, small);
  buffer.release_host();
  small.set_limit(device("cpu"), bytes / 2);
  EXPECT_GE(sleep(small, "large"), bytes);
  EXPECT_EQ(small.statistics().spill_files, 1U);
  EXPECT_EQ(small.pool(sim, Location::device).bytes_in_use(), 0U);
  EXPECT_LE(small.pool(device("cpu"), Location::host).statistics().reserved_bytes, bytes / 2);
  EXPECT_EQ(wake(small, "large"), bytes);
  auto const seen = std::as_const(buffer).device_view(sim);
  EXPECT_EQ(std::vector<Word>(seen.data(), seen.data() + count), words(1));
}

TEST_F(Sleep, WithoutRoomAnywhereIsOutOfMemoryAndLosesNothing) {
  MemoryManager small;
  small.set_limit(device("cpu"), bytes + bytes / 2);
  auto one = on_device("a.one", 1, small), two = on_device("a.two", 2, small);
  EXPECT_THROW(sleep(small, "a"), OutOfMemory);
  EXPECT_THROW(wake(small, "a"), NotFound) << "it is awake";
  auto const all_of = [&](Buffer& buffer) {
    auto const seen = std::as_const(buffer).device_view(sim);
    return std::vector<Word>(seen.data(), seen.data() + count);
  };
  EXPECT_EQ(all_of(one), words(1));
  EXPECT_EQ(all_of(two), words(2));
}

TEST_F(Sleep, TwiceAndOfNothingIsRefused) {
  auto buffer = on_device("a.b.c", 1);
  try {
    sleep(manager, "a.x");
    FAIL();
  } catch (NotFound const& error) {
    EXPECT_EQ(error.name, "a.x");
    EXPECT_EQ(error.available, (std::vector<std::string>{"a.b.c"}));
  }
  EXPECT_THROW(wake(manager, "a"), NotFound);
  sleep(manager, "a.b");
  for (auto const* const tag : {"a.b", "a", "a.b.c", ""}) EXPECT_THROW(sleep(manager, tag), InvalidArgument) << tag;
  try {
    wake(manager, "a");
    FAIL();
  } catch (NotFound const& error) {
    EXPECT_EQ(error.available, (std::vector<std::string>{"a.b"}));
  }
  wake(manager, "a.b");
  EXPECT_THROW(wake(manager, "a.b"), NotFound);
  EXPECT_GE(sleep(manager, "a"), bytes);
  wake(manager, "a");
  EXPECT_EQ(buffer.to_vector(), words(1));
}

TEST_F(Sleep, LeasedBuffersAreRefusedBeforeAnythingMoves) {
  auto one = on_device("a.one", 1), two = on_device("a.two", 2);
  {
    auto const leased = two.device_view(sim);
    EXPECT_THROW(sleep(manager, "a"), InvalidArgument);
    EXPECT_TRUE(one.valid_on(sim));
    EXPECT_FALSE(one.valid_on_host());
  }
  EXPECT_GE(sleep(manager, "a"), 2 * bytes);
  wake(manager, "a");
}

TEST_F(Sleep, WhatDoesNotFitOnWakingIsSaidBeforeAnythingMoves) {
  auto one = on_device("a.one", 1), two = on_device("a.two", 2);
  sleep(manager, "a");
  manager.set_limit(sim, bytes + bytes / 2);
  auto const before = sim.transfers().host_to_device_bytes;
  try {
    wake(manager, "a");
    FAIL();
  } catch (OutOfMemory const& error) {
    EXPECT_GE(error.requested(), 2 * bytes);
    EXPECT_EQ(error.limit(), bytes + bytes / 2);
  }
  EXPECT_EQ(sim.transfers().host_to_device_bytes, before);
  EXPECT_FALSE(one.valid_on(sim));
  manager.set_limit(sim, 64 * MiB);
  EXPECT_EQ(wake(manager, "a"), 2 * bytes);
  EXPECT_EQ(two.to_vector(), words(2));
}

TEST_F(Sleep, UsedMeanwhileABufferComesBackByItself) {
  auto one = on_device("a.one", 1), two = on_device("a.two", 2);
  auto gone = std::make_unique<Buffer>(on_device("a.gone", 3));
  sleep(manager, "a");
  {
    auto const seen = one.device_view(sim);
    EXPECT_EQ(seen.data()[7], 8U);
  }
  two.slice(3, 1).fill(99U);
  gone.reset();
  EXPECT_EQ(wake(manager, "a"), bytes) << "the rest";
  auto expected = words(2);
  expected[3] = 99;
  auto const seen = two.device_view(sim);
  EXPECT_EQ(std::vector<Word>(seen.data(), seen.data() + count), expected) << "as it is now";
}

TEST_F(Sleep, WindowsComeBackAsTheyWere) {
  BufferOptions options;
  options.manager = &manager;
  options.device = &sim;
  options.name = "windows";
  Buffer buffer(Shape(count), std::move(options));
  manager.set_limit(sim, bytes / 2);  // or it would have memory for all of it
  buffer.copy_from(words(0));
  auto expected = words(0);
  for (auto const begin : {std::size_t{0}, count / 2}) {
    auto part = buffer.slice(begin, count / 8);
    auto const window = part.device(sim);
    window.data()[1] = expected[begin + 1] = 77;
  }
  auto const before = sim.transfers();
  auto const had = sleep(manager, "windows");
  EXPECT_LE(had, bytes / 2);
  EXPECT_EQ(in_use(), 0U);
  EXPECT_EQ(wake(manager, "windows"), 2 * (bytes / 8));
  EXPECT_EQ(sim.transfers().host_to_device_bytes - before.host_to_device_bytes, 2 * (bytes / 8));
  EXPECT_LE(in_use(), had + MiB);
  EXPECT_EQ(buffer.to_vector(), expected);
}

TEST_F(Sleep, ThreadsThatSleepAndWakeAndUseSeeEveryByte) {
  std::vector<Buffer> buffers;
  for (Word i = 0; i < 3; ++i) buffers.push_back(on_device("t" + std::to_string(i), i));
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (Word i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 20; ++round) {
        sleep(manager, "t" + std::to_string(i));
        auto const seen = std::as_const(buffers[i]).device_view(sim);
        if (seen.data()[100] != i + 100) ++wrong;
        wake(manager, "t" + std::to_string(i));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  for (Word i = 0; i < 3; ++i) EXPECT_EQ(buffers[i].to_vector(), words(i));
}

}  // namespace
}  // namespace unimem::testing
