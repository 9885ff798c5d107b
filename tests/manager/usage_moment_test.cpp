#include <unimem/device/discovery.hpp>

#include "manager/usage_book.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <list>
#include <string>
#include <thread>

// What the book says while others write in it is of one moment.

namespace unimem::detail {
namespace {

TEST(UsageMoment, PeaksAndTotalsAreOfOneMoment) {
  constexpr int names = 500, entered = 20'000;
  constexpr std::size_t bytes = 32 << 10;
  UsageBook book;
  std::list<UsageEntry> lines;
  for (int i = 0; i < names; ++i) {
    book.enter(lines.emplace_back(), {&device("cpu"), Location::host, Name("line " + std::to_string(i))}, 1, 1);
  }
  // Nothing leaves: all that was ever entered lives, and the peak is exactly that.
  std::list<UsageEntry> growing;
  std::atomic<bool> done{false};
  std::jthread const writer([&] {
    for (int i = 0; i < entered; ++i) {
      book.enter(growing.emplace_back(), {&device("cpu"), Location::host, Name("growing")}, bytes, 2);
    }
    done = true;
  });
  auto const look = [&] {
    auto const usage = book.usage();
    EXPECT_EQ(usage.total.peak_bytes, usage.total.allocated_bytes);
    ASSERT_EQ(usage.places.size(), 1U);
    EXPECT_EQ(usage.places[0].counts.peak_bytes, usage.places[0].counts.allocated_bytes);
  };
  do look();
  while (!done && !::testing::Test::HasFailure());
}

}  // namespace
}  // namespace unimem::detail
