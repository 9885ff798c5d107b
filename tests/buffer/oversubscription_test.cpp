#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "device/gate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace unimem::testing {
namespace {

constexpr std::size_t size = std::size_t{128} << 10;  // of each buffer, bytes
constexpr std::size_t elements = size / sizeof(std::uint32_t);

/// Buffers of one megabyte on a device that has room for some of them.
class Oversubscription : public BufferTest {
 protected:
  using Buffers = std::deque<UnifiedBuffer<std::uint32_t>>;

  [[nodiscard]] Buffers filled(std::size_t count) {
    Buffers buffers;
    for (std::size_t i = 0; i < count; ++i) {
      auto& buffer = buffers.emplace_back(elements, on_sim("buffer " + std::to_string(i)));
      buffer.copy_from(std::vector(elements, static_cast<std::uint32_t>(1000 * i)));
    }
    return buffers;
  }

  void room_for(std::size_t count) { manager.set_limit(sim, count * size); }

  void use(UnifiedBuffer<std::uint32_t>& buffer) { add(sim.default_queue(), buffer.slice(0, elements), 1).wait(); }

  /// The buffers' contents, after each was used so many times.
  static void expect_used(Buffers& buffers, std::span<const std::uint32_t> times) {
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      ASSERT_THAT(buffers[i].to_vector(), ::testing::Each(1000 * i + times[i])) << i;
    }
  }

  [[nodiscard]] std::uint64_t uploads() const { return sim.transfers().host_to_device_copies; }
  [[nodiscard]] std::uint64_t downloads() const { return sim.transfers().device_to_host_copies; }
};

TEST_F(Oversubscription, ALoopThatFitsLoadsEachBufferOnce) {
  auto buffers = filled(8);
  room_for(8);
  for (int pass = 0; pass < 5; ++pass) {
    for (auto& buffer : buffers) use(buffer);
  }
  EXPECT_EQ(uploads(), 8U);
  EXPECT_EQ(downloads(), 0U);
  expect_used(buffers, std::vector<std::uint32_t>(8, 5));
  EXPECT_EQ(uploads(), 8U);
  EXPECT_EQ(downloads(), 8U);
  EXPECT_EQ(manager.statistics().reclaims, 0U);
}

TEST_F(Oversubscription, ALoopOfTwiceTheRoomKeepsHalf) {
  constexpr std::size_t count = 32, room = 16, passes = 8;
  auto buffers = filled(count);
  room_for(room);
  for (std::size_t pass = 0; pass < passes; ++pass) {
    for (auto& buffer : buffers) use(buffer);
  }
  // Whoever knows the future brings all of them once, and then, pass by pass, what did not stay: one place is for
  // those that come and go.
  constexpr auto optimum = count + (passes - 1) * (count - room + 1);
  EXPECT_LE(static_cast<double>(uploads()), 1.15 * static_cast<double>(optimum));
  EXPECT_EQ(downloads(), uploads() - room);  // nothing is written back before there is need
  expect_used(buffers, std::vector<std::uint32_t>(count, passes));
}

TEST_F(Oversubscription, FavouritesStay) {
  auto buffers = filled(32);
  room_for(16);
  std::mt19937 random{7};
  std::vector<std::uint32_t> times(buffers.size());
  for (int i = 0; i < 1'200; ++i) {
    auto const which = i % 2 == 0 ? random() % 8 : 8 + random() % 24;
    use(buffers[which]);
    ++times[which];
  }
  std::uint64_t favourites = 0;
  for (std::size_t i = 0; i < 8; ++i) favourites += buffers[i].statistics().host_to_device_copies;
  EXPECT_LE(favourites, 60U);  // of 600 uses
  EXPECT_GE(uploads(), 300U);  // the others hardly ever find their place kept
  expect_used(buffers, times);
}

