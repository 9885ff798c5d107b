#include "pool/small_blocks.hpp"

#include <unimem/device/discovery.hpp>
#include <unimem/pool/pool_resource.hpp>

#include "core/sizes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory_resource>
#include <random>
#include <string>
#include <thread>
#include <vector>

// Small blocks that share pages of a pool, by themselves and under a PoolResource.

namespace unimem {
namespace {

using detail::SmallBlocks;
using Return = SmallBlocks::Return;
using ::testing::HasSubstr;

std::uintptr_t number(void const* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

class SmallBlocksInPages : public ::testing::Test {
 protected:
  void TearDown() override {
    blocks.validate();
    pool.validate();
  }
  [[nodiscard]] std::size_t pages() const { return pool.statistics().active_allocations; }

  MemoryPool pool{device("cpu"), Location::host};
  SmallBlocks blocks{pool, Name("small")};
};

TEST_F(SmallBlocksInPages, TakeSixteenBytesMoreAtMostAndStayApart) {
  std::vector<void*> taken;
  for (int i = 0; i < 128; ++i) taken.push_back(blocks.take(24, 8));
  EXPECT_EQ(pages(), 1U) << "128 cells of 32 bytes";
  std::ranges::sort(taken);
  for (std::size_t i = 1; i < taken.size(); ++i) EXPECT_EQ(number(taken[i]) - number(taken[i - 1]), 32U);
  auto* const next = blocks.take(24, 8);
  EXPECT_EQ(pages(), 2U);
  EXPECT_EQ(blocks.live().blocks, 129U);
  EXPECT_EQ(blocks.live().bytes, 129U * 24);
  taken.push_back(next);
  for (auto* const one : taken) EXPECT_EQ(blocks.give(number(one), 24, 8), Return::taken);
  EXPECT_EQ(blocks.live().blocks, 0U);
}

TEST_F(SmallBlocksInPages, ServeWhatFitsInACellAndNothingElse) {
  EXPECT_TRUE(blocks.serves(0, 1));
  EXPECT_TRUE(blocks.serves(256, 256));
  EXPECT_FALSE(blocks.serves(257, 1));
  EXPECT_FALSE(blocks.serves(8, 3));
  EXPECT_FALSE(blocks.serves(8, 0));
  EXPECT_FALSE(blocks.serves(8, 2 * pool.device().info().alignment));
}

TEST_F(SmallBlocksInPages, GiveEverySizeAtEveryAlignment) {
  for (std::size_t bytes = 0; bytes <= 256; ++bytes) {
    for (std::size_t alignment = 1; alignment <= 256; alignment *= 2) {
      auto* const one = blocks.take(bytes, alignment);
      auto* const other = blocks.take(bytes, alignment);
      ASSERT_NE(one, nullptr);
      ASSERT_NE(one, other);
      ASSERT_EQ(number(one) % alignment, 0U) << bytes;
      std::memset(one, 1, bytes);
      std::memset(other, 2, bytes);
      ASSERT_TRUE(bytes == 0 || *static_cast<char const*>(one) == 1);
      ASSERT_EQ(blocks.give(number(one), bytes, alignment), Return::taken);
      ASSERT_EQ(blocks.give(number(other), bytes, alignment), Return::taken);
    }
  }
}

TEST_F(SmallBlocksInPages, EmptyPagesGoBack) {
  std::vector<void*> taken;
  for (int i = 0; i < 64; ++i) taken.push_back(blocks.take(256, 16));
  EXPECT_EQ(pages(), 4U);
  for (auto* const one : taken) EXPECT_EQ(blocks.give(number(one), 256, 16), Return::taken);
  EXPECT_EQ(pages(), 0U);
  auto* const again = blocks.take(256, 16);
  EXPECT_EQ(pages(), 1U);
  EXPECT_EQ(blocks.give(number(again), 256, 16), Return::taken);
}

TEST_F(SmallBlocksInPages, SayWhatIsWrongWithAnAddress) {
  auto* const one = blocks.take(100, 8);
  auto* const other = blocks.take(100, 8);
  auto const at = number(one);
  EXPECT_EQ(blocks.give(at, 101, 8), Return::other_size);
  EXPECT_EQ(blocks.give(at, 100, 16), Return::other_alignment);
  EXPECT_EQ(blocks.give(at + 8, 100, 8), Return::unknown) << "inside of a block";
  EXPECT_EQ(blocks.give(at + 2 * 112, 100, 8), Return::unknown) << "never handed out";
  EXPECT_EQ(blocks.give(at, 50, 8), Return::unknown) << "of another class";
  EXPECT_EQ(blocks.judge(at, 50), Return::other_size);
  EXPECT_EQ(blocks.judge(at, 100), Return::other_alignment);
  EXPECT_EQ(blocks.judge(number(this), 100), Return::unknown);
  EXPECT_EQ(blocks.live().bytes, 200U) << "nothing has changed";
  EXPECT_EQ(blocks.give(at, 100, 8), Return::taken);
  EXPECT_EQ(blocks.give(at, 100, 8), Return::twice);
  EXPECT_EQ(blocks.judge(at, 5000), Return::twice);
  EXPECT_EQ(blocks.give(number(other), 100, 8), Return::taken);
  EXPECT_EQ(blocks.give(at, 100, 8), Return::unknown) << "the page is gone";
}

TEST_F(SmallBlocksInPages, AFewGoAlone) {
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(blocks.goes_alone(24, 8));
  EXPECT_FALSE(blocks.goes_alone(24, 8));
  EXPECT_TRUE(blocks.goes_alone(240, 8)) << "each size counts for itself";
  EXPECT_EQ(blocks.give(number(this), 24, 8), Return::unknown) << "one of the four, as its owner says";
  EXPECT_TRUE(blocks.goes_alone(24, 8));
  auto* const one = blocks.take(240, 8);
  EXPECT_FALSE(blocks.goes_alone(240, 8)) << "there is a page with room";
  EXPECT_EQ(blocks.give(number(one), 240, 8), Return::taken);
  EXPECT_TRUE(blocks.goes_alone(240, 8));
}

TEST_F(SmallBlocksInPages, WhatWasNotTakenIsNotCounted) {
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(blocks.goes_alone(24, 8));
    blocks.was_not_taken(24, 8);
  }
}

TEST_F(SmallBlocksInPages, AFreshPageKnowsNothingOfTheLast) {
  auto* const one = blocks.take(24, 8);
  auto* const other = blocks.take(24, 8);
  EXPECT_EQ(blocks.give(number(one), 24, 8), Return::taken);
  EXPECT_EQ(blocks.give(number(other), 24, 8), Return::taken);
  auto* const again = blocks.take(24, 8);
  ASSERT_EQ(again, one) << "the pool gives the same page";
  EXPECT_EQ(blocks.give(number(other), 24, 8), Return::unknown) << "never handed out on this one";
  EXPECT_EQ(blocks.give(number(again), 24, 8), Return::taken);
}

TEST(SmallBlocksWithoutRoom, LeaveTheLittleThatIsWantedToThePool) {
  MemoryPool pool{device("cpu"), Location::host, {.max_bytes = 2048, .backing = PoolBacking::allocations}};
  PoolResource resource{pool};
  auto* const one = resource.allocate(100, 8);
  EXPECT_EQ(resource.statistics().live_bytes, 100U);
  EXPECT_LT(pool.statistics().active_bytes, SmallBlocks::page_bytes);
  resource.deallocate(one, 100, 8);
  EXPECT_EQ(pool.statistics().active_allocations, 0U);
}

TEST(SmallBlocksOfAResource, AListNodeTakesFiftyBytesOfThePool) {
  MemoryPool pool{device("cpu"), Location::host};
  {
    PoolResource resource{pool};
    std::pmr::list<std::uint64_t> numbers(100'000, 7, &resource);  // nodes of 24 bytes
    EXPECT_LE(pool.statistics().active_bytes, 100'000U * 34);
    EXPECT_EQ(resource.statistics().live_allocations, 100'000U);
    EXPECT_EQ(resource.statistics().live_bytes, 2'400'000U);
    resource.validate();
  }
  EXPECT_EQ(pool.statistics().active_allocations, 0U);
}

TEST(SmallBlocksOfAResource, MisuseIsToldInTheSameWords) {
  MemoryPool pool{device("cpu"), Location::host};
  PoolResource resource{pool, Name("rows")};
  auto const told = [&](void* address, std::size_t bytes, std::size_t alignment) {
    ::testing::internal::CaptureStderr();
    resource.deallocate(address, bytes, alignment);
    return ::testing::internal::GetCapturedStderr();
  };
  std::vector<void*> alone;
  for (int i = 0; i < 4; ++i) alone.push_back(resource.allocate(100, 8));
  auto* const one = static_cast<std::byte*>(resource.allocate(100, 8));
  auto* const other = resource.allocate(100, 8);
  EXPECT_EQ(pool.statistics().active_allocations, 5U) << "the two share a page";
  EXPECT_THAT(told(one, 200, 8), HasSubstr("refused: it was handed out with another size"));
  EXPECT_THAT(told(one, 5000, 8), HasSubstr("refused: it was handed out with another size"));
  EXPECT_THAT(told(one, 100, 64), HasSubstr("refused: it was handed out with another alignment"));
  EXPECT_THAT(told(one + 16, 100, 8), HasSubstr("refused: it was not handed out here"));
  EXPECT_EQ(resource.statistics().refused_deallocations, 4U);
  EXPECT_EQ(told(one, 100, 8), "");
  EXPECT_THAT(told(one, 100, 8), HasSubstr("PoolResource 'rows' on cpu host: deallocate("));
  EXPECT_THAT(told(one, 5000, 8), HasSubstr("refused: it was given back already"));
  resource.deallocate(other, 100, 8);
  for (auto* const address : alone) resource.deallocate(address, 100, 8);
  EXPECT_EQ(pool.statistics().active_allocations, 0U);
}

TEST(SmallBlocksOfAResource, APoolThatWipesOrCapturesHasNone) {
  MemoryPool pool{device("cpu"), Location::host, {.zero_on_release = true}};
  PoolResource resource{pool};
  auto* const one = resource.allocate(100, 8);
  std::memset(one, 1, 100);
  resource.deallocate(one, 100, 8);
  EXPECT_EQ(pool.statistics().active_allocations, 0U) << "the block itself went back, to be wiped";
}

TEST(SmallBlocksOfAResource, ThreadsShareThem) {
  MemoryPool pool{device("cpu"), Location::host};
  SmallBlocks blocks{pool, Name()};
  auto const work = [&](unsigned seed) {
    std::mt19937 random{seed};
    struct Held {
      unsigned char* address;
      std::size_t bytes;
    };
    std::vector<Held> held;
    for (int round = 0; round < 20'000; ++round) {
      if (held.size() < 300 && random() % 2 == 0) {
        auto const bytes = random() % 257;
        auto* const address = static_cast<unsigned char*>(blocks.take(bytes, 1));
        std::memset(address, static_cast<int>(seed), bytes);
        held.push_back({address, bytes});
      } else if (!held.empty()) {
        std::swap(held[random() % held.size()], held.back());
        auto const [address, bytes] = held.back();
        held.pop_back();
        ASSERT_TRUE(std::all_of(address, address + bytes, [&](unsigned char byte) { return byte == seed; }));
        ASSERT_EQ(blocks.give(number(address), bytes, 1), Return::taken);
      }
    }
    for (auto const& [address, bytes] : held) ASSERT_EQ(blocks.give(number(address), bytes, 1), Return::taken);
  };
  std::vector<std::jthread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed) threads.emplace_back(work, seed);
  threads.clear();
  blocks.validate();
  EXPECT_EQ(blocks.live().blocks, 0U);
}

}  // namespace
}  // namespace unimem
