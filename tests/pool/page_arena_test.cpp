#include "pool/page_arena.hpp"

#include <unimem/core/error.hpp>

#include "core/sizes.hpp"
#include "pool/page_size.hpp"
#include "pool/scripted_pages.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <stop_token>
#include <vector>

namespace unimem {
namespace {

using detail::PageArena;
using detail::Span;
using ::testing::ElementsAre;

constexpr std::size_t any = SIZE_MAX / 2;

/// An arena on pages that the test watches; everything is validated after every step.
class PageArenaTest : public ::testing::Test {
 protected:
  [[nodiscard]] Span* take(std::size_t bytes, std::size_t alignment = 1) {
    auto* const span = arena.take(bytes, alignment);
    arena.validate();
    return span;
  }
  [[nodiscard]] Span* gather(std::size_t bytes, std::size_t create = 0, std::size_t alignment = 1) {
    auto* const span = arena.gather(bytes, alignment, create);
    arena.validate();
    return span;
  }
  [[nodiscard]] Span& grow(std::size_t bytes) {
    auto* const span = arena.grow(bytes);
    arena.validate();
    return *span;
  }
  void give(Span& span) {
    arena.give(span);
    arena.validate();
  }
  /// Neighbours of these many pages each.
  [[nodiscard]] std::vector<Span*> row(std::initializer_list<std::size_t> pages) {
    std::vector<Span*> spans;
    std::size_t sum = 0;
    for (auto const count : pages) sum += count;
    give(grow(sum * page));
    for (auto const count : pages) {
      spans.push_back(take(count * page));
      EXPECT_TRUE(spans.size() == 1 || spans[spans.size() - 2]->end() == spans.back()->base);
    }
    return spans;
  }