TEST_F(Oversubscription, UnneededBuffersGoFirstAndNeededOnesLast) {
  auto buffers = filled(4);
  room_for(3);
  for (int pass = 0; pass < 3; ++pass) {
    for (std::size_t i = 0; i < 3; ++i) use(buffers[i]);
  }
  buffers[1].wont_use(sim);
  use(buffers[3]);
  EXPECT_FALSE(buffers[1].valid_on(sim));
  EXPECT_TRUE(buffers[0].valid_on(sim));
  EXPECT_TRUE(buffers[2].valid_on(sim));

  buffers[0].will_use();
  buffers[3].will_use();
  use(buffers[1]);
  EXPECT_FALSE(buffers[2].valid_on(sim));
  EXPECT_TRUE(buffers[0].valid_on(sim));
  EXPECT_TRUE(buffers[3].valid_on(sim));
}

TEST_F(Oversubscription, WhatWasPrefetchedWaitsForItsUse) {
  auto buffers = filled(4);
  room_for(2);
  buffers[0].prefetch(sim).wait();
  for (int pass = 0; pass < 3; ++pass) {
    for (std::size_t i = 1; i < 4; ++i) use(buffers[i]);
  }
  EXPECT_TRUE(buffers[0].valid_on(sim));
  use(buffers[0]);
  EXPECT_EQ(buffers[0].statistics().host_to_device_copies, 1U);
}

TEST_F(Oversubscription, LowerPrioritiesGiveFirst) {
  auto buffers = filled(4);
  room_for(3);
  buffers[0].set_priority(1);
  buffers[2].set_priority(2);
  EXPECT_EQ(buffers[2].priority(), 2);
  for (std::size_t i = 0; i < 3; ++i) use(buffers[i]);
  buffers[1].will_use(sim);  // a hint among equals: priorities are not
  use(buffers[3]);
  EXPECT_FALSE(buffers[1].valid_on(sim));
  use(buffers[1]);
  EXPECT_FALSE(buffers[3].valid_on(sim));
  buffers[1].set_priority(3);
  use(buffers[3]);
  EXPECT_FALSE(buffers[0].valid_on(sim));
  EXPECT_TRUE(buffers[1].valid_on(sim));
  EXPECT_TRUE(buffers[2].valid_on(sim));
}

TEST_F(Oversubscription, OperandsBeyondTheLimitAreRefusedWithoutEviction) {
  auto buffers = filled(5);
  room_for(3);
  use(buffers[4]);
  std::vector<Operand> operands;
  for (std::size_t i = 0; i < 4; ++i) operands.push_back({&buffers[i].core(), {0, size}, Intent::read});
  auto const began = std::chrono::steady_clock::now();
  try {
    run(sim.default_queue(), operands, [](auto) { FAIL() << "it ran"; });
    FAIL() << "it fit";
  } catch (OutOfMemory const& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("the operands of this operation need 512 KiB together"));
    EXPECT_EQ(error.limit(), 3 * size);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds{5});
  EXPECT_EQ(manager.statistics().waits, 0U);
  EXPECT_TRUE(buffers[4].valid_on(sim));
  EXPECT_FALSE(buffers[0].valid_on(sim));
  EXPECT_EQ(manager.pool(sim, Location::device).statistics().active_bytes, size);
  EXPECT_EQ(manager.statistics().reclaims, 0U);
  EXPECT_EQ(manager.statistics().refusals, 1U);
  operands.pop_back();
  run(sim.default_queue(), operands, [](auto) {}).wait();
  EXPECT_EQ(manager.statistics().reclaims, 1U);
  expect_used(buffers, std::vector<std::uint32_t>{0, 0, 0, 0, 1});
}

