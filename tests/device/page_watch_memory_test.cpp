#include <unimem/core/error.hpp>

#include "device/page_tracker.hpp"
#include "device/page_watch_fixture.hpp"

#include <gtest/gtest.h>

#include <sys/mman.h>

#include <cstdint>

// What a watch makes of memory that changes its nature: huge pages, pages that were dropped, joined or mapped anew.

namespace unimem::detail {
namespace {

TEST_F(PageWatchTest, AHugePageIsWatchedInSmallPages) {
  AnonymousMemory const memory{4 * huge_page, MADV_HUGEPAGE};
  memory.touch();
  PageWatch watch{memory.data(), memory.size()};
  EXPECT_TRUE(watch.peek(memory.all()).empty());
  auto const number = huge_page / page + 17;
  memory[number * page + 5] = std::byte{2};
  EXPECT_EQ(watch.collect(memory.all()), set_of_pages({number})) << "and not the two megabytes around it";
  EXPECT_TRUE(memory.holds({0, number * page + 5}, std::byte{1})) << "splitting it lost nothing";
  EXPECT_TRUE(memory.holds({number * page + 6, memory.size()}, std::byte{1}));
}

TEST_F(PageWatchTest, PartsOfHugePagesCanBeCollected) {
  AnonymousMemory const memory{2 * huge_page, MADV_HUGEPAGE};
  memory.touch();
  PageWatch watch{memory.data(), memory.size()};
  watch.mark_written(memory.all());  // whole huge pages
  EXPECT_EQ(watch.collect({100 * page, 103 * page}), ByteRanges(pages(100, 103)));
  watch.arm(pages(200, 210));
  ByteRanges rest{memory.all()};
  rest.remove(pages(100, 103));
  rest.remove(pages(200, 210));
  EXPECT_EQ(watch.collect(memory.all()), rest);
  EXPECT_TRUE(memory.holds(memory.all(), std::byte{1}));
}

TEST_F(PageWatchTest, JoiningSmallPagesIntoHugeOnesForgetsNothing) {
#ifndef MADV_COLLAPSE
  constexpr int MADV_COLLAPSE = 25;
#endif
  AnonymousMemory const memory{2 * huge_page};
  memory.touch();
  PageWatch watch{memory.data(), memory.size()};
  madvise(memory.data(), memory.size(), MADV_HUGEPAGE);
  memory[5 * page] = std::byte{2};
  std::memset(&memory[huge_page], 3, huge_page);
  auto expected = set_of_pages({5});
  expected.add({huge_page, 2 * huge_page});
  // The kernel may do so at any time; whether it does, or refuses because of the watch, is its own affair.
  static_cast<void>(madvise(memory.data(), memory.size(), MADV_COLLAPSE));
  static_cast<void>(madvise(&memory[huge_page], huge_page, MADV_COLLAPSE));
  EXPECT_EQ(watch.collect(memory.all()), expected);
  static_cast<void>(madvise(memory.data(), memory.size(), MADV_COLLAPSE));
  memory[huge_page + 3 * page] = std::byte{4};
  EXPECT_EQ(watch.collect(memory.all()), ByteRanges({huge_page + 3 * page, huge_page + 4 * page}));
}

/// What the memory is made of when it is dropped.
class DroppedMemory : public PageWatchTest, public ::testing::WithParamInterface<int> {};

TEST_P(DroppedMemory, CountsAsWrittenSinceItReadsZero) {
  AnonymousMemory const memory{6 * huge_page, GetParam()};
  memory.touch();
  PageWatch watch{memory.data(), memory.size()};
  // A part of a table of pages, and tables that go as a whole.
  ByteRange const part{huge_page / 2, huge_page / 2 + 4 * page}, whole{2 * huge_page, 5 * huge_page};
  for (auto const range : {part, whole}) ASSERT_EQ(madvise(&memory[range.begin], range.size(), MADV_DONTNEED), 0);
  ByteRanges expected{part};
  expected.add(whole);
  EXPECT_EQ(watch.peek(memory.all()), expected);
  EXPECT_TRUE(memory.holds(part, std::byte{0})) << "reading it makes no difference";
  EXPECT_EQ(watch.collect(memory.all()), expected);
  EXPECT_TRUE(watch.collect(memory.all()).empty());
  EXPECT_TRUE(memory.holds(whole, std::byte{0}));
  EXPECT_TRUE(watch.collect(memory.all()).empty());
  memory[3 * huge_page + 7 * page] = std::byte{1};
  EXPECT_EQ(watch.collect(memory.all()), ByteRanges({3 * huge_page + 7 * page, 3 * huge_page + 8 * page}));
}

// What kernels before the middle of 2026 need, which skip dropped tables in a scan for written pages.
TEST_P(DroppedMemory, IsFoundByAScanForIt) {
  AnonymousMemory const memory{6 * huge_page, GetParam()};
  memory.touch();
  auto& tracker = PageTracker::of_this_process();
  PageWatch watch{memory.data(), memory.size()};
  memory[page] = std::byte{2};
  ByteRange const whole{2 * huge_page, 5 * huge_page};
  ASSERT_EQ(madvise(&memory[whole.begin], whole.size(), MADV_DONTNEED), 0);
  auto const origin = reinterpret_cast<std::uintptr_t>(memory.data());
  ByteRanges found;
  tracker.scan(origin, memory.all(), PageTracker::Wanted::unbacked, PageTracker::Then::leave, found);
  EXPECT_EQ(found, ByteRanges{whole});
  found.clear();
  tracker.scan(origin, memory.all(), PageTracker::Wanted::unbacked, PageTracker::Then::arm, found);
  EXPECT_EQ(found, ByteRanges{whole});
  EXPECT_EQ(watch.collect(memory.all()), set_of_pages({1})) << "they are armed now";
  memory[whole.begin + page] = std::byte{2};
  EXPECT_EQ(watch.collect(memory.all()), ByteRanges({whole.begin + page, whole.begin + 2 * page}));
}

INSTANTIATE_TEST_SUITE_P(Of, DroppedMemory, ::testing::Values(MADV_NOHUGEPAGE, MADV_HUGEPAGE),
                         [](auto const& tested) { return tested.param == MADV_HUGEPAGE ? "HugePages" : "SmallPages"; });

TEST_F(PageWatchTest, RemappedMemoryIsNotClean) {
  AnonymousMemory const memory{8 * page};
  PageWatch watch{memory.data(), memory.size()};
  ASSERT_NE(mmap(&memory[2 * page], 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            MAP_FAILED);
  memory[0] = memory[3 * page] = memory[7 * page] = std::byte{1};
  EXPECT_THROW(static_cast<void>(watch.peek(memory.all())), DeviceError);
  EXPECT_EQ(watch.collect(pages(4, 8)), set_of_pages({7})) << "the rest is still watched";
}

}  // namespace
}  // namespace unimem::detail
