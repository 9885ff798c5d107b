#include "device/page_set.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace unimem::detail {
namespace {

TEST(PageSet, HasNothingAtFirst) {
  for (std::size_t const pages : {1U, 63U, 64U, 65U, 1000U}) {
    PageSet const set{pages};
    EXPECT_EQ(set.size(), pages);
    EXPECT_TRUE(set.has_none(0, pages));
    EXPECT_EQ(set.next_in(0, pages), pages);
    EXPECT_EQ(set.next_out(0, pages), 0U);
  }
}

TEST(PageSet, ARangeEndsWithItsWord) {
  PageSet set{192};
  set.add(64, 64);
  EXPECT_TRUE(set.has_all(64, 64));
  EXPECT_TRUE(set.has_none(0, 64));
  EXPECT_TRUE(set.has_none(128, 64));
  EXPECT_EQ(set.next_in(0, 192), 64U);
  EXPECT_EQ(set.next_out(64, 192), 128U);
  EXPECT_FALSE(set.has_all(63, 65));
  EXPECT_FALSE(set.has_all(64, 65));
  set.remove(65, 62);
  EXPECT_EQ(set.next_out(64, 192), 65U);
  EXPECT_EQ(set.next_in(65, 192), 127U);
}

TEST(PageSet, SearchesStopAtTheirEnd) {
  PageSet set{128};
  set.add(10, 5);
  EXPECT_EQ(set.next_in(0, 10), 10U) << "the end, not the page";
  EXPECT_EQ(set.next_in(0, 8), 8U);
  EXPECT_TRUE(set.has_none(15, 0));
  EXPECT_TRUE(set.has_all(0, 0)) << "of nothing, all are in";
}

/// Random changes, every answer compared with that of one bool a page.
class PageSetModel : public ::testing::TestWithParam<unsigned> {};

TEST_P(PageSetModel, AgreesWithOneBoolPerPage) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  std::minstd_rand random{GetParam()};
  auto const pages = std::size_t{1} + random() % 400;
  PageSet set{pages};
  std::vector<bool> model(pages);
  auto const next = [&model](std::size_t from, std::size_t end, bool wanted) {
    while (from < end && model[from] != wanted) ++from;
    return from;
  };
  for (int step = 0; step < 3000; ++step) {
    auto const first = random() % pages;
    auto const count = random() % (random() % 2 == 0 ? std::min<std::size_t>(pages - first, 5) + 1 : pages - first + 1);
    switch (random() % 3) {
      case 0:
        set.add(first, count);
        std::fill_n(model.begin() + static_cast<std::ptrdiff_t>(first), count, true);
        break;
      case 1:
        set.remove(first, count);
        std::fill_n(model.begin() + static_cast<std::ptrdiff_t>(first), count, false);
        break;
      default: {
        auto const end = first + count;
        ASSERT_EQ(set.next_in(first, end), next(first, end, true));
        ASSERT_EQ(set.next_out(first, end), next(first, end, false));
        ASSERT_EQ(set.has_all(first, count), next(first, end, false) == end);
        ASSERT_EQ(set.has_none(first, count), next(first, end, true) == end);
      }
    }
  }
  for (std::size_t page = 0; page < pages; ++page) ASSERT_EQ(set.has_all(page, 1), model[page]) << "page " << page;
}

INSTANTIATE_TEST_SUITE_P(Seeds, PageSetModel, ::testing::Values(1U, 2U, 3U, 4U, 5U, 2026U));

}  // namespace
}  // namespace unimem::detail