TEST_F(Oversubscription, TwoManagersTakeNothingFromEachOther) {
  Device& shared = make_sim({.memory_bytes = 16 * size});
  MemoryManager one, two;
  one.set_limit(shared, 4 * size);
  auto const on_shared = [&](MemoryManager& of_it) {
    BufferOptions options;
    options.manager = &of_it;
    options.device = &shared;
    return options;
  };
  Buffers ones, twos;
  for (std::uint32_t i = 0; i < 8; ++i) {
    ones.emplace_back(elements, on_shared(one)).copy_from(std::vector(elements, i));
    twos.emplace_back(elements, on_shared(two)).copy_from(std::vector(elements, 100 + i));
  }
  for (int pass = 0; pass < 2; ++pass) {
    for (std::size_t i = 0; i < 8; ++i) {
      add(shared.default_queue(), ones[i].slice(0, elements), 1).wait();
      add(shared.default_queue(), twos[i].slice(0, elements), 1).wait();
    }
  }
  EXPECT_LE(one.pool(shared, Location::device).statistics().peak_reserved_bytes, 4 * size);
  EXPECT_GT(one.statistics().reclaims, 0U);
  EXPECT_EQ(two.statistics().reclaims, 0U) << "there was room for all of them";
  // Full by what the other has: that is not this one's to take, however little it has itself.
  auto const others = two.statistics();
  one.set_limit(shared, 16 * size);
  UnifiedBuffer<std::uint32_t> large(10 * elements, on_shared(one));
  large.fill(1);
  EXPECT_THROW(large.sync_to_device(shared), OutOfMemory);
  EXPECT_EQ(two.statistics().active_bytes, others.active_bytes);
  for (auto const& buffer : twos) EXPECT_TRUE(buffer.valid_on(shared));
  for (std::uint32_t i = 0; i < 8; ++i) {
    ASSERT_THAT(ones[i].to_vector(), ::testing::Each(i + 2)) << i;
    ASSERT_THAT(twos[i].to_vector(), ::testing::Each(102 + i)) << i;
  }
}

TEST_F(Oversubscription, OperandsOfTwoManagersObeyTheirOwnLimits) {
  MemoryManager two;
  manager.set_limit(sim, 4 * size);
  BufferOptions options;
  options.manager = &two;
  options.device = &sim;
  UnifiedBuffer<std::uint32_t> ours(3 * elements, on_sim("ours")), theirs(6 * elements, options);
  ours.fill(1);
  theirs.fill(2);
  auto in_the_way = filled(2);
  for (auto& buffer : in_the_way) use(buffer);
  std::array<Operand, 2> const operands{Operand{&ours.core(), {0, 3 * size}, Intent::read_write},
                                        Operand{&theirs.core(), {0, 6 * size}, Intent::read}};
  run(sim.default_queue(), operands, [](std::span<const HostArgument> arguments) {
    std::span const mine{static_cast<std::uint32_t*>(arguments[0].data), 3 * elements};
    auto const* const read = static_cast<std::uint32_t const*>(arguments[1].data);
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i] += read[i];
  }).wait();
  EXPECT_THAT(ours.to_vector(), ::testing::Each(3U));
  EXPECT_EQ(manager.statistics().reclaims, 1U) << "one of the two made room, and nobody for what is another's";
  EXPECT_EQ(manager.statistics().refusals, 0U);

  // What one of them cannot have is said by its own sum.
  UnifiedBuffer<std::uint32_t> more(2 * elements, on_sim("more"));
  more.fill(3);
  std::array<Operand, 3> const too_many{operands[0], operands[1], Operand{&more.core(), {0, 2 * size}, Intent::read}};
  try {
    run(sim.default_queue(), too_many, [](auto) {});
    FAIL() << "it fit";
  } catch (OutOfMemory const& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("the operands of this operation need 640 KiB together"));
  }
}

