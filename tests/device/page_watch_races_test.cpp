#include "device/page_watch_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

// Many threads that write and collect, and many operations in random order.

namespace unimem::detail {
namespace {

TEST_F(PageWatchTest, WritesOfSeveralThreadsAreAllSeen) {
  constexpr std::size_t count = 4, each = 64;
  AnonymousMemory const memory{count * each * page};
  PageWatch watch{memory.data(), memory.size()};
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < count; ++thread) {
    threads.emplace_back([&memory, thread] {
      for (std::size_t i = 0; i < each; i += 2) {
        std::memset(&memory[(i * count + thread) * page], static_cast<int>(thread + 1), page);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  ByteRanges expected;
  for (std::size_t i = 0; i < each; i += 2) expected.add(pages(i * count, i * count + count));
  EXPECT_EQ(watch.collect(memory.all()), expected);
  for (std::size_t number = 0; number < count * each; ++number) {
    auto const value = number / count % 2 == 0 ? number % count + 1 : 0;
    EXPECT_TRUE(memory.holds(pages(number, number + 1), static_cast<std::byte>(value))) << "page " << number;
  }
}

/// Writers write pages in random order while a collector copies what it collects. In each round every page is written
/// once, so that nothing written later can make up for a write that got lost.
class ConcurrentWrites : public PageWatchTest, public ::testing::WithParamInterface<std::pair<unsigned, int>> {};

TEST_P(ConcurrentWrites, AreNeverLostBetweenFindingAndArming) {
  auto const [seed, advice] = GetParam();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  constexpr std::size_t count = 8192, writers = 2, rounds = 25;
  AnonymousMemory const memory{count * page, advice};
  if (advice == MADV_HUGEPAGE) memory.touch(std::byte{0});
  PageWatch watch{memory.data(), memory.size()};
  auto const word = [&](std::size_t number) {
    return std::atomic_ref{*reinterpret_cast<std::uint64_t*>(&memory[number * page + number % 8 * 64])};
  };
  std::vector<std::uint64_t> copy(count), truth(count);
  ByteRanges collected, expected;
  std::vector<std::size_t> order;
  for (std::size_t number = 0; number < count; ++number) {
    if (number % 7 == 0) continue;  // nobody writes it
    order.push_back(number);
    expected.add(pages(number, number + 1));
  }
  auto const copy_what_was_written = [&] {
    auto const found = watch.collect(memory.all());
    for (auto const range : found.ranges()) {
      for (auto number = range.begin / page; number < range.end / page; ++number) {
        copy[number] = word(number).load(std::memory_order_relaxed);
      }
    }
    collected.add(found);
  };

  std::minstd_rand random{seed};
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    std::atomic<std::size_t> running{writers};
    std::vector<std::thread> threads;
    for (std::size_t writer = 0; writer < writers; ++writer) {
      threads.emplace_back([&, writer] {
        for (auto i = writer; i < order.size(); i += writers) word(order[i]).store(round, std::memory_order_relaxed);
        --running;
      });
    }
    while (running.load() > 0) copy_what_was_written();
    for (auto& thread : threads) thread.join();
    copy_what_was_written();
    for (auto const number : order) truth[number] = round;
    ASSERT_EQ(copy, truth) << "round " << round;
  }
  EXPECT_EQ(collected, expected);
  EXPECT_TRUE(watch.collect(memory.all()).empty());
}

INSTANTIATE_TEST_SUITE_P(Seeds, ConcurrentWrites,
                         ::testing::Values(std::pair{1U, MADV_NOHUGEPAGE}, std::pair{2U, MADV_NOHUGEPAGE},
                                           std::pair{2026U, MADV_HUGEPAGE}));

TEST_F(PageWatchTest, EachPageGoesToOneCollector) {
  constexpr std::size_t count = 4096, rounds = 5;
  AnonymousMemory const memory{count * page};
  PageWatch watch{memory.data(), memory.size()};
  for (std::size_t round = 0; round < rounds; ++round) {
    for (std::size_t number = 0; number < count; number += 2) memory[number * page] = static_cast<std::byte>(round);
    std::array<ByteRanges, 2> found;
    std::thread other{[&] { found[1] = watch.collect(memory.all()); }};
    found[0] = watch.collect(memory.all());
    other.join();
    EXPECT_FALSE(found[0].intersects(found[1]));
    EXPECT_EQ(found[0].size_bytes() + found[1].size_bytes(), memory.size() / 2);
  }
}

/// Random operations against a set of page numbers.
class PageWatchModel : public PageWatchTest, public ::testing::WithParamInterface<unsigned> {};

TEST_P(PageWatchModel, AgreesWithASetOfPages) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  auto const small = 3 * huge_page / page;
  for (int const advice : {MADV_NOHUGEPAGE, MADV_HUGEPAGE}) {
    AnonymousMemory const memory{small * page, advice};
    std::memset(memory.data(), 0, huge_page + huge_page / 2);  // the rest is untouched
    PageWatch watch{memory.data(), memory.size()};
    ByteRanges model;
    std::vector<std::byte> contents(memory.size());
    std::minstd_rand random{GetParam()};
    for (int step = 0; step < 1500; ++step) {
      auto const first = random() % small;
      auto const last = std::min<std::size_t>(small, first + 1 + random() % (random() % 16 == 0 ? small : 20));
      auto const range = pages(first, last);
      auto const part_of_model = [&] { return model.intersection(ByteRanges{range}); };
      auto const operation = random() % 16;
      if (operation < 8) {
        auto const begin = range.begin + random() % page;
        auto const bytes = 1 + random() % (range.end - begin);
        auto const value = static_cast<std::byte>(random());
        std::memset(&memory[begin], std::to_integer<int>(value), bytes);
        std::fill_n(&contents[begin], bytes, value);
        model.add({begin / page * page, (begin + bytes + page - 1) / page * page});
      } else if (operation < 10) {
        ASSERT_EQ(watch.collect(range), part_of_model()) << "step " << step;
        model.remove(range);
      } else if (operation < 12) {
        ASSERT_EQ(watch.peek(range), part_of_model()) << "step " << step;
      } else if (operation < 13) {
        watch.arm(range);
        model.remove(range);
      } else if (operation < 14) {
        watch.mark_written(range);
        model.add(range);
      } else if (operation < 15) {
        ASSERT_TRUE(std::equal(&memory[range.begin], &memory[range.begin] + range.size(), &contents[range.begin]))
            << "step " << step;
      } else {
        ASSERT_EQ(madvise(&memory[range.begin], range.size(), MADV_DONTNEED), 0);
        std::fill_n(&contents[range.begin], range.size(), std::byte{0});
        model.add(range);
      }
    }
    EXPECT_EQ(watch.collect(memory.all()), model);
    EXPECT_EQ(std::memcmp(memory.data(), contents.data(), memory.size()), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, PageWatchModel, ::testing::Values(1U, 2U, 3U, 2026U));

}  // namespace
}  // namespace unimem::detail
