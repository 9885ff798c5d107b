#include "cli/cli_process.hpp"
#include "cli/json_keys.hpp"
#include "cli/sandbox.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <utility>

namespace unimem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;

/// Two threads and two streams: 160 KiB live at most; the last block has the room of the first.
constexpr char const* log =
    "Thread,Time,Action,Pointer,Size,Stream\n"
    "1,00:00:00.000001,allocate,0x10,65536,0\n"
    "2,00:00:00.000002,allocate,0x20,98304,1\n"
    "2,00:00:00.000003,free,0x10,65536,2\n"
    "1,00:00:00.000004,free,0x20,98304,1\n"
    "1,00:00:00.000005,allocate,0x30,65536,2\n";

class ReplayCommandLine : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam().starts_with("opencl") && !has_device(GetParam())) GTEST_SKIP() << "no OpenCL device";
    folder_.write("log.csv", log);
  }

  [[nodiscard]] Outcome outcome_of(std::string const& options) const {
    return run_cli(words_of("replay log.csv --device " + GetParam() + options), {.directory = folder_.path()});
  }
  [[nodiscard]] Json json_of(std::string const& options) const {
    auto const outcome = outcome_of(" --json" + options);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, IsEmpty());
    EXPECT_EQ(outcome.out.find('\n'), outcome.out.size() - 1) << "one object on one line";
    return Json::parse(outcome.out);
  }

  Sandbox folder_;
};

TEST_P(ReplayCommandLine, TellsALogsCostAsJson) {
  auto const json = json_of("");
  EXPECT_THAT(keys_of(json), ElementsAre("operations", "completed", "failed_at", "nanoseconds_per_operation",
                                         "peak_live_bytes", "peak_reserved_bytes", "overhead", "hit_rate"));
  EXPECT_EQ(json["operations"], 5);
  EXPECT_EQ(json["completed"], true);
  EXPECT_TRUE(json["failed_at"].is_null());
  EXPECT_GT(json["nanoseconds_per_operation"].get<double>(), 0);
  EXPECT_EQ(json["peak_live_bytes"], 163'840);
  EXPECT_GE(json["peak_reserved_bytes"], json["peak_live_bytes"]);
  EXPECT_DOUBLE_EQ(json["overhead"].get<double>(), json["peak_reserved_bytes"].get<double>() / 163'840);
  EXPECT_GT(json["hit_rate"].get<double>(), 0.3) << "one of three";
}

TEST_P(ReplayCommandLine, ALogThatDoesNotFitExitsWith0) {
  auto const json = json_of(" --capacity 100KiB");
  EXPECT_EQ(json["operations"], 5);
  EXPECT_EQ(json["completed"], false);
  EXPECT_EQ(json["failed_at"], 1);
  EXPECT_EQ(json["peak_live_bytes"], 65'536);
  EXPECT_LE(json["peak_reserved_bytes"], 102'400);
  EXPECT_EQ(json["hit_rate"], 0.0);

  auto const none = json_of(" --capacity 4KiB");
  EXPECT_EQ(none["failed_at"], 0);
  EXPECT_TRUE(none["nanoseconds_per_operation"].is_null());
  EXPECT_TRUE(none["overhead"].is_null());
}

TEST_P(ReplayCommandLine, ForPeopleItIsAFewLines) {
  auto const whole = outcome_of("");
  EXPECT_EQ(whole.exit_code, 0);
  EXPECT_THAT(whole.out, HasSubstr("log.csv: 5 operations on " + GetParam().substr(0, GetParam().find(':'))));
  EXPECT_THAT(whole.out, HasSubstr("\n  most live     160 KiB\n"));
  EXPECT_THAT(outcome_of(" --capacity 100KiB").out, HasSubstr("\n  did not fit   stopped at operation 1\n"));
}

INSTANTIATE_TEST_SUITE_P(Devices, ReplayCommandLine, ::testing::Values("cpu", "sim", "opencl:0"),
                         [](auto const& tested) { return tested.param.substr(0, tested.param.find(':')); });

TEST(ReplayOfNothing, ALogWithoutEventsAsksForNothing) {
  Sandbox const folder;
  folder.write("log.csv", "Thread,Time,Action,Pointer,Size,Stream\n");
  auto const outcome = run_cli(words_of("replay log.csv --json"), {.directory = folder.path()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out,
            "{\"operations\":0,\"completed\":true,\"failed_at\":null,\"nanoseconds_per_operation\":null,"
            "\"peak_live_bytes\":0,\"peak_reserved_bytes\":0,\"overhead\":null,\"hit_rate\":0.0}\n");
}

TEST(RecordingCommandLine, ARecordedReplayIsReplayedAlike) {
  Sandbox const folder;
  folder.write("log.csv", log);
  auto const first = run_cli(words_of("replay log.csv --json --device sim"),
                             {.directory = folder.path(), .environment = {{"UNIMEM_LOG", "recorded.csv"}}});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err, IsEmpty());
  auto const second = run_cli(words_of("replay recorded.csv --json --device sim"), {.directory = folder.path()});
  EXPECT_EQ(second.exit_code, 0) << second.err;
  auto const before = Json::parse(first.out);
  auto const after = Json::parse(second.out);
  EXPECT_EQ(before["operations"], 5);
  EXPECT_EQ(after["operations"], 6) << "with the release of what was live at the end";
  for (auto const* const key : {"completed", "peak_live_bytes", "peak_reserved_bytes"}) {
    EXPECT_EQ(after[key], before[key]) << key;
  }
}

TEST(RecordingCommandLine, AnUnwritableFileIsAWarningOnce) {
  Sandbox const folder;
  folder.write("log.csv", log);
  for (auto const& [path, reason] :
       {std::pair{"nowhere/log.csv", "No such file or directory"}, std::pair{"/dev/full", "not a regular file"}}) {
    auto const outcome =
        run_cli(words_of("replay log.csv --json"), {.directory = folder.path(), .environment = {{"UNIMEM_LOG", path}}});
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(Json::parse(outcome.out)["completed"], true);
    EXPECT_EQ(outcome.err,
              "unimem: warning: UNIMEM_LOG: " + std::string(path) + ": " + reason + "; allocations are not recorded\n");
  }
}

}  // namespace
}  // namespace unimem
