#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "manager/usage_book.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace unimem {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// What holds memory as a buffer does, one floor below buffers.
struct Holder {
  Allocation memory;
  detail::UsageEntry entry;

  Holder(MemoryManager& manager, std::size_t bytes, char const* name)
      : memory(manager.acquire(device("cpu"), Location::host, bytes)) {
    manager.usage_book().enter(entry, {&device("cpu"), Location::host, Name(name)}, bytes, 42);
  }
};

/// A call that the planted leak's stack must show.
[[gnu::noinline]] std::unique_ptr<Holder> plant_a_leak(MemoryManager& manager) {
  auto planted = std::make_unique<Holder>(manager, 12'345, "planted");
  EXPECT_TRUE(planted->memory);  // work after the call, or it would be a jump and on no stack
  return planted;
}

TEST(Leaks, ABalancedManagerHasNone) {
  MemoryManager manager;
  Holder(manager, 100, "gone");
  auto const report = manager.leak_report();
  EXPECT_TRUE(report.empty());
  EXPECT_EQ(report.text(), "");
  EXPECT_EQ(manager.usage().total.allocations, 1U);
}

TEST(Leaks, AreListedLargestFirstWithTheirDetails) {
  MemoryManager manager;
  Holder const small(manager, 100, "small"), large(manager, 5000, "large"), nameless(manager, 300, "");
  auto const report = manager.leak_report();
  ASSERT_EQ(report.allocations.size(), 3U);
  EXPECT_EQ(report.bytes, 5400U);
  EXPECT_EQ(report.allocations[0].name.view(), "large");
  EXPECT_EQ(report.allocations[0].device->id(), "cpu");
  EXPECT_EQ(report.allocations[0].buffer, 42U);
  EXPECT_EQ(report.allocations[1].bytes, 300U);
  EXPECT_GE(report.allocations[0].age_seconds, 0.0);
  EXPECT_THAT(report.allocations[0].stack, IsEmpty()) << "nobody asked for it";
  auto const text = report.text();
  EXPECT_THAT(text, HasSubstr("in 3 pieces have not been given back"));
  EXPECT_THAT(text, HasSubstr("100 B on cpu host"));
  EXPECT_THAT(text, HasSubstr("'large'"));
  EXPECT_THAT(report.text(1), HasSubstr("and 2 more"));
  EXPECT_THAT(report.text(1), Not(HasSubstr("'small'")));
}

TEST(Leaks, APlantedOneShowsNameAndStack) {
  if (!can_capture_stacks()) GTEST_SKIP() << "this build captures no stacks";
  ManagerOptions options;
  options.leaks.stacks.every = 1;
  MemoryManager manager(options);
  auto const planted = plant_a_leak(manager);
  auto const report = manager.leak_report();
  ASSERT_EQ(report.allocations.size(), 1U);
  EXPECT_EQ(report.allocations[0].name.view(), "planted");
  EXPECT_EQ(report.allocations[0].bytes, 12'345U);
  EXPECT_THAT(report.text(), HasSubstr("plant_a_leak"));
}

TEST(Leaks, AreReportedAtManagerEndIfAsked) {
  std::optional<LeakReport> told;
  std::unique_ptr<Holder> planted;
  {
    ManagerOptions options;
    options.leaks.report_at_end = true;
    options.leaks.report = [&](LeakReport const& report) { told = report; };
    MemoryManager manager(options);
    planted = plant_a_leak(manager);
    planted->memory.release();  // pools complain of blocks by themselves
    EXPECT_FALSE(told);
  }
  ASSERT_TRUE(told);
  ASSERT_EQ(told->allocations.size(), 1U);
  EXPECT_EQ(told->allocations[0].name.view(), "planted");
  std::jthread([&] { planted.reset(); }).join();  // after its manager, and elsewhere
}

TEST(Leaks, NoReportComesUnaskedOrWithoutLeaks) {
  int calls = 0;
  std::unique_ptr<Holder> planted;
  {
    ManagerOptions options;
    options.leaks.report = [&](LeakReport const&) { ++calls; };
    MemoryManager unasked(options);
    planted = plant_a_leak(unasked);
    planted->memory.release();
    options.leaks.report_at_end = true;
    MemoryManager const balanced(options);
  }
  EXPECT_EQ(calls, 0);
}

TEST(Leaks, AReportThatThrowsEndsNothing) {
  std::unique_ptr<Holder> planted;
  {
    ManagerOptions options;
    options.leaks.report_at_end = true;
    options.leaks.report = [](LeakReport const&) { throw InvalidArgument("report", "it", "not thrown"); };
    MemoryManager manager(options);
    planted = plant_a_leak(manager);
    planted->memory.release();
  }
  SUCCEED() << "the process lives";
}

TEST(Placing, CountsMissingUnifiedMemoryAndRefusedPinning) {
  MemoryManager manager;
  EXPECT_EQ(manager.place(device("cpu"), {.bytes = 1}).rule, PlacementRule::shared_memory);
  EXPECT_EQ(manager.statistics().missing_unified, 0U);
  manager.note_missing_unified();
  manager.note_refused_pinning();
  EXPECT_EQ(manager.statistics().missing_unified, 1U);
  EXPECT_EQ(manager.statistics().refused_pinnings, 1U);
  auto const hints = manager.recommendations(device("cpu")).hints;
  EXPECT_THAT(hints, Contains(HasSubstr("unified memory was asked for")));
  EXPECT_THAT(hints, Contains(HasSubstr("locked memory was refused")));
}

TEST(Leaks, NamedCallsComeBeforeTheNativeStack) {
  if (!can_capture_stacks()) GTEST_SKIP() << "this build captures no stacks";
  ManagerOptions options;
  options.leaks.stacks.every = 2;
  MemoryManager manager(options);
  std::vector<std::uintptr_t> const made_by{name_call("solve at heat.py:12"), name_call("main at heat.py:30")};
  std::vector<std::uintptr_t> const nobody;
  std::array<detail::UsageEntry, 4> entries;
  auto const enter = [&](std::size_t i, std::vector<std::uintptr_t> const* by) {
    manager.usage_book().enter(entries.at(i), {&device("cpu"), Location::host, Name("x")}, 100, i, by);
  };
  enter(0, &nobody);
  enter(1, &made_by);
  enter(2, nullptr);  // the first that is counted, of every two
  enter(3, &made_by);
  for (auto const& one : manager.live()) {
    bool const noted = one.buffer == 1 || one.buffer == 3;
    EXPECT_EQ(one.stack.empty(), one.buffer == 0);
    if (!noted) continue;
    ASSERT_GT(one.stack.size(), 2U);
    EXPECT_EQ(std::vector(one.stack.begin(), one.stack.begin() + 2), made_by);
  }
  EXPECT_THAT(manager.leak_report().text(), HasSubstr("solve at heat.py:12\n      main at heat.py:30\n"));
}

}  // namespace
}  // namespace unimem
