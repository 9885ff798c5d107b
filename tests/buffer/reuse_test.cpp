#include "buffer/reuse.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace unimem::testing {
namespace {

/// Threads read host views and drop the buffers; others have what a device wrote arrive in the same blocks, by the
/// queue's thread or their own. More blocks than a thread keeps, so that they go from one to another. What was read
/// before a drop must have been read before the block is anybody's again: ThreadSanitizer sees whether it was.
TEST(Reuse, ReadsBeforeADropPrecedeTheNextDownload) {
  constexpr std::size_t count = 1024, blocks = 40, rounds = 60;
  MemoryManager manager;
  auto& sim = make_sim({.memory_bytes = std::size_t{16} << 20});
  BufferOptions options;
  options.manager = &manager;
  options.device = &sim;
  auto const pattern = [](std::size_t thread, std::size_t round, std::size_t at) {
    return static_cast<std::uint32_t>((thread << 24U) + (round << 12U) + at);
  };
  std::atomic<std::size_t> wrong{0};
  auto const check = [&](std::span<const std::uint32_t> seen, std::uint32_t expected) {
    for (auto const value : seen) wrong += value == expected ? 0 : 1;
  };
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      auto queue = sim.create_queue();
      for (std::size_t round = 0; round < rounds; ++round) {
        std::vector<UnifiedBuffer<std::uint32_t>> buffers;
        std::vector<std::span<const std::uint32_t>> views;
        for (std::size_t at = 0; at < blocks; ++at) {
          auto& buffer = buffers.emplace_back(Shape(count), options);
          auto const value = pattern(thread, round, at);
          if (thread % 2 == 0) {
            std::ranges::fill(buffer.host_overwrite(), value);
          } else {
            Operand const operand{&buffer.core(), {0, buffer.size_bytes()}, Intent::write};
            use_on_device(queue, {&operand, 1}, [&](std::span<const DeviceMemory> memory, std::span<const Event>) {
              return queue.fill(memory.front(), std::as_bytes(std::span{&value, 1}));
            });
            if (at % 2 == 0) buffer.sync_to_host_async();
          }
        }
        for (std::size_t at = 0; at < blocks; ++at) {
          views.push_back(std::as_const(buffers[at]).host_view());
          check(views.back(), pattern(thread, round, at));
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0U);
  auto const left = manager.statistics();
  EXPECT_EQ(left.active_bytes, 0U);
  std::uint64_t hits = 0;
  for (auto const& usage : left.pools) hits += usage.pool.pool_hits;
  EXPECT_GT(hits, rounds) << "blocks were recycled at all";
}

TEST(Reuse, BlocksRecycledBetweenSlowQueuesKeepTheirPatterns) {
  Reuse reuse;
  EXPECT_EQ(reuse.run(20), std::nullopt);
  auto const left = reuse.manager().statistics();
  EXPECT_EQ(left.active_bytes, 0U);
  std::uint64_t hits = 0;
  for (auto const& usage : left.pools) hits += usage.pool.pool_hits;
  EXPECT_GT(hits, 20U) << "blocks were recycled at all";
}

}  // namespace
}  // namespace unimem::testing
