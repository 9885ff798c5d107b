#include <unimem/core/error.hpp>

#include "buffer/spilling_fixture.hpp"
#include "forked_child.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>

// Where the files are, and who says so.

namespace unimem::testing {
namespace {

TEST_F(Spilling, AnUnusableDirectoryIsAnErrorAtOnce) {
  auto const made_in = [](std::string path) { MemoryManager{ManagerOptions{.spill = {.directory = std::move(path)}}}; };
  try {
    made_in(directory.path() + "/nowhere");
    FAIL() << "there is no such directory";
  } catch (IoError const& error) {
    EXPECT_EQ(error.path, directory.path() + "/nowhere");
    EXPECT_EQ(error.code, ENOENT);
  }
  auto const file = directory.path() + "/file";
  ::close(::open(file.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  try {
    made_in(file);
    FAIL() << "it is a file";
  } catch (IoError const& error) {
    EXPECT_EQ(error.code, ENOTDIR);
  }
  auto const refused = in_child([&] {
    std::filesystem::permissions(directory.path(), std::filesystem::perms::owner_read);
    constexpr uid_t nobody = 65534;
    if (getuid() == 0) EXPECT_HERE(::setuid(nobody) == 0);
    try {
      made_in(directory.path());
    } catch (IoError const& error) {
      EXPECT_HERE(error.code == EACCES);
      return 0;
    }
    return 1;
  });
  EXPECT_EQ(refused, 0);
  std::filesystem::permissions(directory.path(), std::filesystem::perms::owner_all);
}

TEST_F(Spilling, ARelativeDirectoryIsResolvedAtOnce) {
  auto const from = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  std::filesystem::create_directory("here");
  MemoryManager other{ManagerOptions{.spill = {.directory = "here"}}};
  std::filesystem::current_path(from);
  other.set_limit(device("cpu"), Location::host, MiB);
  auto options = named("elsewhere");
  options.manager = &other;
  Buffer one(words, options), two(words, options);
  one.copy_from(filled(1U));
  two.copy_from(filled(2U));
  EXPECT_EQ(other.statistics().spills, 1U);
  EXPECT_EQ(one.to_vector(), filled(1U));
  EXPECT_EQ(two.to_vector(), filled(2U));
}

TEST_F(Spilling, PinnedAndPageableMemorySpillForEachOther) {
  auto& cpu = device("cpu");
  auto const reserved_together = [&] {
    return manager.pool(cpu, Location::host).statistics().reserved_bytes +
           manager.pool(cpu, Location::pinned).statistics().reserved_bytes;
  };
  manager.set_limit(cpu, 3 * MiB);
  fill(3);
  {
    auto const pinned = manager.acquire(sim, Location::pinned, 2 * MiB);
    EXPECT_EQ(manager.statistics().spills, 2U);
    EXPECT_LE(reserved_together(), 3 * MiB);
    EXPECT_THROW(static_cast<void>(manager.acquire(sim, Location::pinned, 4 * MiB)), OutOfMemory);
    EXPECT_EQ(manager.statistics().spills, 2U) << "nobody loses a copy for what cannot be";
  }
  ASSERT_NO_FATAL_FAILURE(expect_intact());
  auto options = named("pinned");
  options.location = Location::pinned;
  Buffer pinned(words, options);
  pinned.copy_from(filled(7));
  ASSERT_EQ(pinned.location(), Location::pinned);
  auto const before = manager.statistics();
  {
    auto const pageable = manager.acquire(sim, Location::host, 3 * MiB);
    EXPECT_EQ(manager.statistics().host_reclaims, before.host_reclaims + 3) << "the pinned one too";
    EXPECT_EQ(manager.statistics().spills, before.spills + 2) << "one of them stands in its file as it is";
    EXPECT_LE(reserved_together(), 3 * MiB);
  }
  EXPECT_EQ(pinned.to_vector(), filled(7));
  expect_intact();
  EXPECT_LE(reserved_together(), 3 * MiB);
}

TEST_F(Spilling, RefusalsByTheHostLimitCountBothKinds) {
  manager.set_limit(device("cpu"), 3 * MiB);
  fill(2);
  std::ignore = buffers[0].host();  // somebody has its address
  std::ignore = buffers[1].host();
  try {
    static_cast<void>(manager.acquire(sim, Location::pinned, 2 * MiB));
    FAIL() << "2 MiB beside 2 of 3";
  } catch (OutOfMemory const& error) {
    EXPECT_EQ(error.facts().where, "cpu pinned");
    EXPECT_EQ(error.limit(), 3 * MiB);
    EXPECT_EQ(error.live(), 2 * MiB);
    EXPECT_EQ(error.facts().leased, 2 * MiB);
    EXPECT_EQ(error.facts().holders.size(), 2U);
    EXPECT_THAT(error.facts().reason, ::testing::StartsWith("limit reached on all of the host's memory"));
  }
  EXPECT_EQ(manager.statistics().spills, 0U);
  expect_intact();
}

// The environment is read when the default manager is made: these programs are this one, started anew as disabled
// tests.

constexpr char const* marker = "UNIMEM_TEST_HAS_RUN";

/// Has run to its end: a filter that finds no test ends well, too.
void leave_mark() {
  if (::testing::Test::HasFailure()) return;
  auto const path = std::filesystem::path(std::getenv(marker));
  ::close(::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
}

BufferOptions apart_from_the_host() {
  static auto& sim = make_sim({.memory_bytes = 64 * MiB});
  BufferOptions options;
  options.device = &sim;
  return options;
}

TEST(SpillingPrograms, DISABLED_OneHasMoreThanTheHostsLimit) {
  auto& manager = default_manager();
  manager.set_limit(device("cpu"), Location::host, 2 * MiB);
  std::deque<UnifiedBuffer<std::uint32_t>> buffers;
  for (std::uint32_t i = 0; i < 5; ++i) buffers.emplace_back(words, apart_from_the_host()).copy_from(filled(i));
  EXPECT_EQ(manager.statistics().spills, 3U);
  EXPECT_EQ(manager.statistics().spill_file_bytes, 3 * MiB);
  std::size_t files = 0;
  for (auto const& one : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code code;
    auto const target = std::filesystem::read_symlink(one.path(), code).string();
    files += !code && target.starts_with(std::getenv("UNIMEM_SPILL"));
  }
  EXPECT_EQ(files, 3U) << "where the environment says";
  for (std::uint32_t i = 0; i < 5; ++i) EXPECT_EQ(buffers[i].to_vector(), filled(i)) << i;
  EXPECT_GE(manager.statistics().restores, 3U);
  leave_mark();
}

TEST(SpillingPrograms, DISABLED_OneIsRefusedThere) {
  auto& manager = default_manager();
  manager.set_limit(device("cpu"), Location::host, MiB);
  UnifiedBuffer<std::uint32_t> first(words, apart_from_the_host()), second(words, apart_from_the_host());
  first.copy_from(filled(1U));
  EXPECT_THROW(second.copy_from(filled(2U)), OutOfMemory);
  EXPECT_EQ(manager.statistics().spills, 0U);
  EXPECT_EQ(first.to_vector(), filled(1U));
  leave_mark();
}

TEST(SpillingPrograms, DISABLED_OneHasNoSuchDirectory) {
  try {
    static_cast<void>(default_manager());
    ADD_FAILURE() << "copies would be lost that were to go there";
  } catch (IoError const& error) {
    EXPECT_EQ(error.path, std::getenv("UNIMEM_SPILL"));
    EXPECT_EQ(error.code, ENOENT);
    EXPECT_NE(std::string_view(error.what()).find("UNIMEM_SPILL"), std::string_view::npos) << error.what();
  }
  leave_mark();
}

class SpillingOfPrograms : public ::testing::Test {
 protected:
  /// Whether the program did what it says, with `UNIMEM_SPILL` set to that or to nothing.
  bool does(std::string const& program, char const* spill) {
    auto const mark = directory.path() + "/" + program;
    auto const code = in_child([&] {
      spill == nullptr ? ::unsetenv("UNIMEM_SPILL") : ::setenv("UNIMEM_SPILL", spill, 1);
      ::setenv(marker, mark.c_str(), 1);
      auto const filter = "--gtest_filter=SpillingPrograms.DISABLED_" + program;
      ::execl("/proc/self/exe", "spilling", filter.c_str(), "--gtest_also_run_disabled_tests", "--gtest_brief=1",
              "--gtest_output=", nullptr);
      return 127;
    });
    return code == 0 && std::filesystem::exists(mark);
  }

  Directory directory, files;
};

TEST_F(SpillingOfPrograms, GoesWhereTheEnvironmentSays) {
  EXPECT_TRUE(does("OneHasMoreThanTheHostsLimit", files.path().c_str()));
  EXPECT_TRUE(files.empty()) << "nothing stays behind";
}

TEST_F(SpillingOfPrograms, IsNoneWhereTheEnvironmentSaysNothing) {
  EXPECT_TRUE(does("OneIsRefusedThere", nullptr));
  EXPECT_TRUE(does("OneIsRefusedThere", ""));
}

TEST_F(SpillingOfPrograms, ToAMissingDirectoryFailsAtOnce) {
  EXPECT_TRUE(does("OneHasNoSuchDirectory", (files.path() + "/nowhere").c_str()));
}

}  // namespace
}  // namespace unimem::testing
