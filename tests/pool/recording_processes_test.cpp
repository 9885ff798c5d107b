#include <unimem/device/discovery.hpp>
#include <unimem/pool/replay.hpp>

#include "core/sizes.hpp"
#include "device/temporary_folder.hpp"
#include "forked_child.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

// Whose the file is that `UNIMEM_LOG` names, where several processes inherit it, and what is in its place before.

namespace unimem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Becomes this program, as a disabled test of it.
int become(char const* program) {
  auto const filter = std::string("--gtest_filter=RecordingPrograms.DISABLED_") + program;
  ::execl("/proc/self/exe", "recorded", filter.c_str(), "--gtest_also_run_disabled_tests", "--gtest_brief=1",
          "--gtest_output=", nullptr);
  return 127;
}

void record_blocks(std::size_t bytes, int count) {
  MemoryPool pool(device("cpu"), Location::host);
  for (int i = 0; i < count; ++i) pool.acquire(bytes).release();
}

TEST(RecordingPrograms, DISABLED_OneRecords) {
  record_blocks(1 * KiB, 3);
}

TEST(RecordingPrograms, DISABLED_OneRecordsMuch) {
  record_blocks(2 * KiB, 2'000);
}

TEST(RecordingPrograms, DISABLED_OneHasChildren) {
  MemoryPool pool(device("cpu"), Location::host);
  auto const before = pool.acquire(1 * KiB);
  std::array<pid_t, 2> children{};
  for (auto& child : children) {
    child = fork();
    if (child == 0) _exit(become("OneRecordsMuch"));
  }
  for (int i = 0; i < 2'000; ++i) pool.acquire(3 * KiB).release();
  for (auto const child : children) EXPECT_EQ(ending_of(child), 0);
  auto const after = pool.acquire(4 * KiB);
}

TEST(RecordingPrograms, DISABLED_OneForksOneThatRecords) {
  MemoryPool pool(device("cpu"), Location::host);
  auto before = pool.acquire(1 * KiB);
  EXPECT_EQ(in_child([&] {
              before.release();  // is not its own
              record_blocks(2 * KiB, 1);
              return 0;
            }),
            0);
  auto const after = pool.acquire(3 * KiB);
}

// A child that goes on when its parent has ended: what each waits for is the end of the other's side of a pipe.
constexpr auto told_by_child = "RECORDING_TOLD", told_by_parent = "RECORDING_ENDED";

int number_in(char const* name) {
  return std::atoi(std::getenv(name));
}

TEST(RecordingPrograms, DISABLED_OneOutlivesItsParent) {
  auto const parent = ::getppid();
  ::close(number_in(told_by_child));
  char none = 0;
  EXPECT_EQ(::read(number_in(told_by_parent), &none, 1), 0) << "the parent ends";
  while (::getppid() == parent) std::this_thread::yield();  // an ending process closes the log after that pipe
  record_blocks(2 * KiB, 3);
}

TEST(RecordingPrograms, DISABLED_OneForksOneThatStays) {
  record_blocks(1 * KiB, 3);
  if (fork() != 0) return;
  char none = 0;
  _exit(::read(number_in(told_by_parent), &none, 1) == 0 ? 0 : 1);
}

TEST(RecordingPrograms, DISABLED_OneLeavesAChildBehind) {
  std::array<int, 2> told{}, ended{};
  ASSERT_EQ(::pipe(told.data()) + ::pipe(ended.data()), 0);
  ASSERT_EQ(::fcntl(told[0], F_SETFD, FD_CLOEXEC) + ::fcntl(ended[1], F_SETFD, FD_CLOEXEC), 0);
  ::setenv(told_by_child, std::to_string(told[1]).c_str(), 1);
  ::setenv(told_by_parent, std::to_string(ended[0]).c_str(), 1);
  if (fork() == 0) _exit(become("OneOutlivesItsParent"));
  ::close(told[1]);
  char none = 0;
  ASSERT_EQ(::read(told[0], &none, 1), 0) << "the child has begun";
  // The times of files advance by ticks of the system's.
  auto const tick = [] {
    ::timespec now{};
    ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return std::tuple{now.tv_sec, now.tv_nsec};
  };
  for (auto const begun = tick(); tick() == begun;) {
  }
  record_blocks(1 * KiB, 3);
}

/// What one of them leaves in a folder, and what it says.
class RecordingProcesses : public ::testing::Test {
 protected:
  int run(char const* program, std::string const& path) {
    return in_child([&] {
      ::setenv("UNIMEM_LOG", path.c_str(), 1);
      ::unsetenv("UNIMEM_LOG_LEVEL");
      auto const errors = ::open(errors_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
      ::dup2(errors, STDERR_FILENO);
      return become(program);
    });
  }

  /// How many blocks of so many bytes a log tells of; all of it is read.
  static std::size_t blocks_in(fs::path const& path, std::size_t bytes) {
    auto const log = read_allocation_log(path);
    auto const is_one = [bytes](auto const& event) { return event.allocates && event.bytes == bytes; };
    return static_cast<std::size_t>(std::ranges::count_if(log.events, is_one));
  }

  std::vector<fs::path> logs() {
    std::vector<fs::path> found;
    for (auto const& entry : fs::directory_iterator(folder_.path())) {
      if (entry.path().extension() == ".csv") found.push_back(entry.path());
    }
    return found;
  }

  TemporaryFolder folder_;
  std::string const path_ = folder_ / "log.csv";
  std::string const errors_ = folder_ / "errors";
};

TEST_F(RecordingProcesses, ChildrenLeaveTheLogToTheirParent) {
  ASSERT_EQ(run("OneHasChildren", path_), 0);
  EXPECT_EQ(blocks_in(path_, 1 * KiB), 1U);
  EXPECT_EQ(blocks_in(path_, 3 * KiB), 2'000U);
  EXPECT_EQ(blocks_in(path_, 4 * KiB), 1U) << "what follows the children's end";
  EXPECT_EQ(blocks_in(path_, 2 * KiB), 0U) << "nothing of theirs";
  auto const said = content_of(errors_);
  auto const thread = std::to_string(std::stoi(content_of(path_).substr(content_of(path_).find('\n') + 1)));
  auto const line = "UNIMEM_LOG: " + path_ + ": process " + thread + " writes it";
  auto const first = said.find(line);
  ASSERT_NE(first, std::string::npos) << said;
  EXPECT_NE(said.find(line, first + 1), std::string::npos) << "the other child, too: " << said;
}

TEST_F(RecordingProcesses, WithNumbersEachHasItsOwn) {
  ASSERT_EQ(run("OneHasChildren", folder_ / "%p-of-%p.csv"), 0);
  EXPECT_THAT(content_of(errors_), IsEmpty());
  std::size_t parents = 0, children = 0;
  for (auto const& path : logs()) {
    auto const text = content_of(path);
    auto const process = std::to_string(std::stoi(text.substr(text.find('\n') + 1)));
    EXPECT_EQ(path.filename(), process + "-of-" + process + ".csv");
    parents += blocks_in(path, 3 * KiB) == 2'000;
    children += blocks_in(path, 2 * KiB) == 2'000;
  }
  EXPECT_EQ(parents, 1U);
  EXPECT_EQ(children, 2U);
}

TEST_F(RecordingProcesses, AForkedChildHasItsOwnThenToo) {
  ASSERT_EQ(run("OneForksOneThatRecords", folder_ / "%p.csv"), 0);
  EXPECT_THAT(content_of(errors_), IsEmpty());
  ASSERT_EQ(logs().size(), 2U);
  std::size_t parents = 0, children = 0;
  for (auto const& path : logs()) {
    auto const one = blocks_in(path, 1 * KiB), two = blocks_in(path, 2 * KiB), three = blocks_in(path, 3 * KiB);
    EXPECT_THAT(content_of(path), HasSubstr("\n" + path.stem().string() + ",")) << "the thread is the child's";
    parents += one == 1 && two == 0 && three == 1;
    children += one == 0 && two == 1 && three == 0;
  }
  EXPECT_EQ(parents, 1U);
  EXPECT_EQ(children, 1U);
}

TEST_F(RecordingProcesses, ALaterRunReplacesTheLog) {
  ASSERT_EQ(run("OneRecordsMuch", path_), 0);
  ASSERT_EQ(run("OneRecords", path_), 0);
  EXPECT_THAT(content_of(errors_), IsEmpty());
  EXPECT_EQ(blocks_in(path_, 2 * KiB), 0U);
  EXPECT_EQ(blocks_in(path_, 1 * KiB), 3U);
}

TEST_F(RecordingProcesses, AnOutlivingChildLeavesTheLogAlone) {
  std::array<int, 2> all_ended{};
  ASSERT_EQ(::pipe(all_ended.data()), 0);
  ASSERT_EQ(run("OneLeavesAChildBehind", path_), 0);
  ::close(all_ended[1]);  // the child has the last of these, and of the errors
  char none = 0;
  ASSERT_EQ(::read(all_ended[0], &none, 1), 0);
  ::close(all_ended[0]);
  EXPECT_THAT(content_of(errors_), HasSubstr("UNIMEM_LOG: " + path_ + ": another process has written it since"));
  EXPECT_EQ(blocks_in(path_, 1 * KiB), 3U);
  EXPECT_EQ(blocks_in(path_, 2 * KiB), 0U);
}

TEST_F(RecordingProcesses, AForkedChildDoesNotLockTheLog) {
  std::array<int, 2> ended{};
  ASSERT_EQ(::pipe(ended.data()), 0);
  ASSERT_EQ(::fcntl(ended[1], F_SETFD, FD_CLOEXEC), 0);
  ::setenv(told_by_parent, std::to_string(ended[0]).c_str(), 1);
  ASSERT_EQ(run("OneForksOneThatStays", path_), 0);
  EXPECT_EQ(blocks_in(path_, 1 * KiB), 3U);
  EXPECT_EQ(run("OneRecordsMuch", path_), 0);
  EXPECT_THAT(content_of(errors_), IsEmpty());
  EXPECT_EQ(blocks_in(path_, 2 * KiB), 2'000U);
  ::close(ended[1]);  // the child ends
  ::close(ended[0]);
}

TEST_F(RecordingProcesses, TheFileIsForTheUserAlone) {
  auto const mode = [this] { return fs::status(path_).permissions() & fs::perms::mask; };
  auto const mask = ::umask(0);
  ASSERT_EQ(run("OneRecords", path_), 0);
  ::umask(mask);
  EXPECT_EQ(mode(), fs::perms::owner_read | fs::perms::owner_write);
  fs::permissions(path_, fs::perms::all);
  ASSERT_EQ(run("OneRecords", path_), 0);
  EXPECT_EQ(mode(), fs::perms::owner_read | fs::perms::owner_write) << "and one that was there";
}

TEST_F(RecordingProcesses, OthersFilesAreLeftAlone) {
  auto const refused = [this](std::string const& reason) {
    EXPECT_EQ(run("OneRecords", path_), 0);
    EXPECT_EQ(content_of(errors_),
              "unimem: warning: UNIMEM_LOG: " + path_ + ": " + reason + "; allocations are not recorded\n");
    fs::remove(path_);
  };
  auto const victim = folder_ / "victim";
  std::ofstream(victim) << "untouched";
  fs::create_symlink(victim, path_);
  refused("a symbolic link, which is not followed");
  fs::create_hard_link(victim, path_);
  refused("it has other names");
  EXPECT_EQ(content_of(victim), "untouched");
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  refused("not a regular file");
  auto const reader = [&] {
    ::mkfifo(path_.c_str(), 0600);
    return ::open(path_.c_str(), O_RDONLY | O_NONBLOCK);
  }();
  refused("not a regular file");
  ::close(reader);
  fs::create_symlink("/dev/full", path_);
  refused("a symbolic link, which is not followed");
  if (geteuid() != 0) return;
  std::ofstream(path_) << "another's";
  ASSERT_EQ(::chown(path_.c_str(), 65534, 65534), 0);
  ASSERT_EQ(::chmod(path_.c_str(), 0666), 0);
  refused("it belongs to another user (65534)");
}

}  // namespace
}  // namespace unimem
