#include <unimem/core/error.hpp>

#include "device/linux_page_scan.hpp"
#include "device/page_tracker.hpp"
#include "device/page_watch_fixture.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>

namespace unimem::detail {
namespace {

#ifdef PAGEMAP_SCAN
// This system's headers know the scan: they and our own declarations agree.
static_assert(page_scan_request == PAGEMAP_SCAN && sizeof(PageScan) == sizeof(pm_scan_arg));
static_assert(offsetof(PageScan, walked_to) == offsetof(pm_scan_arg, walk_end));
static_assert(offsetof(PageScan, answered) == offsetof(pm_scan_arg, return_mask));
static_assert(sizeof(ScannedRegion) == sizeof(page_region));
static_assert(page_category::written == PAGE_IS_WRITTEN && page_category::present == PAGE_IS_PRESENT &&
              page_category::swapped == PAGE_IS_SWAPPED);
static_assert(page_scan_flag::protect_what_matches == PM_SCAN_WP_MATCHING &&
              page_scan_flag::refuse_untracked == PM_SCAN_CHECK_WPASYNC);
#endif
#ifdef UFFD_FEATURE_WP_ASYNC
static_assert(asynchronous_write_protection == UFFD_FEATURE_WP_ASYNC);
static_assert(protection_of_untouched_pages == UFFD_FEATURE_WP_UNPOPULATED);
#endif

TEST_F(PageWatchTest, NothingCountsAsWrittenAtFirst) {
  AnonymousMemory const memory{64 * page};
  std::memset(memory.data(), 7, 32 * page);
  PageWatch const watch{memory.data(), memory.size()};
  EXPECT_EQ(watch.base(), memory.data());
  EXPECT_EQ(watch.size_bytes(), memory.size());
  EXPECT_TRUE(watch.peek(memory.all()).empty());
  EXPECT_TRUE(memory.holds(pages(0, 32), std::byte{7}));
}

TEST_F(PageWatchTest, OneByteWrittenReportsExactlyItsPage) {
  AnonymousMemory const memory{16 * page};
  memory.touch();
  PageWatch watch{memory.data(), memory.size()};
  for (std::size_t const offset : {std::size_t{0}, page - 1, page, 7 * page + 100, 16 * page - 1}) {
    memory[offset] = std::byte{9};
    EXPECT_EQ(watch.collect(memory.all()), set_of_pages({offset / page}));
  }
  std::memset(&memory[5 * page - 1], 3, 2);
  EXPECT_EQ(watch.collect(memory.all()), set_of_pages({4, 5})) << "two bytes on two pages";
}

TEST_F(PageWatchTest, PagesThatWereOnlyReadStayClean) {
  AnonymousMemory const memory{2 * huge_page};
  std::memset(memory.data(), 7, huge_page);
  PageWatch watch{memory.data(), memory.size()};
  EXPECT_TRUE(memory.holds({0, huge_page}, std::byte{7}));
  EXPECT_TRUE(memory.holds({huge_page, 2 * huge_page}, std::byte{0})) << "never touched before";
  EXPECT_TRUE(watch.collect(memory.all()).empty());
  memory[huge_page + 3 * page] = std::byte{1};
  EXPECT_EQ(watch.collect(memory.all()), ByteRanges({huge_page + 3 * page, huge_page + 4 * page}))
      << "the first write after a read is seen";
}

TEST_F(PageWatchTest, CollectingArmsAndPeekingDoesNot) {
  AnonymousMemory const memory{16 * page};
  PageWatch watch{memory.data(), memory.size()};
  memory[2 * page] = memory[9 * page] = std::byte{1};
  EXPECT_EQ(watch.peek(memory.all()), set_of_pages({2, 9}));
  EXPECT_EQ(watch.peek(memory.all()), set_of_pages({2, 9}));
  EXPECT_EQ(watch.collect(memory.all()), set_of_pages({2, 9}));
  EXPECT_TRUE(watch.collect(memory.all()).empty());
  memory[9 * page] = std::byte{1};
  EXPECT_EQ(watch.collect(memory.all()), set_of_pages({9})) << "also when what is written was there before";
}

TEST_F(PageWatchTest, APartIsWidenedToWholePages) {
  AnonymousMemory const memory{16 * page};
  PageWatch watch{memory.data(), memory.size()};
  memory.touch();
  EXPECT_EQ(watch.peek({3 * page + 1, 3 * page + 2}), set_of_pages({3}));
  EXPECT_EQ(watch.peek({4 * page - 1, 5 * page + 1}), set_of_pages({3, 4, 5}));
  EXPECT_EQ(watch.peek({15 * page, SIZE_MAX}), set_of_pages({15}));
  EXPECT_TRUE(watch.peek({16 * page, 20 * page}).empty());
  EXPECT_TRUE(watch.peek({3 * page + 5, 3 * page + 5}).empty());
  EXPECT_EQ(watch.collect({3 * page + 1, 3 * page + 2}), set_of_pages({3}));
  ByteRanges rest{memory.all()};
  rest.remove(pages(3, 4));
  EXPECT_EQ(watch.collect(memory.all()), rest) << "what was not asked for stays written";
}

TEST_F(PageWatchTest, PagesDeclaredCleanAreForgotten) {
  AnonymousMemory const memory{16 * page};
  PageWatch watch{memory.data(), memory.size()};
  std::memset(memory.data(), 5, 8 * page);
  watch.arm(pages(2, 6));
  EXPECT_EQ(watch.collect(memory.all()), set_of_pages({0, 1, 6, 7}));
  memory[4 * page] = std::byte{6};
  EXPECT_EQ(watch.collect(memory.all()), set_of_pages({4})) << "they are watched again";
  memory.touch();
  watch.arm({0, SIZE_MAX});
  watch.arm({3 * page, 3 * page});
  EXPECT_TRUE(watch.peek(memory.all()).empty());
}

TEST_F(PageWatchTest, PartsOfPagesCannotBeDeclaredClean) {
  AnonymousMemory const memory{4 * page};
  PageWatch watch{memory.data(), memory.size()};
  memory.touch();
  EXPECT_THROW(watch.arm({0, page - 1}), InvalidArgument);
  EXPECT_THROW(watch.arm({1, page}), InvalidArgument);
  EXPECT_THROW(watch.arm({page, 2 * page + 1}), InvalidArgument);
  EXPECT_EQ(watch.peek(memory.all()), ByteRanges{memory.all()}) << "a refusal arms nothing";
}

TEST_F(PageWatchTest, PagesDeclaredWrittenAreCollectedAgain) {
  AnonymousMemory const memory{16 * page};
  std::memset(memory.data(), 5, 8 * page);
  PageWatch watch{memory.data(), memory.size()};
  watch.mark_written({3 * page + 1, 4 * page + 1});
  watch.mark_written(pages(12, 13));  // never touched
  watch.mark_written({20 * page, 21 * page});
  EXPECT_EQ(watch.collect(memory.all()), set_of_pages({3, 4, 12}));
  EXPECT_TRUE(watch.collect(memory.all()).empty());
  EXPECT_TRUE(memory.holds(pages(0, 8), std::byte{5}));
}

TEST_F(PageWatchTest, WritesBySystemCallsAreSeenAndArrive) {
  AnonymousMemory const memory{32 * page};
  PageWatch watch{memory.data(), memory.size()};
  std::array<std::byte, 600> sent;
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i + 1);
  auto const arrived = [&](std::size_t offset) { return std::equal(sent.begin(), sent.end(), &memory[offset]); };

