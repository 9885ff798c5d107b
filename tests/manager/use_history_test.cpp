#include "manager/use_history.hpp"
#include "manager/use_patterns.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <random>

namespace unimem::detail {
namespace {

constexpr std::size_t bytes = 4096;

std::size_t foreseen(Uses const& uses, std::size_t room) {
  UseClock clock;
  std::map<std::size_t, UseHistory> histories;
  return loads(
      uses, room, [&](std::size_t at) { histories[uses[at]].used(clock, bytes); },
      [&](std::size_t what, std::size_t) { return histories[what].expected_wait(clock); });
}

double ratio(std::size_t ours, std::size_t others) {
  return static_cast<double>(ours) / static_cast<double>(others);
}

TEST(UseHistory, ALoopThatDoesNotFitIsForeseen) {
  auto const uses = loop(256, 8);
  EXPECT_LE(ratio(foreseen(uses, 128), optimal_loads(uses, 128)), 1.02);
  EXPECT_EQ(least_recent_loads(uses, 128), uses.size());  // what there is to gain: it never finds anything
}

TEST(UseHistory, ALoopThatFitsIsLoadedOnce) {
  EXPECT_EQ(foreseen(loop(128, 8), 128), 128U);
}

TEST(UseHistory, BurstsDoNotHideTheirLoop) {
  Uses uses;
  for (auto const what : loop(256, 8)) uses.insert(uses.end(), 3, what);
  EXPECT_LE(ratio(foreseen(uses, 128), optimal_loads(uses, 128)), 1.02);
}

TEST(UseHistory, LoopsWithinALoopAreToldApart) {
  Uses uses;
  for (std::size_t pass = 0; pass < 4; ++pass) {
    for (std::size_t block = 0; block < 3; ++block) {
      for (auto const what : loop(160, 3)) uses.push_back(block * 160 + what);
    }
  }
  EXPECT_LE(ratio(foreseen(uses, 128), optimal_loads(uses, 128)), 1.15);
}

TEST(UseHistory, FavouritesStayThoughOthersWereUsedLater) {
  for (auto const seed : {1U, 2U, 3U}) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    auto const uses = zipf(256, 30'000, seed);
    EXPECT_LE(ratio(foreseen(uses, 128), least_recent_loads(uses, 128)), 0.8);
  }
}

TEST(UseHistory, YesterdaysFavouritesAreForgotten) {
  std::mt19937 random{5};
  Uses uses;
  for (std::size_t i = 0; i < 6'000; ++i) uses.push_back(random() % 110 + i / 1'500 * 200);
  EXPECT_LE(ratio(foreseen(uses, 128), least_recent_loads(uses, 128)), 1.1);
}

TEST(UseHistory, OlderSingleUsesAreExpectedLater) {
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
