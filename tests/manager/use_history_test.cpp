#include "manager/use_history.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <numeric>
#include <random>
#include <vector>

namespace unimem::detail {
namespace {

using Uses = std::vector<std::size_t>;  // which of some things of one size is used, one after the other

constexpr std::size_t bytes = 4096;

Uses loop(std::size_t count, std::size_t passes) {
  Uses uses;
  for (std::size_t i = 0; i < count * passes; ++i) uses.push_back(i % count);
  return uses;
}

Uses zipf(std::size_t count, std::size_t length, unsigned seed) {
  std::mt19937 random{seed};
  std::vector<double> weights;
  for (std::size_t i = 0; i < count; ++i) weights.push_back(1.0 / static_cast<double>(i + 1));
  std::discrete_distribution<std::size_t> draw(weights.begin(), weights.end());
  std::vector<std::size_t> names(count);
  std::iota(names.begin(), names.end(), 0);
  std::ranges::shuffle(names, random);
  Uses uses;
  for (std::size_t i = 0; i < length; ++i) uses.push_back(names[draw(random)]);
  return uses;
}

/// How often something had to be brought in, with room for `room` of them, if `worth_keeping` says who goes: the one it
/// has the largest number for.
std::size_t loads(Uses const& uses, std::size_t room, std::function<void(std::size_t at)> const& use,
                  std::function<double(std::size_t what, std::size_t at)> const& wait) {
  std::vector<std::size_t> inside;
  std::size_t brought = 0;
  for (std::size_t at = 0; at < uses.size(); ++at) {
    use(at);
    if (std::ranges::find(inside, uses[at]) != inside.end()) continue;
    ++brought;
    if (inside.size() == room) {
      inside.erase(std::ranges::max_element(inside, {}, [&](std::size_t what) { return wait(what, at); }));
    }
    inside.push_back(uses[at]);
  }
  return brought;
}

std::size_t foreseen(Uses const& uses, std::size_t room) {
  UseClock clock;
  std::map<std::size_t, UseHistory> histories;
  return loads(
      uses, room, [&](std::size_t at) { histories[uses[at]].used(clock, bytes); },
      [&](std::size_t what, std::size_t) { return histories[what].expected_wait(clock); });
}

std::size_t optimal(Uses const& uses, std::size_t room) {
  std::vector<std::size_t> next(uses.size());
  std::map<std::size_t, std::size_t> seen;
  for (std::size_t at = uses.size(); at-- > 0;) {
    next[at] = seen.contains(uses[at]) ? seen[uses[at]] : 2 * uses.size();
    seen[uses[at]] = at;
  }
  std::map<std::size_t, std::size_t> coming;
  return loads(
      uses, room, [&](std::size_t at) { coming[uses[at]] = next[at]; },
      [&](std::size_t what, std::size_t) { return static_cast<double>(coming[what]); });
}

std::size_t least_recent(Uses const& uses, std::size_t room) {
  std::map<std::size_t, std::size_t> last;
  return loads(
      uses, room, [&](std::size_t at) { last[uses[at]] = at; },
      [&](std::size_t what, std::size_t at) { return static_cast<double>(at - last[what]); });
}

double ratio(std::size_t ours, std::size_t others) {
  return static_cast<double>(ours) / static_cast<double>(others);
}

TEST(UseHistory, ALoopThatDoesNotFitIsForeseenNearlyAsIfItWereKnown) {
  auto const uses = loop(256, 8);
  EXPECT_LE(ratio(foreseen(uses, 128), optimal(uses, 128)), 1.02);
  EXPECT_EQ(least_recent(uses, 128), uses.size());  // what there is to gain: it never finds anything
}

TEST(UseHistory, ALoopThatFitsIsLoadedOnce) {
  EXPECT_EQ(foreseen(loop(128, 8), 128), 128U);
}

TEST(UseHistory, BurstsDoNotHideTheLoopTheyComeIn) {
  Uses uses;
  for (auto const what : loop(256, 8)) uses.insert(uses.end(), 3, what);
  EXPECT_LE(ratio(foreseen(uses, 128), optimal(uses, 128)), 1.02);
}

TEST(UseHistory, LoopsWithinALoopAreToldApart) {
  Uses uses;
  for (std::size_t pass = 0; pass < 4; ++pass) {
    for (std::size_t block = 0; block < 3; ++block) {
      for (auto const what : loop(160, 3)) uses.push_back(block * 160 + what);
    }
  }
  EXPECT_LE(ratio(foreseen(uses, 128), optimal(uses, 128)), 1.15);
}

TEST(UseHistory, FavouritesStayThoughOthersWereUsedLater) {
  for (auto const seed : {1U, 2U, 3U}) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    auto const uses = zipf(256, 30'000, seed);
    EXPECT_LE(ratio(foreseen(uses, 128), least_recent(uses, 128)), 0.8);
  }
}

TEST(UseHistory, YesterdaysFavouritesAreForgotten) {
  std::mt19937 random{5};
  Uses uses;
  for (std::size_t i = 0; i < 6'000; ++i) uses.push_back(random() % 110 + i / 1'500 * 200);
  EXPECT_LE(ratio(foreseen(uses, 128), least_recent(uses, 128)), 1.1);
}

TEST(UseHistory, OfWhatWasNeverUsedTwiceTheOldestRestsLongest) {
  UseClock clock;
  UseHistory first, second, never;
  first.used(clock, bytes);
  second.used(clock, bytes);
  EXPECT_GT(first.expected_wait(clock), second.expected_wait(clock));
  EXPECT_GT(never.expected_wait(clock), first.expected_wait(clock));
}

TEST(UseHistory, TimeIsTheBytesThatOthersUse) {
  UseClock clock;
  UseHistory one, other;
  for (int i = 0; i < 4; ++i) {
    one.used(clock, bytes);
    other.used(clock, 9 * bytes);
  }
  EXPECT_EQ(clock.now(), 40 * bytes);
  EXPECT_DOUBLE_EQ(one.expected_wait(clock), bytes);  // of a gap of ten, nine have passed
  EXPECT_DOUBLE_EQ(other.expected_wait(clock), 10.0 * bytes);
}

}  // namespace
}  // namespace unimem::detail
