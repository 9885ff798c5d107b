#include <unimem/core/name.hpp>

#include "core/sanitizers.hpp"
#include "forked_child.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <iterator>
#include <source_location>
#include <string>
#include <thread>
#include <type_traits>
#include <unordered_set>
#include <vector>

namespace unimem {
namespace {

static_assert(sizeof(Name) == sizeof(void*) && std::is_trivially_copyable_v<Name>);

TEST(Name, TheSameTextIsTheSameName) {
  std::string const text = "weights";
  Name const first{text}, second{"weights"};
  EXPECT_EQ(first, second);
  EXPECT_EQ(first.view().data(), second.view().data()) << "stored once";
  EXPECT_NE(first, Name{"Weights"});
  EXPECT_NE(first, Name{"weight"});
}

TEST(Name, KeepsItsTextWhenTheOriginalIsGone) {
  auto text = std::string(1000, 'x') + "end";
  Name const name{text};
  auto const expected = text;
  text.assign(2000, 'y');
  EXPECT_EQ(name.view(), expected);
}

TEST(Name, AForkedChildMakesNames) {
  if (detail::is_sanitized)
    GTEST_SKIP() << "a child that is forked while a thread allocates hangs in the sanitizer's runtime";
  std::atomic<bool> done{false};
  std::jthread const busy([&] {
    for (int i = 0; !done; ++i) static_cast<void>(Name{"name of the parent " + std::to_string(i % 1000)});
  });
  for (int round = 0; round < 100; ++round) {
    auto const child = fork();
    if (child == 0) {
      alarm(30);
      _exit(Name{"name of the parent 1"} == Name{"name of the parent 1"} && !Name{"child's"}.empty() ? 0 : 1);
    }
    EXPECT_EQ(ending_of(child), 0);
  }
  done = true;
}

TEST(Name, TheEmptyTextIsTheEmptyName) {
  EXPECT_EQ(Name{""}, Name{});
  EXPECT_TRUE(Name{}.empty());
  EXPECT_EQ(Name{}.view(), "");
  EXPECT_FALSE(Name{" "}.empty());
}

TEST(Name, ZerosArePartOfTheText) {
  using namespace std::string_view_literals;
  EXPECT_NE(Name{"a\0b"sv}, Name{"a"});
  EXPECT_EQ(Name{"a\0b"sv}.view(), "a\0b"sv);
}

TEST(Name, EqualNamesHashAlike) {
  std::unordered_set<Name> const names{Name{"a"}, Name{"b"}, Name{"a"}, Name{}, Name{""}};
  EXPECT_EQ(names.size(), 3U);
  EXPECT_TRUE(names.contains(Name{std::string{"b"}}));
}

TEST(Name, OfALocationIsFolderFileAndLine) {
  auto const name_of_this = [] { return Name::of(std::source_location::current()); };
  auto const line = std::to_string(__LINE__ - 1);
  EXPECT_EQ(name_of_this().view(), "core/name_test.cpp:" + line);
  EXPECT_EQ(name_of_this(), name_of_this());
  EXPECT_EQ(name_of_this(), Name{"core/name_test.cpp:" + line}) << "one text is one name";
  EXPECT_NE(name_of_this(), Name::of(std::source_location::current()));
  std::jthread([&] { EXPECT_EQ(name_of_this().view(), "core/name_test.cpp:" + line); }).join();
}

/// What four threads that begin at once find, each for itself.
template <class Find>
std::array<std::vector<Name>, 4> found_at_once(Find const& find) {
  std::array<std::vector<Name>, 4> seen;
  std::barrier start{std::ssize(seen)};
  std::vector<std::jthread> threads;
  for (auto& mine : seen) {
    threads.emplace_back([&start, &mine, &find] {
      start.arrive_and_wait();
      find(mine);
    });
  }
  threads.clear();
  return seen;
}

TEST(Name, ThreadsAgreeOnTheNamesOfLocations) {
  auto const seen = found_at_once([](std::vector<Name>& mine) {
    for (int round = 0; round < 100; ++round) {
      mine.push_back(Name::of(std::source_location::current()));
      mine.push_back(Name::of(std::source_location::current()));
      mine.push_back(Name::of(std::source_location::current()));
    }
  });
  for (auto const& others : seen) EXPECT_EQ(others, seen.front());
  EXPECT_EQ(std::unordered_set(seen.front().begin(), seen.front().end()).size(), 3U);
}

TEST(Name, OfAPlaceThatSaysNothingIsEmpty) {
  EXPECT_EQ(Name::of(std::source_location{}), Name{});
  EXPECT_EQ(Name::of("", 3), Name{});
}

TEST(Name, OfLocationsInOtherLanguagesIsAlike) {
  EXPECT_EQ(Name::of("/home/someone/solver/heat.py", 12).view(), "solver/heat.py:12");
  EXPECT_EQ(Name::of("solver/heat.py", 12), Name{"solver/heat.py:12"});
  EXPECT_EQ(Name::of("/heat.py", 12).view(), "heat.py:12");
  EXPECT_EQ(Name::of("heat.py", 12).view(), "heat.py:12");
  EXPECT_EQ(Name::of("<stdin>", 1).view(), "<stdin>:1");
}

TEST(Name, ThreadsThatMeetOverNewNamesAgree) {
  constexpr std::size_t count = 500;
  auto const seen = found_at_once([](std::vector<Name>& mine) {
    for (std::size_t i = 0; i < count; ++i) mine.emplace_back("thread test " + std::to_string(i));
  });
  for (auto const& others : seen) EXPECT_EQ(others, seen.front());
  for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(seen.front()[i].view(), "thread test " + std::to_string(i));
}

}  // namespace
}  // namespace unimem