  std::array<int, 2> pipe_ends, sockets;
  ASSERT_EQ(pipe(pipe_ends.data()), 0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()), 0);
  auto const size = static_cast<ssize_t>(sent.size());
  ASSERT_EQ(write(pipe_ends[1], sent.data(), sent.size()), size);
  EXPECT_EQ(read(pipe_ends[0], &memory[3 * page - 300], sent.size()), size);
  EXPECT_EQ(watch.collect(memory.all()), set_of_pages({2, 3})) << "never touched before";
  ASSERT_EQ(write(pipe_ends[1], sent.data(), sent.size()), size);
  EXPECT_EQ(read(pipe_ends[0], &memory[3 * page - 300], sent.size()), size);
  EXPECT_EQ(watch.collect(memory.all()), set_of_pages({2, 3})) << "armed again by the collection";
  ASSERT_EQ(send(sockets[1], sent.data(), sent.size(), 0), size);
  EXPECT_EQ(recv(sockets[0], &memory[20 * page], sent.size(), 0), size);
  EXPECT_EQ(watch.collect(memory.all()), set_of_pages({20}));
  EXPECT_TRUE(arrived(3 * page - 300));
  EXPECT_TRUE(arrived(20 * page));
  for (auto const descriptor : {pipe_ends[0], pipe_ends[1], sockets[0], sockets[1]}) close(descriptor);
}

TEST_F(PageWatchTest, ManyScatteredPagesAreAllFound) {
  constexpr std::size_t count = 20'000;
  AnonymousMemory const memory{count * page};
  PageWatch watch{memory.data(), memory.size()};
  ByteRanges expected;
  for (std::size_t number = 0; number < count; number += 2) {
    memory[number * page + number % page] = std::byte{1};
    expected.add(pages(number, number + 1));
  }
  EXPECT_EQ(watch.peek(memory.all()), expected);
  EXPECT_EQ(watch.collect(memory.all()), expected);
  EXPECT_TRUE(watch.collect(memory.all()).empty());
}

