#include "pool/page_arena.hpp"

#include <unimem/core/error.hpp>

#include "pool/scripted_pages.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <optional>
#include <random>
#include <utility>
#include <vector>

namespace unimem {
namespace {

using detail::PageArena;
using detail::Span;
using detail::SpanKind;
using ::testing::ElementsAre;

constexpr std::size_t KiB = 1024;
constexpr std::size_t MiB = 1024 * KiB;
constexpr std::size_t page = 64 * KiB;
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

TEST_F(PageArenaTest, TheLastPieceIsTheSmallestThatWillDo) {
  auto const spans = row({9, 1, 8, 1, 2, 1, 4, 1});
  for (auto const i : {0, 2, 4, 6}) give(*spans[static_cast<std::size_t>(i)]);
  ASSERT_NE(gather(11 * page), nullptr);
  EXPECT_EQ(arena.largest_free(), 8 * page) << "nine and two, and not two of eight";
}

TEST_F(PageArenaTest, WhatDoesNotSufficeIsRefusedAndNothingMoves) {
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

TEST_F(PageArenaTest, FreshPagesContinueTheLastFreeSpan) {
  auto const first = &grow(4 * page);
  give(*first);
  auto const base = first->base;
  auto const& span = grow(10 * page);
  EXPECT_EQ(span.base, base);
  EXPECT_EQ(source.live_bytes, 10 * page) << "six more";
}

TEST_F(PageArenaTest, AFreeSpanThatCanBeContinuedNeedNotMove) {
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

TEST_F(PageArenaTest, NeighboursShareAPageAndItMovesOnlyWhenAllOfItIsFree) {
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

TEST_F(PageArenaTest, TrimGivesBackTheLargestRunsAndEmptyReservations) {
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

TEST(PageArenaOptions, AGranuleIsAPowerOfTwoWithinAPage) {
  ScriptedPages source{page};
  for (auto const granule : {std::size_t{0}, std::size_t{3}, 2 * page}) {
    EXPECT_THROW((PageArena{source, {.granule = granule}}), InvalidArgument);
  }
  PageArena whole{source, {.granule = page}};
  EXPECT_EQ(whole.grow(1)->bytes, page);
}

/// What a pool does with an arena, held against what the source knows: which pages lie behind every span in use.
class ArenaUser {
 public:
  struct Held {
    Span* span;
    std::uintptr_t base;
    std::size_t bytes;
    ScriptedPages::Numbers numbers;
  };

  ArenaUser(ScriptedPages& source, PageArena& arena) : source_(source), arena_(arena) {}

  void step(std::mt19937_64& random, std::size_t most) {
    if (auto const kind = random() % 100; kind == 0) {
      auto const reserved = arena_.reserved();
      auto const given = arena_.trim(random() % (reserved + 1));
      ASSERT_EQ(arena_.reserved(), reserved - given);
    } else if (kind == 1) {
      auto const reserved = arena_.reserved(), in_pages = arena_.free_in_pages();
      arena_.gather_all();
      ASSERT_EQ(arena_.reserved(), reserved);
      ASSERT_EQ(arena_.free_in_pages(), in_pages);
      ASSERT_GE(arena_.largest_free(), in_pages) << "they lie side by side";
      ASSERT_EQ(arena_.gather_all(), 0U) << "nothing is left to move";
    } else if (held_.empty() || kind < 52) {
      std::uniform_real_distribution<double> logarithm(std::log(1.0), std::log(static_cast<double>(most)));
      acquire(static_cast<std::size_t>(std::exp(logarithm(random))), std::size_t{1} << random() % 17, random);
    } else {
      auto const which = random() % held_.size();
      std::swap(held_[which], held_.back());
      auto const span = held_.back().span;
      held_.pop_back();
      arena_.give(*span);
    }
  }

  void acquire(std::size_t bytes, std::size_t alignment, std::mt19937_64& random) {
    auto* span = arena_.take(bytes, alignment);
    if (span == nullptr && random() % 2 == 0) span = arena_.gather(bytes, alignment, 0);
    if (span == nullptr && random() % 2 == 0) span = arena_.gather(bytes, alignment, random() % (2 * bytes));
    if (span == nullptr) span = arena_.grow(bytes, alignment);
    ASSERT_EQ(span->kind, SpanKind::used);
    ASSERT_EQ(span->bytes, arena_.rounded(bytes));
    ASSERT_EQ(span->base % alignment, 0U);
    held_.push_back({span, span->base, span->bytes, source_.numbers(span->base, span->bytes)});
  }

  void check() const {
    arena_.validate();
    std::size_t used = 0;
    for (auto const& held : held_) {
      ASSERT_EQ(held.span->base, held.base) << "a span in use moved";
      ASSERT_EQ(held.span->bytes, held.bytes);
      ASSERT_EQ(source_.numbers(held.base, held.bytes), held.numbers) << "pages in use were exchanged";
      used += held.bytes;
    }
    ASSERT_EQ(arena_.used(), used);
    ASSERT_EQ(arena_.reserved(), source_.live_bytes);
    ASSERT_EQ(arena_.reserved(), source_.behind.size() * source_.page_bytes());
  }

  [[nodiscard]] bool overlap() const {
    std::map<std::uintptr_t, std::uintptr_t> ranges;
    for (auto const& held : held_) ranges.emplace(held.base, held.base + held.bytes);
    std::uintptr_t end = 0;
    for (auto const& [from, to] : ranges) {
      if (from < end) return true;
      end = to;
    }
    return ranges.size() != held_.size();
  }

  void give_all() {
    for (auto const& held : held_) arena_.give(*held.span);
    held_.clear();
  }

 private:
  ScriptedPages& source_;
  PageArena& arena_;
  std::vector<Held> held_;
};

struct Setting {
  unsigned seed;
  std::size_t page;
  std::size_t most;
  bool shifts;
  std::size_t whole_pages_from;
};

class PageArenaModel : public ::testing::TestWithParam<Setting> {};

TEST_P(PageArenaModel, EverySpanKeepsItsPagesWhateverHappensToOthers) {
  auto const& setting = GetParam();
  SCOPED_TRACE(::testing::Message() << "seed " << setting.seed);
  std::mt19937_64 random{setting.seed};
  ScriptedPages source{setting.page};
  source.shifts = setting.shifts;
  PageArena arena{source, {.granule = 256, .whole_pages_from = setting.whole_pages_from}};
  ArenaUser user{source, arena};
  for (int step = 0; step < 4000; ++step) {
    ASSERT_NO_FATAL_FAILURE(user.step(random, setting.most)) << "step " << step;
    ASSERT_NO_FATAL_FAILURE(user.check()) << "step " << step;
    ASSERT_TRUE(step % 100 != 0 || !user.overlap()) << "step " << step;
  }
  EXPECT_GT(arena.counts().gathers, 20U) << "or nothing was shown";
  user.give_all();
  user.check();
  EXPECT_EQ(arena.free_in_pages(), arena.free());
  arena.trim(0);
  EXPECT_EQ(source.live_bytes, 0U);
}

TEST_P(PageArenaModel, CallsThatFailAtAnyPointLoseNothing) {
  auto const& setting = GetParam();
  SCOPED_TRACE(::testing::Message() << "seed " << setting.seed);
  std::mt19937_64 random{setting.seed};
  ScriptedPages source{setting.page};
  source.shifts = setting.shifts;
  PageArena arena{source, {.granule = 256, .whole_pages_from = setting.whole_pages_from}};
  ArenaUser user{source, arena};
  // Faults come in bursts, so that putting pages back fails too.
  std::mt19937_64 luck{setting.seed + 1};
  int burst = 0;
  std::size_t faults = 0;
  source.on_call = [&] {
    if (burst == 0 && luck() % 4 == 0) burst = 1 + static_cast<int>(luck() % 3);
    if (burst == 0) return;
    --burst;
    ++faults;
    if (luck() % 2 == 0) throw OutOfMemory({.where = "scripted", .holders = {}, .reason = {}});
    throw DeviceError("scripted", "call", -1, "SCRIPTED_FAILURE");
  };
  for (int step = 0; step < 4000; ++step) {
    try {
      ASSERT_NO_FATAL_FAILURE(user.step(random, setting.most)) << "step " << step;
    } catch (Error const&) {
    }
    ASSERT_NO_FATAL_FAILURE(user.check()) << "step " << step;
  }
  EXPECT_GT(faults, 50U) << "or nothing was shown";
  source.on_call = {};
  user.give_all();
  arena.trim(0);
  EXPECT_EQ(source.live_bytes, 0U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, PageArenaModel,
                         ::testing::Values(Setting{1, page, 2 * MiB, false, 16}, Setting{2, page, 2 * MiB, true, 1},
                                           Setting{3, page, 8 * MiB, true, 16},
                                           Setting{4, 2 * MiB, 32 * MiB, false, 16},
                                           Setting{5, 2 * MiB, 32 * MiB, false, 1},
                                           Setting{2026, page, 512 * KiB, false, 1'000'000}));

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
      auto const persist = [&](auto&& request) {
        for (int attempt = 0;; ++attempt) {
          try {
            auto* const span = request();
            arena.validate();
            EXPECT_EQ(arena.reserved(), source.live_bytes);
            EXPECT_EQ(arena.reserved(), source.behind.size() * page);
            return span;
          } catch (DeviceError const&) {
            arena.validate();
            EXPECT_EQ(arena.reserved(), source.live_bytes);
            EXPECT_EQ(arena.reserved(), source.behind.size() * page);
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

/// Peak reserved against peak in use, as pools are judged.
double tightness(ScriptedPages& source, std::size_t smallest, std::size_t largest, std::size_t most_live) {
  PageArena arena{source};
  std::mt19937_64 random{7};
  std::uniform_real_distribution<double> logarithm(std::log(static_cast<double>(smallest)),
                                                   std::log(static_cast<double>(largest)));
  std::vector<std::pair<Span*, std::size_t>> live;
  std::size_t bytes = 0, peak = 0;
  for (int step = 0; step < 20'000; ++step) {
    auto const size = static_cast<std::size_t>(std::exp(logarithm(random)));
    while (bytes + size > most_live) {
      std::swap(live[random() % live.size()], live.back());
      arena.give(*live.back().first);
      bytes -= live.back().second;
      live.pop_back();
    }
    live.emplace_back(arena.gather(size, 1, any), size);
    bytes += size;
    peak = std::max(peak, bytes);
  }
  arena.validate();
  EXPECT_EQ(arena.reserved(), source.live_bytes);
  return static_cast<double>(source.peak_bytes) / static_cast<double>(peak);
}

TEST(PageArenaTightness, MixedSizesNeedHardlyMoreThanIsInUse) {
  ScriptedPages small{page};
  small.shifts = true;
  EXPECT_LT(tightness(small, 32 * KiB, 64 * MiB, 4096 * MiB), 1.02);
  ScriptedPages large{2 * MiB};
  large.shifts = true;
  EXPECT_LT(tightness(large, 256 * KiB, 64 * MiB, 4096 * MiB), 1.08);
}

}  // namespace
}  // namespace unimem
