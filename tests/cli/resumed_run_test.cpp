#include "cli/cli_process.hpp"
#include "cli/sample_data.hpp"
#include "cli/sandbox.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

// Runs that are ended in the middle, and others that go on with what they have left.

namespace unimem {
namespace {

using ::testing::HasSubstr;

class ResumedRun : public ::testing::Test {
 protected:
  static constexpr std::size_t size = (8 << 20) + 1'234;

  /// What affine makes of the bytes.
  [[nodiscard]] std::string expected() const {
    auto mapped = bytes_;
    for (auto& c : mapped) c = static_cast<char>(std::min(255, static_cast<unsigned char>(c) + 3));
    return mapped;
  }

  Sandbox folder_;
  std::string bytes_ = mixed_bytes(size, 5);
  // Some 80 ms of copies to the device.
  std::string command_ =
      "run data.bin --kernel affine --offset 3 --output out.bin --resume --chunk 128KiB --device sim:h2d=100MB/s "
      "--checksum xxh3 --json";
};

// A hundred kills in long runs.
TEST_F(ResumedRun, KilledAtAnyMomentEndsWithTheSameOutput) {
  auto const wanted = std::getenv("UNIMEM_TEST_OPERATIONS") == nullptr ? 10 : 100;
  std::mt19937 random{2026};
  folder_.write("data.bin", bytes_);
  int kills = 0, wholes = 0, gone_on = 0;
  while (kills < wanted) {
    CliProcess run(words_of(command_), {.directory = folder_.path()});
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 120'000));
    run.send(SIGKILL);
    auto const outcome = run.wait();
    if (outcome.ended_by_signal) {
      ++kills;
      continue;
    }
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    ++wholes;
    gone_on += nlohmann::json::parse(outcome.out)["resumed_bytes"] != 0 ? 1 : 0;
    ASSERT_TRUE(folder_.read("out.bin") == expected());
    EXPECT_EQ(folder_.snapshot().size(), 2U);
    std::filesystem::remove(folder_ / "out.bin");
  }
  auto const last = run_cli(words_of(command_), {.directory = folder_.path()});
  ASSERT_EQ(last.exit_code, 0) << last.err;
  ASSERT_TRUE(folder_.read("out.bin") == expected());
  EXPECT_EQ(folder_.snapshot().size(), 2U);
  RecordProperty("kills", kills);
  RecordProperty("whole", wholes + 1);
  RecordProperty("gone_on", gone_on);
}

TEST_F(ResumedRun, StoppedByASignalGoesOn) {
  folder_.write("data.bin", bytes_);
  CliProcess run(words_of(command_), {.directory = folder_.path()});
  auto const journal = folder_ / "out.bin.unimem-journal";
  std::error_code missing;
  ASSERT_TRUE(reaches(run, [&] {
    auto const bytes = std::filesystem::file_size(journal, missing);
    return !missing && bytes > 1'000;
  })) << run.wait().err;
  run.send(SIGINT);
  EXPECT_EQ(run.wait().exit_code, 130);
  EXPECT_TRUE(std::filesystem::exists(journal));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out.bin"));
  auto const last = run_cli(words_of(command_), {.directory = folder_.path()});
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_GT(nlohmann::json::parse(last.out)["resumed_bytes"], 0);
  EXPECT_TRUE(folder_.read("out.bin") == expected());
}

TEST_F(ResumedRun, VerifiesWhatItsManifestSays) {
  folder_.write("data.bin", bytes_);
  auto const written =
      run_cli(words_of("run data.bin --kernel histogram --manifest m.json --json"), {.directory = folder_.path()});
  ASSERT_EQ(written.exit_code, 0) << written.err;
  auto const json = nlohmann::json::parse(written.out);
  EXPECT_EQ(json["checksum"], "xxh3");
  EXPECT_EQ(json["files"][0]["path"], "data.bin");
  EXPECT_EQ(json["files"][0]["bytes"], size);
  EXPECT_EQ(json["files"][0]["checksums"], nlohmann::json::parse(folder_.read("m.json"))["files"][0]["chunks"]);
  auto flipped = bytes_;
  flipped[5'000'000] = static_cast<char>(flipped[5'000'000] ^ 4);
  folder_.write("data.bin", flipped);
  auto const verified =
      run_cli(words_of("run data.bin --kernel histogram --verify m.json --json"), {.directory = folder_.path()});
  EXPECT_EQ(verified.exit_code, 1);
  EXPECT_EQ(verified.out, "");
  EXPECT_THAT(verified.err,
              HasSubstr("data.bin: its checksums differ from the manifest's: chunk 0 (bytes [0, 8389842)"));
}

}  // namespace
}  // namespace unimem
