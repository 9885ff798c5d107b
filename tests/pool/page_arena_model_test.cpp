#include "pool/page_arena.hpp"

#include <unimem/core/error.hpp>

#include "core/sizes.hpp"
#include "pool/page_size.hpp"
#include "pool/scripted_pages.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

// A PageArena under random use: that it loses nothing, and how little it needs.

namespace unimem {
namespace {

using detail::PageArena;
using detail::Span;
using detail::SpanKind;

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
      arena_.gather_free();
      ASSERT_EQ(arena_.reserved(), reserved);
      ASSERT_EQ(arena_.free_in_pages(), in_pages);
      ASSERT_GE(arena_.largest_free(), in_pages) << "they lie side by side";
      ASSERT_EQ(arena_.gather_free(), 0U) << "nothing is left to move";
    } else if (kind == 2) {
      auto const reserved = arena_.reserved(), in_pages = arena_.free_in_pages(), before = runs();
      auto const limit = random() % (in_pages + 1);
      auto const moved = arena_.gather_free(limit);
      ASSERT_LE(moved, limit);
      ASSERT_EQ(arena_.reserved(), reserved);
      ASSERT_EQ(arena_.free_in_pages(), in_pages);
      ASSERT_LE(runs(), moved == 0 ? before : before - 1) << "whatever moves leaves less to do";
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

  [[nodiscard]] std::size_t runs() const {
    std::size_t sum = 0;
    arena_.for_each_returnable([&](std::size_t) { ++sum; });
    return sum;
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
  std::size_t pieces = 0;
};

class PageArenaModel : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    source.shifts = setting.shifts;
    source.pieces = setting.pieces;
  }
  void TearDown() override {
    user.give_all();
    user.check();
    EXPECT_EQ(arena.free_in_pages(), arena.free());
    arena.trim(0);
    EXPECT_EQ(source.live_bytes, 0U);
  }

  Setting const setting = GetParam();
  ::testing::ScopedTrace const trace{__FILE__, __LINE__, "seed " + std::to_string(setting.seed)};
  std::mt19937_64 random{setting.seed};
  ScriptedPages source{setting.page};
  PageArena arena{source, {.granule = 256, .whole_pages_from = setting.whole_pages_from}};
  ArenaUser user{source, arena};
};

TEST_P(PageArenaModel, EverySpanKeepsItsPages) {
  for (int step = 0; step < 4000; ++step) {
    ASSERT_NO_FATAL_FAILURE(user.step(random, setting.most)) << "step " << step;
    ASSERT_NO_FATAL_FAILURE(user.check()) << "step " << step;
    ASSERT_TRUE(step % 100 != 0 || !user.overlap()) << "step " << step;
  }
  EXPECT_GT(arena.counts().gathers, 20U) << "or nothing was shown";
}

TEST_P(PageArenaModel, CallsThatFailAtAnyPointLoseNothing) {
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
}

INSTANTIATE_TEST_SUITE_P(
    Seeds, PageArenaModel,
    ::testing::Values(Setting{1, page, 2 * MiB, false, 16}, Setting{2, page, 2 * MiB, true, 1},
                      Setting{3, page, 8 * MiB, true, 16}, Setting{4, 2 * MiB, 32 * MiB, false, 16},
                      Setting{5, 2 * MiB, 32 * MiB, false, 1}, Setting{2026, page, 512 * KiB, false, 1'000'000},
                      // Large growth comes in pieces that only go as a whole.
                      Setting{6, page, 16 * MiB, false, 16, 32}, Setting{7, page, 8 * MiB, true, 1, 4},
                      Setting{8, 2 * MiB, 256 * MiB, false, 16, 8}));

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
    live.emplace_back(arena.gather(size, 1, SIZE_MAX / 2), size);
    bytes += size;
    peak = std::max(peak, bytes);
  }
  arena.validate();
  EXPECT_EQ(arena.reserved(), source.live_bytes);
  return static_cast<double>(source.peak_bytes) / static_cast<double>(peak);
}

TEST(PageArenaTightness, MixedSizesNeedLittleMore) {
  ScriptedPages small{page};
  small.shifts = true;
  EXPECT_LT(tightness(small, 32 * KiB, 64 * MiB, 4096 * MiB), 1.02);
  ScriptedPages large{2 * MiB};
  large.shifts = true;
  EXPECT_LT(tightness(large, 256 * KiB, 64 * MiB, 4096 * MiB), 1.08);
  ScriptedPages in_pieces{2 * MiB};
  in_pieces.pieces = 32;
  EXPECT_LT(tightness(in_pieces, 256 * KiB, 1024 * MiB, 8192 * MiB), 1.05);
}

}  // namespace
}  // namespace unimem
