#include <unimem/report/exit_report.hpp>

#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/report/json.hpp>

#include "device/temporary_folder.hpp"
#include "forked_child.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace unimem {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t MiB = std::size_t{1} << 20;

// What is reported is decided when a process starts: every program here is this one, started anew as a disabled test of
// it.

TEST(ReportedPrograms, DISABLED_OneUsesTheDefaultManager) {
  auto& sim = make_sim({.memory_bytes = 64 * MiB});
  static auto kept = default_manager().acquire(sim, Location::device, 8 * MiB, {.name = Name{"kept"}});
  default_manager().acquire(device("cpu"), Location::host, MiB).release();
  MemoryManager other;
  other.acquire(device("cpu"), Location::host, MiB).release();
  report_at_exit();  // once more is once
}

TEST(ReportedPrograms, DISABLED_OneUsesNothing) {}

TEST(ReportedPrograms, DISABLED_OneForks) {
  auto const before = default_manager().acquire(device("cpu"), Location::host, MiB);
  EXPECT_EQ(in_child([] { return 0; }, std::exit), 0);
  EXPECT_FALSE(std::filesystem::exists(std::getenv("UNIMEM_REPORT"))) << "it is not the child's to write";
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
      auto const filter = std::string("--gtest_filter=ReportedPrograms.DISABLED_") + program;
      ::execl("/proc/self/exe", "reported", filter.c_str(), "--gtest_also_run_disabled_tests", "--gtest_brief=1",
              "--gtest_output=", nullptr);
      return 127;
    });
  }

  TemporaryFolder folder_;
  std::string const path_ = folder_ / "report.json";
  std::string const errors_ = folder_ / "errors";
};

TEST_F(ExitReport, IsTheDefaultManagersStatisticsAtTheEnd) {
  ASSERT_EQ(run("OneUsesTheDefaultManager", path_), 0);
  auto const text = content_of(path_);
  EXPECT_EQ(text.find('\n'), text.size() - 1) << "one line";
  auto const json = nlohmann::json::parse(text);
  EXPECT_EQ(json["total_allocations"], 2) << "and not the other manager's";
  ASSERT_EQ(json["pools"].size(), 2U);
  for (auto const& pool : json["pools"]) {
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
  EXPECT_EQ(content_of(errors_), "");
}

TEST_F(ExitReport, OfAProgramThatUsesNothingIsOfNothing) {
  ASSERT_EQ(run("OneUsesNothing", path_), 0);
  EXPECT_EQ(content_of(path_), to_json(GlobalMemoryStatistics{}) + '\n');
}

TEST_F(ExitReport, ThatCannotBeWrittenIsSaidOnceAndChangesNothingElse) {
  auto const path = folder_ / "nowhere" / "report.json";
  EXPECT_EQ(run("OneUsesTheDefaultManager", path), 0);
  auto const said = content_of(errors_);
  EXPECT_THAT(said, HasSubstr("UNIMEM_REPORT: " + path.string() + ": No such file or directory"));
  EXPECT_EQ(said.find("UNIMEM_REPORT"), said.rfind("UNIMEM_REPORT")) << said;

  EXPECT_EQ(run("OneUsesNothing", "/dev/full"), 0);
  EXPECT_THAT(content_of(errors_), HasSubstr("UNIMEM_REPORT: /dev/full: No space left on device"));
}

TEST_F(ExitReport, IsNotAForkedChilds) {
  ASSERT_EQ(run("OneForks", path_), 0);
  EXPECT_EQ(nlohmann::json::parse(content_of(path_))["active_bytes"], 0);
}

}  // namespace
}  // namespace unimem
