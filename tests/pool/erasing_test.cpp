#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "pool/erased_blocks.hpp"
#include "pool/scripted_device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// What owners of blocks leave in them, in pools that are to overwrite it.

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Homes, ErasedBlocks,
    ::testing::Values(
        ErasingHome{"cpu_host", []() -> Device& { return device("cpu"); }, Location::host},
        ErasingHome{"cpu_pinned", []() -> Device& { return device("cpu"); }, Location::pinned},
        ErasingHome{"cpu_pages", []() -> Device& { return device("cpu"); }, Location::device, PoolBacking::pages},
        ErasingHome{"sim", []() -> Device& { return make_sim({.memory_bytes = 64 * MiB}); }, Location::device},
        ErasingHome{"sim_pages", []() -> Device& { return make_sim({.memory_bytes = 64 * MiB}); }, Location::device,
                    PoolBacking::pages}),
    [](auto const& home) { return home.param.name; });

constexpr std::uint64_t marks = 0x5EC4E75EC4E75E00U;

TEST(ErasedAcrossThreads, NobodyReadsWhatAnotherWrote) {
  for (auto const backing : {PoolBacking::allocations, PoolBacking::pages}) {
    MemoryPool pool{device("cpu"), Location::host, {.zero_on_release = true, .backing = backing}};
    std::atomic<std::size_t> strange{0};
    {
      std::vector<std::jthread> threads;
      for (unsigned thread = 1; thread <= 3; ++thread) {
        threads.emplace_back([&, thread] {
          std::mt19937 random{thread};
          std::vector<Allocation> blocks;
          for (int round = 0; round < 1'000; ++round) {
            auto block = pool.acquire((1 + random() % 64) * 512);
            auto* const words = static_cast<std::uint64_t*>(block.data());
            auto const count = block.size() / 8;
            // Fresh memory holds what it likes; nobody's mark, though.
            if (std::any_of(words, words + count, [](auto word) { return word >= marks && word < marks + 4; }))
              ++strange;
            std::fill_n(words, count, marks + thread);
            blocks.push_back(std::move(block));
            if (blocks.size() == 6) blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(random() % 6));
          }
        });
      }
    }
    EXPECT_EQ(strange, 0U);
    EXPECT_GT(pool.statistics().pool_hits, 100U) << "or there was nothing to see";
    pool.validate();
  }
}

/// A pool of a device that fails to overwrite a block, and is well otherwise.
class FailedErasure : public ::testing::TestWithParam<PoolBacking> {
 protected:
  void TearDown() override { EXPECT_EQ(sim.memory_info().free_bytes, 64 * MiB) << "nothing stays behind"; }

  /// Leaves a mark in a block and releases it; the device fails at overwriting it so many times.
  void spoil(Allocation block, std::uint64_t tries) {
    auto const bytes = block.size();
    std::vector<std::uint64_t> const secret(bytes / 8, mark);
    sim.default_queue().upload(block.memory(), secret.data(), bytes).wait();
    set_sim_faults(sim, {.fail_call = 1});
    block.release();
    for (std::uint64_t again = 1; again < tries; ++again) {
      sim.synchronize();
      set_sim_faults(sim, {.fail_call = 1});
    }
    sim.synchronize();
  }
  [[nodiscard]] std::vector<std::uint64_t> read(Allocation const& block) {
    std::vector<std::uint64_t> words(block.size() / 8);
    sim.default_queue().download(words.data(), block.memory(), block.size()).wait();
    return words;
  }

  static constexpr std::uint64_t mark = 0x5EC4E75EC4E75EC4U;
  Device& sim = make_sim({.memory_bytes = 64 * MiB});
};

TEST_P(FailedErasure, IsRepeatedBeforeTheNextUse) {
  MemoryPool pool{sim, Location::device, {.zero_on_release = true, .backing = GetParam()}};
  spoil(pool.acquire(MiB), 1);
  auto const next = pool.acquire(MiB);
  EXPECT_EQ(pool.statistics().pool_hits, 1U) << "it is the same block";
  EXPECT_THAT(read(next), ::testing::Each(0U));
  pool.validate();
}

