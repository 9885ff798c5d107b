#include <unimem/core/build.hpp>
#include <unimem/core/log.hpp>
#include <unimem/core/version.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace unimem {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Restores the level that programs start with.
class Log : public ::testing::Test {
 protected:
  void TearDown() override { set_log_level(LogLevel::warning); }

  /// What reaches stderr when a line is logged at each level.
  static std::string all_levels() {
    ::testing::internal::CaptureStderr();
    log(LogLevel::error, "an error");
    log(LogLevel::warning, "a warning");
    log(LogLevel::info, "some info");
    log(LogLevel::debug, "a detail");
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(Log, EachLevelIncludesWorseOnes) {
  constexpr std::array<std::pair<LogLevel, char const*>, 5> table{{
      {LogLevel::off, ""},
      {LogLevel::error, "unimem: error: an error\n"},
      {LogLevel::warning, "unimem: error: an error\nunimem: warning: a warning\n"},
      {LogLevel::info, "unimem: error: an error\nunimem: warning: a warning\nunimem: info: some info\n"},
      {LogLevel::debug,
       "unimem: error: an error\nunimem: warning: a warning\nunimem: info: some info\nunimem: debug: a detail\n"},
  }};
  for (auto const& [level, lines] : table) {
    set_log_level(level);
    EXPECT_EQ(all_levels(), lines);
  }
}

TEST_F(Log, WarningsAreShownUnlessToldOtherwise) {
  EXPECT_EQ(all_levels(), "unimem: error: an error\nunimem: warning: a warning\n");
}

TEST_F(Log, NothingReachesStdout) {
  set_log_level(LogLevel::debug);
  ::testing::internal::CaptureStdout();
  EXPECT_THAT(all_levels(), HasSubstr("a detail"));
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
}

TEST_F(Log, BracesInAMessageAreText) {
  ::testing::internal::CaptureStderr();
  log(LogLevel::error, "{} {0} {x} %s {");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "unimem: error: {} {0} {x} %s {\n");
}

TEST_F(Log, LinesOfManyThreadsStayWhole) {
  ::testing::internal::CaptureStderr();
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < 100; ++i) log(LogLevel::error, "0123456789");
      });
    }
  }
  std::string expected;
  for (int i = 0; i < 400; ++i) expected += "unimem: error: 0123456789\n";
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), expected);
}

/// What a program that is started with this level writes. The logger reads the variable once, so each needs its own
/// process.
[[noreturn]] void start_with(char const* level) {
  setenv("UNIMEM_LOG_LEVEL", level, 1);
  log(LogLevel::warning, "a warning");
  log(LogLevel::debug, "a detail");
  std::exit(0);  // NOLINT(concurrency-mt-unsafe)
}

TEST(LogDeathTest, TheEnvironmentSetsTheLevelAtStart) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(start_with("debug"), ::testing::ExitedWithCode(0), "unimem: debug: a detail");
  EXPECT_EXIT(start_with("off"), ::testing::ExitedWithCode(0), "^$");
  EXPECT_EXIT(start_with("loud"), ::testing::ExitedWithCode(0),
              "UNIMEM_LOG_LEVEL 'loud' is not one of off, error, warning, info, debug\nunimem: warning: a warning\n$");
}

TEST(LogDeathTest, AnUnknownLevelIsReported) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the child is a program that starts with this environment
  setenv("UNIMEM_LOG_LEVEL", "bogus", 1);
  EXPECT_EXIT(std::exit(0), ::testing::ExitedWithCode(0),
              "^unimem: warning: UNIMEM_LOG_LEVEL 'bogus' is not one of off, error, warning, info, debug\n$");
  unsetenv("UNIMEM_LOG_LEVEL");
}

TEST(Build, TheLibraryIsTheVersionOfItsHeaders) {
  EXPECT_EQ(version(), UNIMEM_VERSION);
  EXPECT_EQ(std::string(version()), std::to_string(UNIMEM_VERSION_MAJOR) + "." + std::to_string(UNIMEM_VERSION_MINOR) +
                                        "." + std::to_string(UNIMEM_VERSION_PATCH));
}

TEST(Build, TheDescriptionNamesTheCompiler) {
#if defined(__clang__)
  EXPECT_THAT(std::string(build_description()), StartsWith("clang++ "));
#else
  EXPECT_THAT(std::string(build_description()), StartsWith("g++ "));
#endif
}

/// What a sink has been given, and whether it takes more.
std::vector<std::pair<LogLevel, std::string>> taken;
bool takes = true;

TEST_F(Log, ASinkReplacesStandardError) {
  taken.clear();
  takes = true;
  set_log_sink([](LogLevel level, std::string_view message) noexcept {
    if (takes) taken.emplace_back(level, message);
    return takes;
  });
  EXPECT_EQ(all_levels(), "");
  EXPECT_THAT(taken, ::testing::ElementsAre(std::pair{LogLevel::error, std::string("an error")},
                                            std::pair{LogLevel::warning, std::string("a warning")}));
  takes = false;
  EXPECT_EQ(all_levels(), "unimem: error: an error\nunimem: warning: a warning\n") << "what it does not take";
  set_log_sink(nullptr);
  takes = true;
  EXPECT_EQ(all_levels(), "unimem: error: an error\nunimem: warning: a warning\n");
  EXPECT_EQ(taken.size(), 2U);
}

}  // namespace
}  // namespace unimem
