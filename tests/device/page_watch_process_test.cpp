#include <unimem/core/error.hpp>

#include "core/failing_allocations.hpp"
#include "core/sanitizers.hpp"
#include "device/page_tracker.hpp"
#include "device/page_watch_fixture.hpp"
#include "forked_child.hpp"

#include <gtest/gtest.h>

#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

// What a watch is in forked children, to users without privileges, and where something runs out. Every case is a
// process of its own: a process asks its system once.

namespace unimem::detail {
namespace {

constexpr int passed = 7, skipped = 8;

/// What a watch is for, on fresh memory: no more than whether it works here at all.
int watch_something() {
  AnonymousMemory const memory{16 * page};
  std::memset(memory.data(), 1, 8 * page);
  PageWatch watch{memory.data(), memory.size()};
  memory[3 * page] = memory[12 * page] = std::byte{2};
  EXPECT_HERE(watch.collect(memory.all()) == set_of_pages({3, 12}));
  std::array<int, 2> ends;
  std::array<char, 5> const hello{'h', 'e', 'l', 'l', 'o'};
  EXPECT_HERE(pipe(ends.data()) == 0 && write(ends[1], hello.data(), hello.size()) == 5);
  EXPECT_HERE(read(ends[0], &memory[5 * page - 2], hello.size()) == 5);
  EXPECT_HERE(std::memcmp(&memory[5 * page - 2], hello.data(), hello.size()) == 0);
  EXPECT_HERE(watch.collect(memory.all()) == set_of_pages({4, 5}));
  EXPECT_HERE(watch.collect(memory.all()).empty());
  return passed;
}

using PageWatchProcess = PageWatchTest;

TEST_F(PageWatchProcess, AForkedChildHearsThatEverythingWasWritten) {
  AnonymousMemory const memory{16 * page};
  memory.touch();
  auto watch = std::make_unique<PageWatch>(memory.data(), memory.size());
  memory[2 * page] = std::byte{2};
  EXPECT_EQ(in_child([&] {
              EXPECT_HERE(memory.holds(pages(0, 2), std::byte{1}) && memory[2 * page] == std::byte{2});
              EXPECT_HERE(watch->peek(pages(3, 5)) == ByteRanges(pages(3, 5)));
              EXPECT_HERE(watch->collect(memory.all()) == ByteRanges{memory.all()});
              watch->arm(memory.all());
              watch->mark_written(pages(0, 1));
              EXPECT_HERE(watch->collect(memory.all()) == ByteRanges{memory.all()});
              memory.touch(std::byte{9});
              watch.reset();
              EXPECT_HERE(memory.holds(memory.all(), std::byte{9}));
              return passed;
            }),
            passed);
  EXPECT_EQ(watch->collect(memory.all()), set_of_pages({2})) << "the child asked about its own memory, not ours";
  EXPECT_EQ(memory[3 * page], std::byte{1});
  memory[5 * page] = std::byte{3};
  EXPECT_EQ(watch->collect(memory.all()), set_of_pages({5})) << "and did not take ours off watch";
}

TEST_F(PageWatchProcess, AParentsWritesAreSeenBesideAChild) {
  AnonymousMemory const memory{16 * page};
  memory.touch();
  PageWatch watch{memory.data(), memory.size()};
  std::array<int, 2> ends;
  ASSERT_EQ(pipe(ends.data()), 0);
  auto const child = fork_while_others_sleep();
  if (child == 0) {
    char last = 0;
    auto const ended = read(ends[0], &last, 1);  // until the parent is done
    _exit(ended == 1 && memory.holds(memory.all(), std::byte{1}) ? passed : 1);
  }
  EXPECT_TRUE(watch.peek(memory.all()).empty()) << "forking writes nothing";
  memory[4 * page] = std::byte{2};  // copied on write, as the child still has it
  EXPECT_EQ(watch.collect(memory.all()), set_of_pages({4}));
  memory[4 * page] = std::byte{3};
  EXPECT_EQ(watch.collect(memory.all()), set_of_pages({4}));
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  EXPECT_EQ(ending_of(child), passed);
  EXPECT_EQ(memory[4 * page], std::byte{3});
  for (auto const end : ends) close(end);
}

TEST_F(PageWatchProcess, AChildMayWatchItsCopy) {
  AnonymousMemory const memory{16 * page};
  memory.touch();
  PageWatch watch{memory.data(), memory.size()};
  EXPECT_EQ(in_child([&] {
              PageWatch own{memory.data(), memory.size()};
              memory[3 * page] = std::byte{2};
              auto const grandchild = in_child([&] {
                EXPECT_HERE(own.collect(memory.all()) == ByteRanges{memory.all()});
                PageWatch third{memory.data(), memory.size()};
                memory[6 * page] = std::byte{3};
                EXPECT_HERE(third.collect(memory.all()) == set_of_pages({6}));
                return passed;
              });
              EXPECT_HERE(grandchild == passed);
              EXPECT_HERE(own.collect(memory.all()) == set_of_pages({3}));
              EXPECT_HERE(watch.collect(pages(0, 1)) == ByteRanges(pages(0, 1)));
              return passed;
            }),
            passed);
  EXPECT_TRUE(watch.collect(memory.all()).empty());
}

TEST_F(PageWatchProcess, AClonedChildLeavesTheWatchAlone) {
  AnonymousMemory const memory{16 * page};
  memory.touch();
  auto watch = std::make_unique<PageWatch>(memory.data(), memory.size());
  memory[1 * page] = std::byte{2};
  auto const child = syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (child == 0) {
    auto const everything = watch->collect(memory.all()) == ByteRanges{memory.all()};
    watch.reset();
    _exit(everything ? passed : 1);
  }
  EXPECT_EQ(ending_of(static_cast<pid_t>(child)), passed);
  memory[5 * page] = std::byte{2};
  EXPECT_EQ(watch->collect(memory.all()), set_of_pages({1, 5}));
}

TEST_F(PageWatchProcess, AnOrdinaryUserWatchesLikeAnyOther) {
  constexpr unsigned nobody = 65534;
  auto const code = in_child([] {
    if (geteuid() == 0) {
      if (setgroups(0, nullptr) != 0 || setgid(nobody) != 0 || setuid(nobody) != 0) return skipped;
      // What starting a program would have done; without it the process may not look into its own /proc.
      if (prctl(PR_SET_DUMPABLE, 1) != 0) return skipped;
    }
    EXPECT_HERE(PageWatch::reason_unavailable().empty());
    return watch_something();
  });
  if (code == skipped) GTEST_SKIP() << "root may not become another user here";
  EXPECT_EQ(code, passed);
}

TEST_F(PageWatchProcess, AMissingPermissionIsTold) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  constexpr unsigned nobody = 65534;
  auto const code = in_child([] {
    if (setgid(nobody) != 0 || setuid(nobody) != 0) return skipped;
    auto const reason = PageWatch::reason_unavailable();
    EXPECT_HERE(reason.find("/proc/self/pagemap") != std::string::npos);
    return passed;
  });
  if (code == skipped) GTEST_SKIP() << "root may not become another user here";
  EXPECT_EQ(code, passed);
}

TEST_F(PageWatchProcess, ASandboxThatRefusesUserfaultfdIsTheReason) {
  auto const code = in_child([] {
    std::array filter{
        sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
        sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    sock_fprog const program{filter.size(), filter.data()};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return skipped;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return skipped;
    auto const reason = PageWatch::reason_unavailable();
    EXPECT_HERE(reason.find("userfaultfd") != std::string::npos);
    AnonymousMemory const memory{page};
    try {
      PageWatch const watch{memory.data(), memory.size()};
      return 1;
    } catch (UnsupportedOperation const& error) {
      EXPECT_HERE(error.operation == "write tracking" && error.reason == reason);
    }
    return passed;
  });
  if (code == skipped) GTEST_SKIP() << "no filter of system calls can be had here";
  EXPECT_EQ(code, passed);
}

TEST_F(PageWatchProcess, ALackOfDescriptorsPasses) {
  if (detail::under_address_sanitizer)
    GTEST_SKIP() << "UndefinedBehaviorSanitizer needs descriptors itself, to look at what an object is";
  EXPECT_EQ(in_child([] {
              rlimit before{};
              getrlimit(RLIMIT_NOFILE, &before);
              rlimit none = before;
              none.rlim_cur = 3;
              setrlimit(RLIMIT_NOFILE, &none);
              AnonymousMemory const memory{page};
              EXPECT_HERE(!PageWatch::reason_unavailable().empty());
              try {
                PageWatch const watch{memory.data(), memory.size()};
                return 1;
              } catch (DeviceError const& error) {
                EXPECT_HERE(error.code == EMFILE && error.call == "userfaultfd");
              }
              setrlimit(RLIMIT_NOFILE, &before);
              EXPECT_HERE(PageWatch::reason_unavailable().empty());
              return watch_something();
            }),
            passed);
}

TEST_F(PageWatchProcess, SeveralThreadsMayBeTheFirstToWatch) {
  EXPECT_EQ(in_child([] {  // where nobody has asked yet
              constexpr std::size_t count = 8;
              std::barrier together{count};
              std::array<int, count> codes{};
              std::vector<std::thread> threads;
              for (auto& code : codes) {
                threads.emplace_back([&] {
                  together.arrive_and_wait();
                  code = watch_something();
                });
              }
              for (auto& thread : threads) thread.join();
              EXPECT_HERE(std::ranges::all_of(codes, [](int code) { return code == passed; }));
              return passed;
            }),
            passed);
}

TEST_F(PageWatchProcess, OlderKernelsAreWatchedAsWell) {
  PageTracker::of_this_process().distrust_the_kernel();
  EXPECT_EQ(watch_something(), passed);
  for (int const advice : {MADV_NOHUGEPAGE, MADV_HUGEPAGE}) {
    AnonymousMemory const memory{4 * huge_page, advice};
    std::memset(memory.data(), 1, 3 * huge_page);
    PageWatch watch{memory.data(), memory.size()};
    EXPECT_TRUE(watch.collect(memory.all()).empty());
    ASSERT_EQ(madvise(&memory[huge_page], huge_page, MADV_DONTNEED), 0);
    memory[5 * page] = memory[3 * huge_page] = std::byte{2};
    auto expected = set_of_pages({5, 3 * huge_page / page});
    expected.add({huge_page, 2 * huge_page});
    EXPECT_EQ(watch.peek(memory.all()), expected);
    EXPECT_EQ(watch.collect(memory.all()), expected);
    EXPECT_TRUE(watch.collect(memory.all()).empty());
    EXPECT_TRUE(memory.holds({huge_page, 2 * huge_page}, std::byte{0}));
    memory.touch();
    ASSERT_EQ(madvise(&memory[huge_page], huge_page, MADV_DONTNEED), 0);
    watch.arm(memory.all());
    EXPECT_TRUE(watch.collect(memory.all()).empty());
    memory[huge_page + page] = std::byte{3};
    EXPECT_EQ(watch.collect(memory.all()), set_of_pages({huge_page / page + 1}));
  }
}

TEST_F(PageWatchProcess, AStaticWatchMayOutliveEverythingElse) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto const scenario = [] {
    static AnonymousMemory const memory{16 * page};
    static std::optional<PageWatch> watch;
    static struct Last {
      ~Last() {
        memory[2 * page] = std::byte{1};
        auto const seen = watch->collect(memory.all()) == set_of_pages({2});
        watch.reset();
        _exit(seen ? passed : 1);
      }
    } const last;
    watch.emplace(memory.data(), memory.size());
    std::exit(0);
  };
  EXPECT_EXIT(scenario(), ::testing::ExitedWithCode(passed), "");
}

TEST_F(PageWatchProcess, AFailedCollectionForgetsNoPage) {
  constexpr std::size_t count = 8192;  // several calls' worth of scattered pages
  AnonymousMemory const memory{count * page};
  PageWatch watch{memory.data(), memory.size()};
  ByteRanges expected;
  for (std::size_t number = 0; number < count; number += 2) {
    memory[number * page] = std::byte{1};
    expected.add(pages(number, number + 1));
  }
  std::size_t failures = 0;
  for (bool collected = false; !collected; ++failures) {
    unimem::testing::fail_allocation(failures + 1);
    try {
      auto const found = watch.collect(memory.all());
      unimem::testing::fail_allocation(0);
      EXPECT_EQ(found, expected);
      collected = true;
    } catch (std::bad_alloc const&) {
      unimem::testing::fail_allocation(0);
      EXPECT_EQ(watch.peek(memory.all()), expected) << "after allocation " << failures + 1 << " failed";
    }
  }
  EXPECT_GT(failures, 3U) << "no allocation fell between two calls";
  EXPECT_TRUE(watch.collect(memory.all()).empty());
}

}  // namespace
}  // namespace unimem::detail
