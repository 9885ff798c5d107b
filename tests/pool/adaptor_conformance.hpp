#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/device.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "pool/adaptor_fixture.hpp"
#include "pool/adaptors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// What every adaptor does, whatever it adapts and wherever that is: each kind at each home that it serves. What those
// do besides that deal in addresses, and what all say where they do not serve: resource_conformance.hpp.

namespace unimem {

TEST_P(AdaptorConformance, EveryAlignmentIsKept) {
  auto const largest = reach == Reach::objects ? device.info().alignment : 16 * KiB;
  for (std::size_t alignment = 1; alignment <= largest; alignment *= 2) {
    std::vector<Piece> pieces;
    for (std::size_t const bytes : {std::size_t{1}, std::size_t{8}, std::size_t{100}, KiB, 4 * KiB + 1, most / 64}) {
      pieces.push_back(adaptor->take(bytes, alignment));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pieces.back().address) % alignment, 0U) << bytes << " bytes";
      EXPECT_EQ(pieces.back().address != nullptr, reach != Reach::objects);
      fill(pieces.back(), alignment + pieces.size());
    }
    expect_in_use(pieces.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      EXPECT_TRUE(holds(pieces[i], alignment + i + 1)) << pieces[i].bytes << " bytes at " << alignment;
    }
    give_back(pieces);
    expect_in_use(0);
  }
}

TEST_P(AdaptorConformance, OtherAlignmentsAreRefusedByName) {
  std::vector<std::size_t> alignments{3, 3 * KiB};
  auto const first = device.info().alignment * 2;
  for (auto alignment = first; reach == Reach::objects && alignment <= std::max(first, 4 * KiB); alignment *= 2) {
    alignments.push_back(alignment);
  }
  for (auto const alignment : alignments) {
    try {
      auto const piece = adaptor->take(100, alignment);
      ADD_FAILURE() << alignment << " was accepted";
      adaptor->give_back(piece);
    } catch (InvalidArgument const& error) {
      EXPECT_EQ(error.argument, "alignment");
      EXPECT_EQ(error.value, std::to_string(alignment));
    }
  }
  expect_in_use(0);
  EXPECT_EQ(pool.statistics().reserved_bytes, 0U);
  EXPECT_EQ(pool.statistics().failed_allocations, 0U);
}

TEST_P(AdaptorConformance, PiecesHoldTheirBytesAndDoNotOverlap) {
  std::mt19937 random{5};
  std::vector<std::pair<Piece, std::uint64_t>> held;
  std::size_t bytes_held = 0;
  for (std::uint64_t round = 0; round < 150; ++round) {
    if (held.size() == 8 || (!held.empty() && random() % 3 == 0)) {
      std::swap(held[random() % held.size()], held.back());
      auto const& [piece, seed] = held.back();
      EXPECT_TRUE(holds(piece, seed)) << "round " << round;
      bytes_held -= piece.bytes;
      adaptor->give_back(piece);
      held.pop_back();
    } else {
      auto const bytes = 1 + random() % std::min(most / 32, 64 * KiB);
      held.emplace_back(filled(bytes, round), round);
      bytes_held += bytes;
    }
    EXPECT_EQ(adaptor->statistics().live_bytes, bytes_held);
    expect_in_use(held.size());
  }
  for (auto const& [piece, seed] : held) adaptor->give_back(piece);
  EXPECT_EQ(pool.statistics().pool_hits + pool.statistics().pool_misses, pool.statistics().total_allocations);
}