/// Each launch needs memory of two managers, in which others make room: a turn of one of them is no help with the
/// other.
TEST_F(Oversubscription, LaunchesAcrossTwoManagersDoNotDeadlock) {
  static constexpr std::size_t thread_count = 4, rounds = 300;
  MemoryManager two;
  manager.set_limit(sim, 4 * size);
  two.set_limit(sim, 4 * size);
  auto const theirs = [&] {
    BufferOptions options;
    options.manager = &two;
    options.device = &sim;
    return options;
  };
  std::atomic<std::size_t> refused{0};
  Buffers buffers;
  for (std::size_t t = 0; t < thread_count; ++t) {
    buffers.emplace_back(2 * elements, on_sim()).fill(0);
    buffers.emplace_back(2 * elements, theirs()).fill(0);
  }
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < thread_count; ++t) {
      threads.emplace_back([&, t] {
        auto &one = buffers[2 * t], &another = buffers[2 * t + 1];
        auto queue = sim.create_queue();
        std::array<Operand, 2> const operands{Operand{&one.core(), {0, 2 * size}, Intent::read_write},
                                              Operand{&another.core(), {0, 2 * size}, Intent::read_write}};
        for (std::size_t round = 0; round < rounds; ++round) {
          try {
            run(queue, operands, [](std::span<const HostArgument> arguments) {
              for (auto const& argument : arguments) ++*static_cast<std::uint32_t*>(argument.data);
            }).wait();
          } catch (OutOfMemory const&) {
            ++refused;
          }
        }
      });
    }
  }
  for (auto& buffer : buffers) EXPECT_EQ(buffer.at(0), rounds);
  EXPECT_EQ(refused, 0U);
  EXPECT_EQ(manager.statistics().refusals + two.statistics().refusals, 0U);
  EXPECT_GT(manager.statistics().reclaims, 0U);
}

TEST_F(Oversubscription, TheRefusalNamesWhatLeasesHold) {
  auto buffers = filled(4);
  room_for(3);
  auto const first = buffers[0].device_view(sim);
  auto second = std::optional{buffers[1].device_view(sim)};
  use(buffers[2]);
  std::array<Operand, 2> const operands{Operand{&buffers[2].core(), {0, size}, Intent::read},
                                        Operand{&buffers[3].core(), {0, size}, Intent::read}};
  try {
    run(sim.default_queue(), operands, [](auto) {});
    FAIL() << "it fit";
  } catch (OutOfMemory const& error) {
    EXPECT_EQ(error.facts().leased, 2 * size);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("256 KiB leased"));
  }
  EXPECT_TRUE(buffers[0].valid_on(sim));
  EXPECT_TRUE(buffers[1].valid_on(sim));
  EXPECT_TRUE(buffers[2].valid_on(sim));
  second.reset();
  run(sim.default_queue(), operands, [](auto) {}).wait();
  EXPECT_FALSE(buffers[1].valid_on(sim));
  EXPECT_TRUE(buffers[0].valid_on(sim));
}

TEST_F(Oversubscription, EvictionWritesBackSoleBytesOnly) {
  auto buffers = filled(3);
  room_for(1);
  run(sim.default_queue(), std::array{Operand{&buffers[0].core(), {0, size}, Intent::read}}, [](auto) {}).wait();
  set(sim.default_queue(), buffers[0].slice(100, 50), 9).wait();
  use(buffers[1]);
  EXPECT_EQ(buffers[0].statistics().device_to_host_bytes, 200U);
  run(sim.default_queue(), std::array{Operand{&buffers[2].core(), {0, size}, Intent::read}}, [](auto) {}).wait();
  auto const before = downloads();
  use(buffers[1]);
  EXPECT_EQ(downloads(), before);  // what was only read is dropped
}

/// Whoever needs the memory is not whoever needs to know.
TEST_F(Oversubscription, TheOwnerLearnsOfFailuresDespiteEviction) {
  auto buffers = filled(2);
  room_for(1);
  use(buffers[0]);
  static_cast<void>(buffers[0].host_view());
  set_sim_faults(sim, {.fail_run = 1});
  static_cast<void>(add(sim.default_queue(), buffers[0].slice(0, elements), 1).wait_for_error());
  set_sim_faults(sim, {});
  use(buffers[1]);
  EXPECT_FALSE(buffers[0].valid_on(sim));
  EXPECT_EQ(manager.statistics().failed_reclaims, 0U);
  EXPECT_THROW(static_cast<void>(buffers[0].to_vector()), DeviceError);
  EXPECT_THAT(buffers[0].to_vector(), ::testing::Each(1U));  // once, and nothing is lost
  EXPECT_THAT(buffers[1].to_vector(), ::testing::Each(1001U));
}

