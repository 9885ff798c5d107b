#include "buffer/spilling_fixture.hpp"
#include "forked_child.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <stop_token>
#include <thread>
#include <tuple>
#include <vector>

// Processes, threads, and everything at random.

namespace unimem::testing {
namespace {

TEST_F(Spilling, AForkedChildHasWhatIsInMemory) {
  room_for(2);
  fill(6);
  int ready[2], go[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(go), 0);
  auto const child = fork_while_others_sleep();
  if (child == 0) {
    std::ignore = ending_of(child, [&] {
      char c = 0;
      std::vector<std::uint32_t> in_memory;
      int refusals = 0;
      for (std::uint32_t i = 0; i < 6; ++i) {
        try {
          EXPECT_HERE(buffers[i].to_vector() == filled(i));
          buffers[i].copy_from(filled(100 + i));
          in_memory.push_back(i);
        } catch (UnsupportedOperation const& error) {
          EXPECT_HERE(error.where == "a forked child process");
          ++refusals;
        }
      }
      EXPECT_HERE(refusals == 4);  // those that are spilled
      EXPECT_HERE(::write(ready[1], &c, 1) == 1);
      EXPECT_HERE(::read(go[0], &c, 1) == 1);
      for (auto const i : in_memory) EXPECT_HERE(buffers[i].to_vector() == filled(100 + i));
      return 0;
    });
  }
  ::close(ready[1]);  // a child that ends early is not waited for
  char c = 0;
  ASSERT_EQ(::read(ready[0], &c, 1), 1);
  expect_intact();
  for (auto& buffer : buffers) buffer.copy_from(filled(7U));
  ASSERT_EQ(::write(go[1], &c, 1), 1);
  EXPECT_EQ(ending_of(child), 0);
  for (auto& buffer : buffers) ASSERT_EQ(buffer.to_vector(), filled(7U));
  for (auto const end : {ready[0], go[0], go[1]}) ::close(end);
}

/// The host has no room for all of a buffer, of which a part is to be saved that a device alone has.
TEST_F(Spilling, ADeviceIsSavedToTheFileWhereTheHostHasNoRoom) {
  room_for(1);
  manager.set_limit(sim, MiB / 4);
  fill(2);
  constexpr std::size_t part = MiB / 16, count = part / sizeof(std::uint32_t);
  auto const use = [&](Buffer& of, std::size_t which) {
    Operand const operand{&of.core(), {which * part, (which + 1) * part}, Intent::read_write};
    add_one(sim.default_queue(), operand);
  };
  for (std::size_t which = 0; which < 4; ++which) use(buffers[0], which);
  static_cast<void>(buffers[1].core().fetch({0, MiB}));
  for (std::size_t which = 0; which < 4; ++which) use(buffers[1], which);
  for (std::uint32_t i = 0; i < 2; ++i) {
    auto expected = filled(i);
    for (std::size_t word = 0; word < 4 * count; ++word) ++expected[word];
    EXPECT_EQ(buffers[i].to_vector(), expected);
    buffers[i].core().validate();
  }
  EXPECT_LE(reserved(), MiB) << "for staging, too";
}

TEST_F(Spilling, ThreadsSpillingEachOthersMemoryKeepEveryByte) {
  constexpr std::uint32_t threads = 4, each = 3, rounds = 30;
  room_for(threads + 2);
  fill(threads * each);
  std::atomic<int> wrong{0};
  std::vector<std::jthread> workers;
  for (std::uint32_t thread = 0; thread < threads; ++thread) {
    workers.emplace_back([&, thread] {
      for (std::uint32_t round = 0; round < rounds; ++round) {
        auto const which = thread * each + round % each;
        auto& buffer = buffers[which];
        std::uint32_t seen = 0;
        buffer.copy_to(std::span(&seen, 1), round);
        wrong += seen != which;
        if (buffer.to_vector() != filled(which)) ++wrong;
        buffer.copy_from(filled(which));
      }
    });
  }
  workers.clear();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(manager.statistics().spills, 0U);
  EXPECT_LE(reserved(), (threads + 2) * MiB);
  expect_intact();
}

/// Each may hold the source beside which the other's target has no room.
TEST_F(Spilling, ThreadsThatCopyWhereThereIsRoomForOneCopyTakeTurns) {
  constexpr std::uint32_t rounds = 40;
  room_for(2);
  fill(4);
  std::atomic<std::uint32_t> refused{0}, wrong{0};
  {
    std::vector<std::jthread> workers;
    for (std::uint32_t thread = 0; thread < 2; ++thread) {
      workers.emplace_back([&, thread] {
        auto &source = buffers[thread], &target = buffers[2 + thread];
        for (std::uint32_t round = 0; round < rounds; ++round) {
          try {
            if (round % 2 == 0) {
              copy(source, target);
            } else if (source.clone().to_vector() != filled(thread)) {
              ++wrong;
            }
          } catch (OutOfMemory const&) {
            ++refused;
          }
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0U);
  EXPECT_LE(refused, rounds / 4) << "on a machine that is busy with something else";
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_EQ(buffers[i].to_vector(), filled(i % 2));
  EXPECT_LE(reserved(), 2 * MiB);
}

TEST_F(Spilling, WhatIsDoneAtRandomIsRight) {
  auto const seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  constexpr std::size_t count = 8, steps = 600;
  Device& second = make_sim({.memory_bytes = 64 * MiB});
  manager.set_limit(sim, 2 * MiB);
  manager.set_limit(second, 2 * MiB);
  room_for(3);
  fill(count);
  std::vector<std::vector<std::uint32_t>> shadow;
  for (std::uint32_t i = 0; i < count; ++i) shadow.emplace_back(words, i);
  for (std::size_t step = 0; step < steps; ++step) {
    auto const which = random() % count, from = random() % words, size = random() % (words - from);
    auto const value = static_cast<std::uint32_t>(random());
    auto& buffer = buffers[which];
    auto& truth = shadow[which];
    auto& on = random() % 2 == 0 ? sim : second;
    switch (random() % 8) {
      case 0:
        buffer.copy_from(std::vector(size, value), from);
        std::fill_n(truth.begin() + static_cast<std::ptrdiff_t>(from), size, value);
        break;
      case 1:
        buffer.fill(value);
        truth.assign(words, value);
        break;
      case 2:
      case 3: {
        Operand const operand{&buffer.core(), {0, MiB}, Intent::read_write};
        add_one(on.default_queue(), operand);
        for (auto& word : truth) ++word;
        break;
      }
      case 4:
        buffer.sync_to_device(on);
        break;
      case 5:
        buffer.prefetch(on);
        break;
      case 6: {
        auto const other = random() % count;
        copy(buffers[other], buffer);
        truth = shadow[other];
        break;
      }
      default: {
        std::vector<std::uint32_t> seen(size);
        buffer.copy_to(std::span(seen), from);
        auto const begin = truth.begin() + static_cast<std::ptrdiff_t>(from);
        ASSERT_TRUE(std::equal(seen.begin(), seen.end(), begin)) << "step " << step;
      }
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(buffers[i].to_vector(), shadow[i]) << i;
    buffers[i].core().validate();
  }
  EXPECT_GT(manager.statistics().spills, 0U);
  EXPECT_GT(manager.statistics().restores, 0U);
  EXPECT_LE(reserved(), 3 * MiB);
}

TEST_F(Spilling, BuffersBeginAndEndBesideAnOptimization) {
  room_for(4);
  {
    std::jthread const optimizer([&](std::stop_token const& done) {
      while (!done.stop_requested()) static_cast<void>(manager.optimize());
    });
    for (std::uint32_t i = 0; i < 200; ++i) {
      Buffer buffer(words, named("brief"));
      buffer.copy_from(filled(i));
      ASSERT_EQ(buffer.to_vector(), filled(i));
    }
  }
  EXPECT_EQ(manager.usage().total.live_bytes, 0U);
}

}  // namespace
}  // namespace unimem::testing
