#include <unimem/report/exit_report.hpp>

#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/report/json.hpp>

#include "core/sizes.hpp"
#include "device/temporary_folder.hpp"
#include "forked_child.hpp"
#include "limited_files.hpp"
#include "manager/usage_book.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace unimem {
namespace {

using ::testing::HasSubstr;

// What is reported is decided when a process starts: every program here is this one, started anew as a disabled test of
// it.

TEST(ReportedPrograms, DISABLED_OneUsesTheDefaultManager) {
  auto& sim = make_sim({.memory_bytes = 64 * MiB});
  default_manager().set_limit(sim, 32 * MiB);
  static auto kept = default_manager().acquire(sim, Location::device, 8 * MiB, {.name = Name{"kept"}});
  default_manager().acquire(device("cpu"), Location::host, MiB).release();
  MemoryManager other;
  other.acquire(device("cpu"), Location::host, MiB).release();
  report_at_exit();  // once more is once
}

TEST(ReportedPrograms, DISABLED_OneUsesNothing) {}

TEST(ReportedPrograms, DISABLED_OneLeaks) {
  static auto* const lost = new detail::UsageEntry;  // on the book as a buffer would be, and never off it again
  default_manager().usage_book().enter(*lost, {&device("cpu"), Location::host, Name{"lost"}}, 2 * MiB, 7);
}

TEST(ReportedPrograms, DISABLED_OneForks) {
  auto const before = default_manager().acquire(device("cpu"), Location::host, MiB);
  EXPECT_EQ(in_child([] { return 0; }, std::exit), 0);
  EXPECT_EQ(content_of(std::getenv("UNIMEM_REPORT")), "") << "it is not the child's to write";
}

/// Becomes this program, as a disabled test of it.
int become(char const* program) {
  auto const filter = std::string("--gtest_filter=ReportedPrograms.DISABLED_") + program;
  ::execl("/proc/self/exe", "reported", filter.c_str(), "--gtest_also_run_disabled_tests", "--gtest_brief=1",
          "--gtest_output=", nullptr);
  return 127;
}

TEST(ReportedPrograms, DISABLED_OneHasAChild) {
  static auto kept = default_manager().acquire(device("cpu"), Location::host, 3 * MiB);
  EXPECT_EQ(in_child([] { return become("OneUsesNothing"); }), 0);
}

constexpr auto until = "REPORTED_UNTIL";

TEST(ReportedPrograms, DISABLED_OneForksOneThatStays) {
  if (fork() != 0) return;
  char none = 0;
  _exit(::read(std::atoi(std::getenv(until)), &none, 1) == 0 ? 0 : 1);
}

/// The report of one of them, and what became of it.
class ExitReport : public ::testing::Test {
 protected:
  int run(char const* program, std::string const& path) {
    return in_child([&] {
      ::setenv("UNIMEM_REPORT", path.c_str(), 1);
      ::unsetenv("UNIMEM_LOG_LEVEL");
      auto const errors = ::open(errors_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      ::dup2(errors, STDERR_FILENO);
      return become(program);
    });
  }

  TemporaryFolder folder_;
  std::string const path_ = folder_ / "report.json";
  std::string const errors_ = folder_ / "errors";
};

TEST_F(ExitReport, IsTheDefaultManagersSnapshotAtTheEnd) {
  ASSERT_EQ(run("OneUsesTheDefaultManager", path_), 0);
  auto const text = content_of(path_);
  EXPECT_EQ(text.find('\n'), text.size() - 1) << "one line";
  auto const json = nlohmann::json::parse(text);
  EXPECT_EQ(json["schema"], snapshot_schema);
  auto const& statistics = json["statistics"];
  EXPECT_EQ(statistics["total_allocations"], 2) << "and not the other manager's";
  ASSERT_EQ(statistics["pools"].size(), 2U);
  for (auto const& pool : statistics["pools"]) {
    if (pool["device"] == "cpu") {
      EXPECT_EQ(pool["location"], "host");
      EXPECT_EQ(pool["pool"]["active_bytes"], 0);
      EXPECT_EQ(pool["pool"]["peak_active_bytes"], MiB);
    } else {
      EXPECT_EQ(pool["location"], "device");
      EXPECT_EQ(pool["pool"]["peak_active_bytes"], 8 * MiB);
      EXPECT_EQ(pool["pool"]["active_bytes"], 0) << "statics are destroyed before";
    }
  }
  ASSERT_EQ(json["limits"].size(), 2U);
  for (auto const& limit : json["limits"]) {
    EXPECT_EQ(limit["limit_bytes"], limit["device"] == "cpu" ? device("cpu").info().total_bytes : 32 * MiB);
  }
  EXPECT_EQ(content_of(errors_), "");
}

TEST_F(ExitReport, ListsByNameWhatBuffersStillHave) {
  ASSERT_EQ(run("OneLeaks", path_), 0);
  auto const json = nlohmann::json::parse(content_of(path_));
  EXPECT_EQ(json["usage"]["total"]["live_bytes"], 2 * MiB);
  EXPECT_EQ(json["live"]["bytes"], 2 * MiB);
  ASSERT_EQ(json["live"]["allocations"].size(), 1U);
  EXPECT_EQ(json["live"]["allocations"][0]["name"], "lost");
  EXPECT_EQ(json["live"]["allocations"][0]["bytes"], 2 * MiB);
}

TEST_F(ExitReport, OfAnIdleProgramIsEmpty) {
  ASSERT_EQ(run("OneUsesNothing", path_), 0);
  EXPECT_EQ(content_of(path_), to_json(MemorySnapshot{}) + '\n');
}

TEST_F(ExitReport, ThatCannotBeWrittenIsToldOnce) {
  auto const path = folder_ / "nowhere" / "report.json";
  EXPECT_EQ(run("OneUsesTheDefaultManager", path), 0);
  auto const said = content_of(errors_);
  EXPECT_THAT(said, HasSubstr("UNIMEM_REPORT: " + path.string() + ": No such file or directory"));
  EXPECT_EQ(said.find("UNIMEM_REPORT"), said.rfind("UNIMEM_REPORT")) << said;

  EXPECT_EQ(run("OneUsesNothing", "/dev/full"), 0);
  EXPECT_THAT(content_of(errors_), HasSubstr("UNIMEM_REPORT: /dev/full: not a regular file"));

  constexpr std::size_t room = 300;  // bytes: enough for what is said
  ASSERT_GT(to_json(MemorySnapshot{}).size(), room);
  EXPECT_EQ(in_child([&] {
              limit_files_to(room);
              return run("OneUsesNothing", path_);
            }),
            0);
  EXPECT_THAT(content_of(errors_), HasSubstr("File too large"));
}

TEST_F(ExitReport, IsPrivateAndReplacesAnEarlierOne) {
  std::ofstream(path_) << "earlier";
  std::filesystem::permissions(path_, std::filesystem::perms::all);
  ASSERT_EQ(run("OneUsesNothing", path_), 0);
  EXPECT_EQ(content_of(path_), to_json(MemorySnapshot{}) + '\n');
  using std::filesystem::perms;
  EXPECT_EQ(std::filesystem::status(path_).permissions() & perms::mask, perms::owner_read | perms::owner_write);
}

TEST_F(ExitReport, IsTheParentsWithAnInheritedName) {
  ASSERT_EQ(run("OneHasAChild", path_), 0);
  auto const json = nlohmann::json::parse(content_of(path_));
  EXPECT_EQ(json["statistics"]["total_allocations"], 1);
  EXPECT_THAT(content_of(errors_),
              ::testing::ContainsRegex("UNIMEM_REPORT: " + path_ + ": process [0-9]+ writes it .*there is no report"));
}

TEST_F(ExitReport, IsNotLockedByALastingChild) {
  std::array<int, 2> ended{};
  ASSERT_EQ(::pipe(ended.data()), 0);
  ASSERT_EQ(::fcntl(ended[1], F_SETFD, FD_CLOEXEC), 0);
  ::setenv(until, std::to_string(ended[0]).c_str(), 1);
  ASSERT_EQ(run("OneForksOneThatStays", path_), 0);
  ASSERT_EQ(run("OneLeaks", path_), 0);
  EXPECT_EQ(content_of(errors_), "");
  EXPECT_EQ(nlohmann::json::parse(content_of(path_))["live"]["bytes"], 2 * MiB);
  ::close(ended[1]);  // the child ends
  ::close(ended[0]);
}

TEST_F(ExitReport, IsOnePerProcessWithNumbers) {
  ASSERT_EQ(run("OneHasAChild", folder_ / "%p.json"), 0);
  EXPECT_EQ(content_of(errors_), "");
  int reports = 0, allocations = 0;
  for (auto const& entry : std::filesystem::directory_iterator(folder_.path())) {
    if (entry.path().extension() != ".json") continue;
    ++reports;
    allocations += nlohmann::json::parse(content_of(entry.path()))["statistics"]["total_allocations"].get<int>();
  }
  EXPECT_EQ(reports, 2);
  EXPECT_EQ(allocations, 1);
}

TEST_F(ExitReport, IsNotAForkedChilds) {
  ASSERT_EQ(run("OneForks", path_), 0);
  EXPECT_EQ(nlohmann::json::parse(content_of(path_))["statistics"]["active_bytes"], 0);
}

}  // namespace
}  // namespace unimem