TEST_F(PageWatchTest, WatchesOnNeighbouringRangesAreIndependent) {
  AnonymousMemory const memory{24 * page};
  PageWatch left{memory.data(), 8 * page};
  auto middle = std::make_unique<PageWatch>(&memory[8 * page], 8 * page);
  PageWatch right{&memory[16 * page], 8 * page};
  memory.touch();
  EXPECT_EQ(left.collect(memory.all()), ByteRanges(pages(0, 8)));
  EXPECT_EQ(middle->peek(memory.all()), ByteRanges(pages(0, 8)));
  middle.reset();
  memory.touch(std::byte{2});
  EXPECT_EQ(left.collect(memory.all()), ByteRanges(pages(0, 8)));
  EXPECT_EQ(right.collect(memory.all()), ByteRanges(pages(0, 8)));
  memory[15 * page] = std::byte{3};
  EXPECT_TRUE(left.peek(memory.all()).empty());
  EXPECT_TRUE(right.peek(memory.all()).empty());
}

TEST_F(PageWatchTest, MemoryThatIsWatchedCannotBeWatchedTwice) {
  AnonymousMemory const memory{16 * page};
  auto const watch = std::make_unique<PageWatch>(&memory[4 * page], 8 * page);
  memory[5 * page] = std::byte{1};
  for (auto const range : {pages(4, 12), pages(0, 5), pages(11, 16), pages(0, 16), pages(6, 7)}) {
    EXPECT_THROW(PageWatch(&memory[range.begin], range.size()), InvalidArgument);
  }
  EXPECT_EQ(watch->collect(memory.all()), set_of_pages({1})) << "the watch there is undisturbed";
}

TEST_F(PageWatchTest, UnwatchedMemoryKeepsItsContents) {
  AnonymousMemory const memory{2 * huge_page};
  memory.touch();
  for (int round = 0; round < 3; ++round) {
    PageWatch watch{memory.data(), memory.size()};
    EXPECT_TRUE(watch.peek(memory.all()).empty()) << "what was written before does not count";
    memory[6 * page] = static_cast<std::byte>(round);
    EXPECT_EQ(watch.peek(memory.all()), set_of_pages({6}));
  }
  EXPECT_TRUE(memory.holds({6 * page + 1, memory.size()}, std::byte{1}));
  EXPECT_EQ(memory[6 * page], std::byte{2});
  ByteRanges found;
  EXPECT_THROW(PageTracker::of_this_process().scan(reinterpret_cast<std::uintptr_t>(memory.data()), memory.all(),
                                                   PageTracker::Wanted::written, PageTracker::Then::leave, found),
               DeviceError)
      << "the kernel no longer keeps count";
}

TEST_F(PageWatchTest, BadRangesAreRefused) {
  AnonymousMemory const memory{4 * page};
  EXPECT_THROW(PageWatch(nullptr, page), InvalidArgument);
  EXPECT_THROW(PageWatch(&memory[1], page), InvalidArgument);
  EXPECT_THROW(PageWatch(memory.data(), 0), InvalidArgument);
  EXPECT_THROW(PageWatch(memory.data(), page + 1), InvalidArgument);
  EXPECT_THROW(PageWatch(memory.data(), SIZE_MAX / page * page), InvalidArgument);
  PageWatch const watch{memory.data(), memory.size()};  // nothing of it was claimed
}

TEST_F(PageWatchTest, MemoryThatIsNotMappedIsRefused) {
  void* const gone = mmap(nullptr, 4 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(gone, MAP_FAILED);
  munmap(gone, 4 * page);
  for (int attempt = 0; attempt < 2; ++attempt) {  // a failed claim is none
    EXPECT_THROW(PageWatch(gone, 4 * page), DeviceError);
  }
  AnonymousMemory const memory{8 * page};
  munmap(&memory[3 * page], page);
  EXPECT_THROW(PageWatch(memory.data(), memory.size()), DeviceError) << "a gap is no memory either";
  PageWatch watch{&memory[4 * page], 4 * page};
  memory[5 * page] = std::byte{1};
  EXPECT_EQ(watch.collect(memory.all()), set_of_pages({1}));
}

TEST_F(PageWatchTest, MemoryThatAnotherUserfaultfdHasIsRefused) {
  AnonymousMemory const memory{4 * page};
  auto const other = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY));
  ASSERT_GE(other, 0);
  uffdio_api api{UFFD_API, asynchronous_write_protection, 0};
  ASSERT_EQ(ioctl(other, UFFDIO_API, &api), 0);
  uffdio_register request{{reinterpret_cast<std::uintptr_t>(memory.data()), 4 * page}, UFFDIO_REGISTER_MODE_WP, 0};
  ASSERT_EQ(ioctl(other, UFFDIO_REGISTER, &request), 0);
  try {
    PageWatch const watch{memory.data(), memory.size()};
    ADD_FAILURE() << "watched what another has";
  } catch (DeviceError const& error) {
    EXPECT_EQ(error.call, "UFFDIO_REGISTER");
    EXPECT_EQ(error.code, EBUSY);
    EXPECT_EQ(error.code_name, "Device or resource busy");
  }
  close(other);
  PageWatch watch{memory.data(), memory.size()};
  memory[0] = std::byte{1};
  EXPECT_EQ(watch.collect(memory.all()), set_of_pages({0}));
}

}  // namespace
}  // namespace unimem::detail