TEST_F(Oversubscription, BuffersInUseElsewhereAreNotAwaited) {
  auto buffers = filled(3);
  room_for(2);
  auto const first = buffers[0].device_view(sim);
  auto const second = buffers[1].device_view(sim);
  UnifiedBuffer<std::uint32_t> elsewhere(elements, on_sim("elsewhere"));
  elsewhere.fill(1);
  elsewhere.sync_to_device(other);
  auto queue = other.create_queue();
  std::optional<Gate> gate{queue};
  static_cast<void>(add(queue, elsewhere.slice(0, elements), 1));
  std::atomic<bool> reading{false};
  std::jthread reader{[&] {
    reading = true;
    EXPECT_THAT(elsewhere.host_view(), ::testing::Each(2U));  // holds the buffer until the gate opens
  }};
  while (!reading) std::this_thread::yield();
  auto const began = std::chrono::steady_clock::now();
  EXPECT_THROW(use(buffers[2]), OutOfMemory);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds{5});
  EXPECT_EQ(manager.statistics().waits, 0U);
  gate.reset();
}

TEST_F(Oversubscription, LeasesThatTakeNoLockAreUsesToo) {
  auto buffers = filled(3);
  room_for(2);
  use(buffers[0]);
  use(buffers[1]);
  auto& queue = sim.default_queue();
  static_cast<void>(buffers[0].device_view(queue));
  buffers[0].wont_use(sim);
  static_cast<void>(buffers[0].device_view(queue));
  buffers[1].wont_use(sim);
  use(buffers[2]);
  EXPECT_TRUE(buffers[0].valid_on(sim));
  EXPECT_FALSE(buffers[1].valid_on(sim));
}

/// Buffers that name no manager have one as well, whose requests know of their operands.
TEST_F(Oversubscription, OperandsOfTheDefaultManagerAreRefusedTogether) {
  auto& small = make_sim({.memory_bytes = 2 * MiB});
  auto const made = [&] {
    BufferOptions options;
    options.device = &small;
    UnifiedBuffer<std::byte> buffer(3 * MiB / 2, options);
    buffer.fill(std::byte{1});
    return buffer;
  };
  auto resident = made(), one = made(), other = made();
  resident.sync_to_device();
  auto const reclaims = default_manager().statistics().reclaims;
  std::array<Operand, 2> const operands{Operand{&one.core(), {0, one.size_bytes()}, Intent::read},
                                        Operand{&other.core(), {0, other.size_bytes()}, Intent::read}};
  try {
    use_on_device(small.default_queue(), operands, [&](auto, auto) { return Event{}; });
    ADD_FAILURE() << "they never fit";
  } catch (OutOfMemory const& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("the operands of this operation need 3 MiB together"));
  }
  EXPECT_EQ(default_manager().statistics().reclaims, reclaims) << "no room was made in vain";
  EXPECT_TRUE(resident.valid_on(small));
}

/// A callback of the user's inside of device work, which holds the outer operands.
TEST_F(Oversubscription, WorkWithinWorkNeverWaitsForMemory) {
  auto buffers = filled(3);
  room_for(2);
  int calls = 0;
  std::array<Operand, 2> const operands{Operand{&buffers[0].core(), {0, size}, Intent::read},
                                        Operand{&buffers[1].core(), {0, size}, Intent::read}};
  auto const began = std::chrono::steady_clock::now();
  use_on_device(sim.default_queue(), operands, [&](auto, auto) {
    ++calls;
    EXPECT_THROW(use(buffers[2]), OutOfMemory);
    EXPECT_THROW(static_cast<void>(manager.acquire(sim, Location::device, size)), OutOfMemory);
    return Event{};
  });
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds{5});
  EXPECT_EQ(manager.statistics().waits, 0U);
  EXPECT_EQ(calls, 1);
  use(buffers[2]);
  expect_used(buffers, std::vector<std::uint32_t>{0, 0, 1});
}