TEST_P(AdaptorConformance, ReturnedMemoryServesTheNextRequest) {
  auto const first = adaptor->take(10'000, 8);
  adaptor->give_back(first);
  expect_in_use(0);
  EXPECT_GT(pool.statistics().total_pooled_bytes, 0U);
  auto const again = adaptor->take(10'000, 8);
  EXPECT_EQ(again.memory, first.memory);
  EXPECT_EQ(again.address, first.address);
  EXPECT_EQ(pool.statistics().pool_hits, 1U);
  EXPECT_EQ(pool.statistics().pool_misses, 1U);
  adaptor->give_back(again);
}

TEST_P(AdaptorConformance, PiecesAreGivenBackInAnyOrder) {
  std::mt19937 random{7};
  for (int const order : {0, 1, 2}) {
    SCOPED_TRACE(order);
    auto const pieces = several();
    std::vector<std::size_t> left(pieces.size());
    for (std::size_t i = 0; i < left.size(); ++i) left[i] = i;
    if (order == 1) std::reverse(left.begin(), left.end());
    if (order == 2) std::shuffle(left.begin(), left.end(), random);
    while (!left.empty()) {
      adaptor->give_back(pieces[left.back()]);
      left.pop_back();
      for (auto const i : left) EXPECT_TRUE(holds(pieces[i], i)) << "piece " << i;
      expect_in_use(left.size());
    }
  }
  EXPECT_EQ(adaptor->statistics().refused_deallocations, 0U);
}

TEST_P(AdaptorConformance, BeyondTheLimitIsOutOfMemory) {
  pool.set_max_bytes(most);
  auto const kept = filled(most / 16, 1), other = filled(most / 2, 2);
  auto const before = pool.statistics();
  try {
    auto const piece = adaptor->take(most / 2, 8);
    ADD_FAILURE() << "was granted";
    adaptor->give_back(piece);
  } catch (std::bad_alloc const& refusal) {  // by which the standard library knows it
    auto const* const error = dynamic_cast<OutOfMemory const*>(&refusal);
    ASSERT_NE(error, nullptr);
    EXPECT_EQ(error->requested(), most / 2);
    EXPECT_EQ(error->limit(), most);
    EXPECT_GE(error->live(), most / 16 + most / 2);
    EXPECT_EQ(error->facts().where, place());
    EXPECT_THAT(error->what(), ::testing::HasSubstr("conformance")) << "who holds memory is named";
  }
  auto const after = pool.statistics();
  EXPECT_EQ(after.failed_allocations, before.failed_allocations + 1);
  EXPECT_EQ(after.total_allocations, before.total_allocations);
  EXPECT_EQ(after.active_bytes, before.active_bytes);
  EXPECT_LE(after.reserved_bytes, most);
  expect_in_use(2);
  EXPECT_TRUE(holds(kept, 1));
  EXPECT_TRUE(holds(other, 2));
  adaptor->give_back(other);
  auto const served = filled(most / 2 + most / 4, 3);
  EXPECT_TRUE(holds(kept, 1)) << "and it is over once something is given back";
  EXPECT_TRUE(holds(served, 3));
  give_back({kept, served});
}

TEST_P(AdaptorConformance, ALimitIsItsOwnPools) {
  MemoryPool narrow{device, location, options(most / 8)};
  auto const within = GetParam().kind.make(narrow);
  auto const all = within->take(most / 8, 8);
  EXPECT_THROW((void)within->take(1, 1), OutOfMemory);
  EXPECT_EQ(narrow.statistics().reserved_bytes, most / 8);
  auto const beside = filled(most / 4, 1);
  EXPECT_THROW((void)within->take(1, 1), OutOfMemory);
  fill(all, 2);
  EXPECT_TRUE(holds(beside, 1));
  within->give_back(all);
  adaptor->give_back(beside);
  EXPECT_EQ(narrow.max_bytes(), most / 8);
  EXPECT_GE(pool.max_bytes(), device.info().total_bytes);
}

TEST_P(AdaptorConformance, CachingGoesOnAfterATrim) {
  auto const kept = filled(most / 16, 1);
  give_back(several());
  auto const before = pool.statistics();
  EXPECT_GT(before.total_pooled_bytes, 0U);
  auto const given = pool.trim();
  auto const after = pool.statistics();
  EXPECT_EQ(after.reserved_bytes, before.reserved_bytes - given);
  EXPECT_EQ(after.total_pooled_bytes, 0U);
  EXPECT_EQ(after.active_bytes, before.active_bytes);
  expect_in_use(1);
  EXPECT_TRUE(holds(kept, 1));
  if (auto const* const driver = dynamic_cast<DriverUpstream*>(upstream.get())) {
    EXPECT_EQ(driver->live_bytes(), after.reserved_bytes);
  }
  for (int i = 0; i < 2; ++i) give_back({filled(most / 4, 2)});
  EXPECT_EQ(pool.statistics().pool_hits, after.pool_hits + 1);
  EXPECT_TRUE(holds(kept, 1));
  adaptor->give_back(kept);
}

TEST_P(AdaptorConformance, ReturnedMemoryIsCachedUntilATrim) {
  auto const free_before = device.memory_info().free_bytes;
  std::vector<Piece> pieces;  // which nobody fills, since for that a driver might take memory
  for (auto const bytes : sizes()) pieces.push_back(adaptor->take(bytes, 8));
  give_back(pieces);
  auto const freed = pool.statistics();
  EXPECT_EQ(freed.active_bytes, 0U);
  EXPECT_EQ(freed.total_pooled_bytes + freed.slack_bytes, freed.reserved_bytes);
  EXPECT_GT(freed.total_pooled_bytes, 0U);
  EXPECT_EQ(pool.trim(), freed.reserved_bytes);
  EXPECT_EQ(pool.statistics().reserved_bytes, 0U);
  if (!device.reaches_host_memory()) {  // the host's memory others take and give meanwhile
    EXPECT_EQ(device.memory_info().free_bytes, free_before);
  }
}

TEST_P(AdaptorConformance, AnyThreadMayGiveMemoryBack) {
  constexpr unsigned thread_count = 3, rounds = 60;
  std::mutex mutex;
  std::vector<std::pair<Piece, std::uint64_t>> passed_on;
  std::atomic<unsigned> damaged{0};
  {
    std::vector<std::jthread> threads;
    for (unsigned thread = 0; thread < thread_count; ++thread) {
      threads.emplace_back([&, thread] {
        auto queue = device.create_queue();
        std::mt19937 random{thread};
        for (unsigned i = 0; i < rounds; ++i) {
          auto const seed = std::uint64_t{thread} * rounds + i;
          std::pair one{adaptor->take(1 + random() % std::min(most / 64, 16 * KiB), 8), seed};
          fill(one.first, seed, queue);
          {
            std::lock_guard const lock{mutex};
            passed_on.push_back(one);
            if (passed_on.size() < 8) continue;
            std::swap(passed_on[random() % passed_on.size()], passed_on.back());
            one = passed_on.back();
            passed_on.pop_back();
          }
          if (!holds(one.first, one.second, queue)) ++damaged;
          adaptor->give_back(one.first);
        }
      });
    }
  }
  EXPECT_EQ(damaged, 0U);
  expect_in_use(passed_on.size());
  for (auto const& [piece, seed] : passed_on) {
    EXPECT_TRUE(holds(piece, seed)) << seed;
    adaptor->give_back(piece);
  }
  EXPECT_EQ(pool.statistics().total_allocations, std::uint64_t{thread_count} * rounds);
  EXPECT_EQ(adaptor->statistics().refused_deallocations, 0U);
}

}  // namespace unimem
