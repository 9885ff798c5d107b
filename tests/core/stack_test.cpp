#include <unimem/core/error.hpp>

#include "core/stack.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace unimem::detail {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

/// Calls that stacks must show.
[[gnu::noinline]] std::vector<std::uintptr_t> capture_in_a_named_place() {
  auto calls = capture_stack();
  EXPECT_LE(calls.size(), most_calls);  // work after the call, or it would be a jump and on no stack
  return calls;
}

[[gnu::noinline]] std::unique_ptr<Trail> begin_in_a_named_place() {
  auto trail = begin_trail();
  EXPECT_NE(trail, nullptr);
  return trail;
}

[[gnu::noinline]] std::size_t capture_so_deep(std::span<std::uintptr_t> calls, int more) {
  auto const count = more == 0 ? capture_stack(calls) : capture_so_deep(calls, more - 1);
  EXPECT_LE(count, calls.size());
  return count;
}

TEST(Stacks, NameTheFunctionsOnThem) {
  if (!can_capture_stacks()) GTEST_SKIP() << "this build captures no stacks";
  EXPECT_THAT(describe_calls("captured by", capture_in_a_named_place()), HasSubstr("capture_in_a_named_place"));
}

TEST(Stacks, ShowCallsOfOtherLanguagesByTheirNumbers) {
  auto const first = name_call("solve at heat.py:12"), second = name_call("main at heat.py:30");
  EXPECT_EQ(describe_address(first), "solve at heat.py:12");
  EXPECT_EQ(describe_address(second), "main at heat.py:30");
  EXPECT_EQ(name_call("solve at heat.py:12"), first);
  EXPECT_NE(first, second);
  EXPECT_THAT(describe_calls("made by", std::array{first, second}),
              HasSubstr("solve at heat.py:12\n      main at heat.py:30"));
  EXPECT_THAT(describe_address(UINTPTR_MAX), StartsWith("0x")) << "no number of any";
}

TEST(Stacks, HaveTheInnermostCallsThatFit) {
  if (!can_capture_stacks()) GTEST_SKIP() << "this build captures no stacks";
  std::array<std::uintptr_t, 8> few{};
  EXPECT_EQ(capture_so_deep(std::span(few).first(3), 200), 3U);
  EXPECT_EQ(std::ranges::count(few, std::uintptr_t{0}), 5);
  EXPECT_EQ(capture_so_deep(std::span(few).first(0), 5), 0U);
  std::array<std::uintptr_t, 2 * most_calls> all{};
  EXPECT_EQ(capture_so_deep(all, 200), all.size());
  EXPECT_THAT(describe_address(all.front()), HasSubstr("capture_so_deep"));
}

TEST(Stacks, OfATrailAreThoseOfItsBeginning) {
  if (!can_capture_stacks()) GTEST_SKIP() << "this build captures no stacks";
  auto const trail = begin_in_a_named_place();
  EXPECT_THAT(describe_calls("acquired by", trail->acquired.calls()), HasSubstr("begin_in_a_named_place"));
  EXPECT_THAT(trail->released.calls(), IsEmpty());
  trail->released.capture();
  EXPECT_FALSE(trail->released.calls().empty());
}

TEST(Stacks, AreDescribedALineEach) {
  EXPECT_EQ(describe_calls("acquired by", {}), "");
  std::array<std::uintptr_t, 2> const calls{1, 2};
  auto const text = describe_calls("acquired by", calls);
  EXPECT_THAT(text, StartsWith("\n  acquired by\n      "));
  EXPECT_EQ(std::ranges::count(text, '\n'), 3);
  EXPECT_THAT(text, HasSubstr(describe_address(2)));
}

TEST(Stacks, AreCapturedOfEveryNth) {
  StackSampler none, some, all;
  int of_none = 0, of_some = 0, of_all = 0;
  for (int i = 0; i < 9; ++i) {
    of_none += none.is_due({}) ? 1 : 0;
    of_some += some.is_due({.every = 3}) ? 1 : 0;
    of_all += all.is_due({.every = 1}) ? 1 : 0;
  }
  EXPECT_EQ(of_none, 0);
  EXPECT_EQ(of_some, 3);
  EXPECT_EQ(of_all, 9);
}

TEST(Stacks, AreRefusedWhereTheyCannotBeCaptured) {
  EXPECT_NO_THROW(require_stacks({}));
  if (can_capture_stacks()) {
    EXPECT_NO_THROW(require_stacks({.every = 1}));
  } else {
    EXPECT_THROW(require_stacks({.every = 1}), UnsupportedOperation);
    EXPECT_THAT(capture_in_a_named_place(), IsEmpty());
  }
}

}  // namespace
}  // namespace unimem::detail
