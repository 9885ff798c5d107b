#include "progress_bar.hpp"
#include "cli/cli_process.hpp"
#include "cli/sandbox.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

namespace unimem {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::uint64_t gib = std::uint64_t{1} << 30;

TEST(ProgressLine, SaysShareRateAndTimeLeft) {
  EXPECT_EQ(cli::progress_line(gib, 4 * gib, 2, 120),
            " 25 % [==========                              ]  1 GiB of 4 GiB  0.54 GB/s  0:06 left");
  EXPECT_EQ(cli::progress_line(gib, 4 * gib, 3'600, 120),
            " 25 % [==========                              ]  1 GiB of 4 GiB  0.00 GB/s  3:00:00 left");
}

TEST(ProgressLine, GivesNoRateBeforeOneCanBeMeasured) {
  EXPECT_EQ(cli::progress_line(0, 4 * gib, 5, 80), "  0 % [                                        ]  0 B of 4 GiB");
  EXPECT_EQ(cli::progress_line(gib, 4 * gib, 0.01, 80),
            " 25 % [==========                              ]  1 GiB of 4 GiB");
}

TEST(ProgressLine, WithoutATotalSaysAmountAndRate) {
  EXPECT_EQ(cli::progress_line(0, 0, 1, 80), "0 B");
  EXPECT_EQ(cli::progress_line(gib, 0, 0.01, 80), "1 GiB");
  EXPECT_EQ(cli::progress_line(gib, 0, 2, 80), "1 GiB  0.54 GB/s");
  EXPECT_EQ(cli::progress_line(gib, 0, 2, 3), "1 G");
}

TEST(ProgressLine, NeverExceedsTheTerminal) {
  for (std::size_t columns = 0; columns <= 200; ++columns) {
    auto const line = cli::progress_line(3 * gib + 12'345, 7 * gib, 12.5, columns);
    EXPECT_LE(line.size(), columns);
    EXPECT_EQ(line.substr(0, 5), std::string(" 42 %").substr(0, columns));
  }
}

TEST(ProgressLine, LosesItsPartsInOrder) {
  auto const shown = [](std::size_t columns) {
    auto const line = cli::progress_line(gib, 4 * gib, 2, columns);
    return std::array{line.find("GiB") != line.npos, line.find("left") != line.npos, line.find('[') != line.npos,
                      line.find("GB/s") != line.npos};
  };
  std::vector<std::array<bool, 4>> forms;
  for (std::size_t columns = 100; columns > 5; --columns) {
    if (forms.empty() || forms.back() != shown(columns)) forms.push_back(shown(columns));
  }
  EXPECT_THAT(forms, ::testing::ElementsAre(std::array{true, true, true, true}, std::array{false, true, true, true},
                                            std::array{false, false, true, true}, std::array{false, false, false, true},
                                            std::array{false, false, false, false}));
}

/// A run of about a second.
Outcome slow_run(std::string const& options, std::optional<unsigned short> terminal_columns,
                 std::string const& device = "sim:h2d=4MB/s", std::string const& terminal_name = "xterm") {
  Sandbox const folder;
  folder.write_hole("data.bin", 4 << 20);
  return run_cli(
      words_of("run data.bin --kernel histogram --chunk 64KiB --buffers 1 --device " + device + " " + options),
      {.directory = folder.path(), .environment = {{"TERM", terminal_name}}, .terminal_columns = terminal_columns});
}

TEST(ProgressBar, IsDrawnOnATerminalAndCleared) {
  auto const outcome = slow_run("--json", 100);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr(" % ["));
  EXPECT_THAT(outcome.err, HasSubstr("left"));
  EXPECT_THAT(outcome.err, EndsWith("\r\x1b[K"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("\n")));
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["chunks"], 64);
}

TEST(ProgressBar, IsRedrawnTenTimesASecondAtMost) {
  auto const outcome = slow_run("--json", 100);
  auto const seconds = nlohmann::json::parse(outcome.out)["seconds"].get<double>();
  auto const drawn = static_cast<double>(std::count(outcome.err.begin(), outcome.err.end(), '%'));
  EXPECT_GE(drawn, 2);
  EXPECT_LE(drawn, seconds * 10 + 2);
}

TEST(ProgressBar, NeverWrapsOnANarrowTerminal) {
  auto const outcome = slow_run("--json", 20);
  EXPECT_THAT(outcome.err, HasSubstr("%"));
  std::string line;
  for (char const c : outcome.err) {
    if (c != '\r') {
      line += c;
      continue;
    }
    EXPECT_LT(line.substr(0, line.find('\x1b')).size(), 20U) << line;
    line.clear();
  }
}

TEST(ProgressBar, IsClearedBeforeAFailuresReason) {
  auto const outcome = slow_run("", 100, "sim:h2d=4MB/s,fail_upload=20");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("\r\x1b[Kunimem: "));
}

TEST(ProgressBar, IsNotDrawnWithoutATerminal) {
  EXPECT_THAT(slow_run("", std::nullopt).err, IsEmpty());
  EXPECT_THAT(slow_run("--no-progress", 100).err, IsEmpty());
  EXPECT_THAT(slow_run("", 100, "sim:h2d=4MB/s", "dumb").err, IsEmpty());
}

}  // namespace
}  // namespace unimem
