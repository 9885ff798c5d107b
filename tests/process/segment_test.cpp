#include <unimem/core/error.hpp>

#include "process/segment.hpp"

#include "core/sizes.hpp"
#include "forked_child.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>
#include <utility>

// Memory that several processes map.

namespace unimem::testing {
namespace {

using detail::Segment;
using detail::UniqueFd;

UniqueFd duplicate(Segment const& segment) {
  return UniqueFd{::fcntl(segment.descriptor(), F_DUPFD_CLOEXEC, 0)};
}

std::string refusal(UniqueFd descriptor, std::size_t bytes, int code) {
  try {
    static_cast<void>(Segment::adopt(std::move(descriptor), bytes, "process 42"));
  } catch (IoError const& error) {
    EXPECT_EQ(error.code, code);
    EXPECT_EQ(error.path, "process 42");
    return error.what();
  }
  return "none";
}

TEST(Segments, AreOneMemoryUnderSeveralAddresses) {
  auto const one = Segment::make("test", 3 * 4096 + 5);
  EXPECT_EQ(one.size(), 3 * 4096 + 5U);
  EXPECT_TRUE(std::all_of(one.data(), one.data() + one.size(), [](std::byte b) { return b == std::byte{0}; }));
  auto const other = Segment::adopt(duplicate(one), one.size(), "itself");
  ASSERT_NE(one.data(), other.data());
  one.data()[0] = std::byte{1};
  other.data()[other.size() - 1] = std::byte{2};
  EXPECT_EQ(other.data()[0], std::byte{1});
  EXPECT_EQ(one.data()[one.size() - 1], std::byte{2});
}

TEST(Segments, AreSeenByAChildAndStayWhenItEnds) {
  auto const mine = Segment::make("test", MiB);
  auto const child = fork_while_others_sleep();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto const theirs = Segment::adopt(duplicate(mine), MiB, "parent");
    std::fill_n(theirs.data(), MiB, std::byte{7});
    std::_Exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_TRUE(std::all_of(mine.data(), mine.data() + MiB, [](std::byte b) { return b == std::byte{7}; }));
}

TEST(Segments, HaveAllTheirPagesFromTheBeginning) {
  auto const segment = Segment::make("test", 8 * MiB);
  struct ::stat status{};
  ASSERT_EQ(::fstat(segment.descriptor(), &status), 0);
  EXPECT_GE(static_cast<std::size_t>(status.st_blocks) * 512, 8 * MiB);
}

TEST(Segments, KeepTheirSize) {
  auto const segment = Segment::make("test", MiB);
  EXPECT_EQ(::ftruncate(segment.descriptor(), 1), -1);
  EXPECT_EQ(::ftruncate(segment.descriptor(), 2 * MiB), -1);
  EXPECT_EQ(::fcntl(segment.descriptor(), F_ADD_SEALS, F_SEAL_WRITE), -1) << "no holder can forbid others to write";
}

TEST(Segments, OnlyWhatCannotShrinkIsAdopted) {
  auto const segment = Segment::make("test", MiB);
  EXPECT_NE(refusal(duplicate(segment), 2 * MiB, EINVAL).find("1048576 bytes, not 2097152"), std::string::npos);
  UniqueFd shrinks{::memfd_create("shrinks", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  ASSERT_EQ(::ftruncate(shrinks.get(), MiB), 0);
  EXPECT_NE(refusal(std::move(shrinks), MiB, EPERM).find("not sealed"), std::string::npos);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  UniqueFd const write_end{ends[1]};
  EXPECT_NE(refusal(UniqueFd{ends[0]}, MiB, EINVAL).find("no shared memory"), std::string::npos);
  UniqueFd reads_only{::open(("/proc/self/fd/" + std::to_string(segment.descriptor())).c_str(), O_RDONLY | O_CLOEXEC)};
  ASSERT_TRUE(reads_only);
  EXPECT_NE(refusal(std::move(reads_only), MiB, EACCES).find("to write"), std::string::npos);
}

TEST(Segments, MoreThanThereIsIsRefusedByItsSize) {
  constexpr auto much = std::size_t{1} << 46;
  struct ::sysinfo machine{};
  ASSERT_EQ(::sysinfo(&machine), 0);
  ASSERT_LT(machine.totalram * machine.mem_unit, much);
  try {
    static_cast<void>(Segment::make("test", much));
    FAIL() << "64 TiB of memory";
  } catch (OutOfMemory const& error) {
    EXPECT_EQ(error.facts().requested, much);
    EXPECT_NE(std::string(error.what()).find("shared memory"), std::string::npos) << error.what();
  }
}

TEST(Segments, LeaveNothingBehind) {
  auto const descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  auto const before = descriptors();
  for (int i = 0; i < 10; ++i) {
    auto one = Segment::make("test", MiB);
    auto other = Segment::adopt(duplicate(one), MiB, "itself");
    one = std::move(other);
  }
  EXPECT_EQ(descriptors(), before);
}

}  // namespace
}  // namespace unimem::testing