/// Every launch needs what others are using: eight threads, two devices, each with room for one launch and a bit.
TEST_F(Oversubscription, LaunchesEvictingEachOthersOperandsDoNotDeadlock) {
  static constexpr std::size_t thread_count = 8, per_thread = 3, shared_count = 4, rounds = 40;
  manager.set_limit(sim, 4 * size);
  manager.set_limit(other, 4 * size);
  auto buffers = filled(thread_count * per_thread + shared_count);
  {
    std::vector<std::jthread> threads;
    for (std::size_t thread = 0; thread < thread_count; ++thread) {
      threads.emplace_back([&, thread] {
        std::mt19937 random{static_cast<unsigned>(thread)};
        auto queue_here = sim.create_queue(), queue_there = other.create_queue();
        for (std::size_t round = 0; round < rounds; ++round) {
          auto& queue = random() % 2 == 0 ? queue_here : queue_there;
          // Its own are written, and one that is everybody's is read: together all that a device has room for.
          std::array<Operand, per_thread + 1> operands{};
          for (std::size_t i = 0; i < per_thread; ++i) {
            operands[i] = {&buffers[thread * per_thread + i].core(), {0, size}, Intent::read_write};
          }
          auto const shared = thread_count * per_thread + random() % shared_count;
          operands.back() = {&buffers[shared].core(), {0, size}, Intent::read};
          run(queue, operands, [](std::span<const HostArgument> arguments) {
            for (auto const& argument : arguments.first(per_thread)) {
              for (auto& word : std::span{static_cast<std::uint32_t*>(argument.data), elements}) ++word;
            }
          });
        }
      });
    }
  }
  std::vector<std::uint32_t> uses(buffers.size(), rounds);
  std::fill_n(uses.rbegin(), shared_count, 0U);
  expect_used(buffers, uses);
  EXPECT_GT(manager.statistics().reclaims, thread_count);
  EXPECT_EQ(manager.statistics().refusals, 0U);
  EXPECT_LE(manager.pool(sim, Location::device).statistics().peak_reserved_bytes, 4 * size);
  EXPECT_LE(manager.pool(other, Location::device).statistics().peak_reserved_bytes, 4 * size);
}

TEST_F(Oversubscription, OppositeCopiesEvictingEachOtherDoNotDeadlock) {
  constexpr std::size_t rounds = 60;
  manager.set_limit(sim, 2 * size);
  manager.set_limit(other, 2 * size);
  auto here = filled(2);
  BufferOptions options = on_sim("there");
  options.device = &other;
  UnifiedBuffer<std::uint32_t> there(elements, options), there_too(elements, options);
  there.fill(1);
  there_too.fill(2);
  {
    std::jthread const one{[&] {
      for (std::size_t i = 0; i < rounds; ++i) {
        here[0].sync_to_device(sim);
        copy(here[0], there);
        there.sync_to_device(other);
        copy(there, here[0]);
      }
    }};
    std::jthread const two{[&] {
      for (std::size_t i = 0; i < rounds; ++i) {
        there_too.sync_to_device(other);
        copy(there_too, here[1]);
        here[1].sync_to_device(sim);
        copy(here[1], there_too);
      }
    }};
    std::jthread const third{[&] {
      auto more = filled(3);
      for (std::size_t i = 0; i < rounds; ++i) {
        for (auto& buffer : more) {
          add(sim.default_queue(), buffer.slice(0, elements), 1);
          add(other.default_queue(), buffer.slice(0, elements), 1);
        }
      }
      expect_used(more, std::vector<std::uint32_t>(3, 2 * rounds));
    }};
  }
  EXPECT_THAT(here[0].to_vector(), ::testing::Each(0U));
  EXPECT_THAT(there.to_vector(), ::testing::Each(0U));
  EXPECT_THAT(here[1].to_vector(), ::testing::Each(2U));
  EXPECT_THAT(there_too.to_vector(), ::testing::Each(2U));
  EXPECT_EQ(manager.statistics().refusals, 0U);
}

}  // namespace
}  // namespace unimem::testing