  ScriptedPages source{page};
  PageArena arena{source, {.granule = 256}};
};

TEST_F(PageArenaTest, StartsWithNothing) {
  EXPECT_EQ(take(1), nullptr);
  EXPECT_EQ(gather(1), nullptr) << "there is nothing to gather and nothing may be created";
  EXPECT_EQ(source.calls, 0U);
  EXPECT_EQ(arena.reserved(), 0U);
}

TEST_F(PageArenaTest, TakesTheSmallestSpanThatFits) {
  auto const spans = row({5, 1, 3, 1, 9, 1, 4, 1});
  auto const calls = source.calls;
  auto const base = spans[2]->base;
  for (auto const i : {0, 2, 4, 6}) give(*spans[static_cast<std::size_t>(i)]);
  EXPECT_EQ(take(3 * page - 300)->base, base);
  EXPECT_EQ(take(256)->base, base + 3 * page - 256) << "and the rest of it serves the smaller";
  EXPECT_EQ(take(10 * page), nullptr);
  EXPECT_EQ(source.calls, calls) << "taking calls nobody";
}

TEST_F(PageArenaTest, GivingBackUnitesNeighboursAndCallsNobody) {
  auto const spans = row({2, 3, 4, 5});
  auto const calls = source.calls;
  give(*spans[0]);
  give(*spans[2]);
  EXPECT_EQ(arena.free_spans(), 2U);
  give(*spans[1]);
  EXPECT_EQ(arena.free_spans(), 1U);
  EXPECT_EQ(arena.largest_free(), 9 * page);
  EXPECT_EQ(arena.used(), 5 * page);
  EXPECT_EQ(source.calls, calls);
}

TEST_F(PageArenaTest, AlignsUpToAPageAndWastesNothing) {
  give(grow(8 * page));
  auto* const odd = take(256);
  for (auto const alignment : {std::size_t{256}, std::size_t{4096}, page}) {
    auto* const span = take(1000, alignment);
    ASSERT_NE(span, nullptr);
    EXPECT_EQ(span->base % alignment, 0U);
    EXPECT_EQ(span->bytes, 1024U);
  }
  EXPECT_EQ(arena.used(), 256U + 3 * 1024U);
  EXPECT_EQ(odd->bytes, 256U);
}

TEST_F(PageArenaTest, GathersFreePagesThatLieApart) {
  auto const spans = row({5, 1, 3, 1, 2, 1});
  auto const kept = source.numbers(spans[1]->base, page);
  auto const largest = source.numbers(spans[0]->base, 5 * page), next = source.numbers(spans[2]->base, 3 * page);
  for (auto const i : {0, 2, 4}) give(*spans[static_cast<std::size_t>(i)]);
  auto* const span = gather(8 * page);
  ASSERT_NE(span, nullptr);
  auto expected = largest;
  expected.insert(expected.end(), next.begin(), next.end());
  EXPECT_EQ(source.numbers(span->base, 8 * page), expected) << "the largest runs are the fewest";
  EXPECT_EQ(source.numbers(spans[1]->base, page), kept) << "what is in use stays";
  EXPECT_EQ(arena.reserved(), 13 * page);
  EXPECT_EQ(arena.counts().gathers, 1U);
  EXPECT_EQ(arena.counts().pieces, 2U);
  EXPECT_EQ(arena.counts().moved_bytes, 8 * page);
}

TEST_F(PageArenaTest, TheLastPieceIsTheSmallest) {
  auto const spans = row({9, 1, 8, 1, 2, 1, 4, 1});
  for (auto const i : {0, 2, 4, 6}) give(*spans[static_cast<std::size_t>(i)]);
  ASSERT_NE(gather(11 * page), nullptr);
  EXPECT_EQ(arena.largest_free(), 8 * page) << "nine and two, and not two of eight";
}

TEST_F(PageArenaTest, TooFewPagesMoveNothing) {
  auto const spans = row({3, 1, 3, 1});
  give(*spans[0]);
  give(*spans[2]);
  auto const calls = source.calls;
  EXPECT_EQ(gather(7 * page), nullptr);
  EXPECT_EQ(gather(8 * page, page), nullptr);
  EXPECT_EQ(source.calls, calls);
  auto* const span = gather(7 * page, page);
  ASSERT_NE(span, nullptr) << "one fresh page makes up for it";
  EXPECT_EQ(source.live_bytes, 9 * page);
  EXPECT_EQ(arena.free(), 0U);
}

TEST_F(PageArenaTest, GatheringWithinALimitMovesWholeRuns) {
  auto const spans = row({5, 1, 3, 1, 2, 1, 1, 1});
  for (auto const i : {0, 2, 4, 6}) give(*spans[static_cast<std::size_t>(i)]);
  auto const runs = [&] {
    std::vector<std::size_t> pages;
    arena.for_each_returnable([&](std::size_t bytes) { pages.push_back(bytes / page); });
    arena.validate();
    return pages;
  };
  EXPECT_EQ(arena.gather_free(2 * page), 0U) << "two pages would only lie elsewhere";
  EXPECT_EQ(arena.gather_free(4 * page), 4 * page) << "three and one";
  EXPECT_THAT(runs(), ElementsAre(5, 4, 2));
  EXPECT_EQ(arena.gather_free(4 * page), 2 * page) << "beside the four, which stay";
  EXPECT_THAT(runs(), ElementsAre(6, 5));
  EXPECT_EQ(arena.gather_free(4 * page), 0U) << "what is left is longer than that";
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(arena.gather_free(any, stop.get_token()), 0U);
  EXPECT_THAT(runs(), ElementsAre(6, 5));
  EXPECT_GE(arena.gather_free(), 5 * page);
  EXPECT_THAT(runs(), ElementsAre(11));
}

TEST_F(PageArenaTest, FreshPagesContinueTheLastFreeSpan) {
  auto const first = &grow(4 * page);
  give(*first);
  auto const base = first->base;
  auto const& span = grow(10 * page);
  EXPECT_EQ(span.base, base);
  EXPECT_EQ(source.live_bytes, 10 * page) << "six more";
}

TEST_F(PageArenaTest, AFreeSpanIsContinuedInPlace) {
  auto const spans = row({4, 1, 6, 1, 3, 1});
  give(*spans[2]);
  give(*spans[0]);
  ASSERT_NE(gather(10 * page), nullptr);  // leaves holes where four and six pages were
  give(*spans[3]);
  give(*spans[4]);  // a run of four after a hole of six
  give(*spans[1]);  // and a page between the holes
  auto const moved = arena.counts().moved_bytes;
  auto* const span = gather(7 * page, 2 * page);
  ASSERT_NE(span, nullptr);
  EXPECT_EQ(arena.counts().moved_bytes - moved, page) << "the four stayed";
  EXPECT_EQ(span->end(), spans[5]->base);
}

TEST_F(PageArenaTest, APageMovesOnlyWhenAllFree) {
  give(grow(page));
  auto* const left = take(page / 2);
  auto* const right = take(page / 2);
  EXPECT_EQ(left->end(), right->base);
  EXPECT_EQ(source.live_bytes, page);
  give(*left);
  EXPECT_EQ(arena.free_in_pages(), 0U);
  EXPECT_EQ(gather(page, 0), nullptr);
  give(*right);
  EXPECT_EQ(arena.free_in_pages(), page);
  EXPECT_NE(gather(page, 0), nullptr);
}

TEST_F(PageArenaTest, LargeSpansAreWholePages) {
  auto const& large = grow(20 * page - 5);
  EXPECT_EQ(large.bytes, 20 * page);
  auto const& small = grow(15 * page + 5);
  EXPECT_EQ(small.bytes, 15 * page + 256);
  EXPECT_EQ(arena.rounded(1), 256U);
}

TEST_F(PageArenaTest, TrimGivesBackTheLargestRuns) {
  auto const spans = row({9, 1, 3, 1, 5});
  for (auto const i : {0, 2, 4}) give(*spans[static_cast<std::size_t>(i)]);
  EXPECT_EQ(arena.trim(10 * page), 9 * page);
  arena.validate();
  EXPECT_EQ(source.live_bytes, 10 * page);
  EXPECT_EQ(arena.reserved(), 10 * page);
  EXPECT_EQ(arena.largest_free(), 5 * page);
  EXPECT_EQ(arena.trim(10 * page), 0U);
  EXPECT_EQ(arena.trim(0), 8 * page) << "all that is not in use";
  arena.validate();
  EXPECT_EQ(source.reservations.size(), 1U);
  give(*spans[1]);
  give(*spans[3]);
  EXPECT_EQ(arena.trim(0), 2 * page);
  arena.validate();
  EXPECT_EQ(source.live_bytes, 0U);
  EXPECT_EQ(source.reservations.size(), 0U) << "addresses without a page are given up";
  EXPECT_EQ(grow(page).bytes, page) << "and it goes on";
}

TEST_F(PageArenaTest, TrimKeepsPagesThatAreUsedInPart) {
  give(grow(3 * page));
  auto* const span = take(100);
  EXPECT_EQ(arena.trim(0), 2 * page);
  arena.validate();
  EXPECT_EQ(arena.free(), page - 256);
  give(*span);
  EXPECT_EQ(arena.trim(0), page);
}

TEST_F(PageArenaTest, ARunThatCannotBeUnmappedStays) {
  auto const spans = row({4, 1, 2, 1});
  give(*spans[0]);
  give(*spans[2]);
  int calls = 0;
  source.on_call = [&] {
    if (++calls == 1) throw DeviceError("scripted", "unmap", -1, "SCRIPTED_FAILURE");
  };
  EXPECT_EQ(arena.trim(0), 2 * page);
  arena.validate();
  EXPECT_EQ(arena.free(), 4 * page);
  source.on_call = {};
  EXPECT_EQ(arena.trim(0), 4 * page);
}

TEST_F(PageArenaTest, SizesBeyondAnyAddressSpaceAreRefused) {
  for (auto const bytes : {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX / 2, SIZE_MAX / 4 + 1}) {
    EXPECT_EQ(take(bytes), nullptr);
    EXPECT_EQ(gather(bytes, any), nullptr);
    EXPECT_THROW(static_cast<void>(grow(bytes)), OutOfMemory);
  }
  EXPECT_EQ(source.calls, 0U);
}

TEST_F(PageArenaTest, FewerAddressesDoWhereMoreAreRefused) {
  source.address_limit = 100 * page;
  EXPECT_EQ(grow(80 * page).bytes, 80 * page);
  EXPECT_EQ(grow(90 * page).bytes, 90 * page);
  EXPECT_THROW(static_cast<void>(grow(101 * page)), OutOfMemory);
  arena.validate();
  EXPECT_EQ(source.live_bytes, 170 * page);
}

TEST(PageArenaOptions, AGranuleIsAPowerOfTwo) {
  ScriptedPages source{page};
  for (auto const granule : {std::size_t{0}, std::size_t{3}, 2 * page}) {
    EXPECT_THROW((PageArena{source, {.granule = granule}}), InvalidArgument);
  }
  PageArena whole{source, {.granule = page}};
  EXPECT_EQ(whole.grow(1)->bytes, page);
}

/// Every call of one scenario fails once; what it was made for can then be repeated.
TEST(PageArenaFaults, AfterAnyFailureTheSameRequestSucceeds) {
  for (bool const shifts : {false, true}) {
    bool fired = true;
    for (std::size_t failing = 1; fired; ++failing) {
      SCOPED_TRACE(::testing::Message() << "call " << failing << (shifts ? " of a source that shifts" : ""));
      ScriptedPages source{page};
      source.shifts = shifts;
      PageArena arena{source};
      fired = false;
      source.on_call = [&] {
        if (source.calls != failing) return;
        fired = true;
        throw DeviceError("scripted", "call", -1, "SCRIPTED_FAILURE");
      };
      auto const check = [&] {
        arena.validate();
        EXPECT_EQ(arena.reserved(), source.live_bytes);
        EXPECT_EQ(arena.reserved(), source.behind.size() * page);
      };
      auto const persist = [&](auto&& request) {
        for (int attempt = 0;; ++attempt) {
          try {
            auto* const span = request();
            check();
            return span;
          } catch (DeviceError const&) {
            check();
            EXPECT_EQ(attempt, 0);
          }
        }
      };
      std::vector<Span*> spans;
      for (int i = 0; i < 8; ++i) {
        spans.push_back(persist([&] { return arena.grow((3 + static_cast<std::size_t>(i) % 3) * page); }));
      }
      for (std::size_t i = 0; i < 8; i += 2) arena.give(*spans[i]);
      auto* const all = persist([&] { return arena.gather(arena.free_in_pages() + 2 * page, page, any); });
      ASSERT_NE(all, nullptr);
      EXPECT_EQ(arena.free(), 0U);
      arena.give(*all);
      arena.give(*spans[1]);
      ASSERT_NE(persist([&] { return arena.gather(arena.free(), 1, 0); }), nullptr);
      EXPECT_EQ(source.live_bytes, arena.used());
      source.on_call = {};
    }
  }
}

}  // namespace
}  // namespace unimem