TEST_P(FailedErasure, TakesABlockOutOfUse) {
  {
    MemoryPool pool{sim, Location::device, {.zero_on_release = true, .backing = GetParam()}};
    auto block = pool.acquire(4 * MiB), other = pool.acquire(4 * MiB);
    auto const held = pool.statistics().reserved_bytes;
    spoil(std::move(block), 2);
    auto const next = pool.acquire(4 * MiB);
    EXPECT_THAT(read(next), ::testing::Not(::testing::Contains(mark)));
    auto const statistics = pool.statistics();
    EXPECT_EQ(statistics.active_bytes + statistics.total_pooled_bytes + statistics.slack_bytes,
              statistics.reserved_bytes);
    if (GetParam() == PoolBacking::pages) {
      EXPECT_EQ(statistics.active_allocations, 3U) << "nobody has it, and nobody gets it";
      EXPECT_EQ(statistics.reserved_bytes, held + 4 * MiB);
    } else {
      EXPECT_EQ(statistics.active_allocations, 2U);
      EXPECT_EQ(statistics.reserved_bytes, held);
    }
    pool.trim();
    pool.validate();
    EXPECT_EQ(sim.memory_info().free_bytes, 64 * MiB - pool.statistics().reserved_bytes);
  }
}

TEST_P(FailedErasure, RepeatedByAWalkEndsItsUse) {
  Allocation outlives;
  {
    MemoryPool pool{sim, Location::device, {.zero_on_release = true, .backing = GetParam()}};
    outlives = pool.acquire(MiB);
    spoil(pool.acquire(4 * MiB), 2);
    pool.trim();
    pool.validate();
    EXPECT_THAT(read(pool.acquire(4 * MiB)), ::testing::Not(::testing::Contains(mark)));
  }
  outlives.release();
}

INSTANTIATE_TEST_SUITE_P(Backings, FailedErasure, ::testing::Values(PoolBacking::allocations, PoolBacking::pages),
                         [](auto const& backing) { return std::string(to_string(backing.param)); });

/// A pool whose blocks have work pending for as long as the test says.
class ErasureBehindWork : public ::testing::Test {
 protected:
  /// A released block that the first queue still works on.
  DeviceMemory leave_pending() {
    auto block = pool.acquire(MiB);
    auto const memory = block.memory();
    block.release(first_script->work());
    return memory;
  }

  ScriptedDevice device{64 * MiB};
  std::pair<Queue, Script*> first_pair = device.scripted_queue(), second_pair = device.scripted_queue();
  Queue &first = first_pair.first, &second = second_pair.first;
  Script *first_script = first_pair.second, *second_script = second_pair.second;
  MemoryPool pool{device, Location::device, {.zero_on_release = true}};
};

TEST_F(ErasureBehindWork, IsDoneByTheNextOwnersQueue) {
  auto const pending = leave_pending();
  auto const next = pool.acquire(MiB, {.queue = &first});
  EXPECT_EQ(next.memory(), pending) << "it is the same block";
  EXPECT_THAT(first_script->filled, ::testing::ElementsAre(pending));
  EXPECT_EQ(first_script->host_waits, 0);
}

TEST_F(ErasureBehindWork, IsDoneByAnotherQueueBehindThatWork) {
  auto const pending = leave_pending();
  auto const next = pool.acquire(MiB, {.queue = &second});
  EXPECT_EQ(next.memory(), pending) << "it is the same block";
  EXPECT_THAT(second_script->filled, ::testing::ElementsAre(pending));
  EXPECT_EQ(second_script->ordered_behind.size(), 1U) << "behind the work of the first queue";
  EXPECT_EQ(first_script->host_waits + second_script->host_waits, 0);
  EXPECT_EQ(device.queues(), 2U) << "no queue of the pool's was held up by anybody's work";
}

TEST_F(ErasureBehindWork, ThatAQueueRefusesIsItsOwnersError) {
  auto const pending = leave_pending();
  second_script->on_fill = [] { throw DeviceError("scripted", "fill", -1, "SCRIPTED_FAILURE"); };
  EXPECT_THROW(static_cast<void>(pool.acquire(MiB, {.queue = &second})), DeviceError);
  EXPECT_EQ(pool.statistics().active_allocations, 0U);
  pool.validate();
  auto const next = pool.acquire(MiB, {.queue = &first});
  EXPECT_EQ(next.memory(), pending);
  EXPECT_THAT(first_script->filled, ::testing::ElementsAre(pending)) << "it was not forgotten";
}

/// Statics with work pending, and with it the overwriting; std::exit destroys them after everything else that lives in
/// the device.
[[noreturn]] void exit_with_overwriting_pending() {
  auto& sim = make_sim({.memory_bytes = 16 * MiB, .latency = std::chrono::milliseconds{20}});
  static std::vector<std::uint64_t> const words(1024);
  static MemoryPool pool{sim, Location::device, {.zero_on_release = true}};
  static auto held = pool.acquire(MiB);  // destroyed before the pool
  auto block = pool.acquire(8 * KiB);
  block.release(sim.default_queue().upload(block.memory(), words.data(), 8 * KiB));
  std::exit(0);  // NOLINT(concurrency-mt-unsafe)
}

TEST(ErasingAtExitDeathTest, AStaticPoolThatOverwritesEndsCleanly) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_overwriting_pending(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace unimem
