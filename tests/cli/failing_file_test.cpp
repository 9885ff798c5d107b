#include "cli/cli_process.hpp"
#include "cli/sample_data.hpp"
#include "cli/sandbox.hpp"
#include "small_disk.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <csignal>
#include <fstream>

namespace unimem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Whether the process has mapped a file of this name.
bool has_mapped(CliProcess const& process, std::string const& name) {
  std::ifstream maps("/proc/" + std::to_string(process.id()) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with(name)) return true;
  }
  return false;
}

TEST(FailingFile, ThatShrinksWhileReadLeavesNoOutput) {
  Sandbox const folder;
  auto const input = folder.write_hole("data.bin", 64 << 20);
  // Slow enough that most of the file is still unread when it shrinks.
  CliProcess run(
      words_of("run data.bin --kernel affine --output out.bin --chunk 1MiB --device sim:h2d=8MB/s --direct off"),
      {.directory = folder.path()});
  ASSERT_TRUE(reaches(run, [&] { return run.bytes_read() > (2 << 20) && run.writes_in(folder.path()); }))
      << run.wait().err;
  fs::resize_file(input, 0);
  auto const outcome = run.wait();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, HasSubstr("data.bin: shrank while it was read"));
  EXPECT_THAT(folder.snapshot(), ::testing::ElementsAre(std::pair{"data.bin", ""}));
}

TEST(FailingFile, ThatShrinksWhileMappedIsAnError) {
  // The race is with the stream itself: stopped in the middle, it cannot finish first. Too late is tried again.
  for (int attempt = 0; attempt < 20; ++attempt) {
    Sandbox const folder;
    auto const input = folder.write_hole("data.bin", std::size_t{2} << 30);
    CliProcess run(words_of("run data.bin --kernel histogram --chunk 8MiB --device cpu --direct off"),
                   {.directory = folder.path()});
    if (!reaches(run, [&] { return has_mapped(run, "data.bin"); })) continue;
    run.send(SIGSTOP);
    fs::resize_file(input, 4'096);
    run.send(SIGCONT);
    auto const outcome = run.wait();
    if (outcome.exit_code == 0) continue;
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_FALSE(outcome.ended_by_signal);
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_THAT(outcome.err, HasSubstr("data.bin: shrank while it was read"));
    return;
  }
  FAIL() << "never stopped in the middle";
}

TEST(FailingFile, ThatIsRemovedIsReadToItsEnd) {
  Sandbox const folder;
  auto const contents = mixed_bytes(4 << 20, 3);
  auto const input = folder.write("data.bin", contents);
  CliProcess run(words_of("run data.bin --kernel affine --output out.bin --chunk 256KiB --device sim:h2d=4MB/s"),
                 {.directory = folder.path()});
  ASSERT_TRUE(reaches(run, [&] { return run.writes_in(folder.path()); })) << run.wait().err;
  fs::remove(input);
  EXPECT_EQ(run.wait().exit_code, 0);
  EXPECT_EQ(folder.read("out.bin"), contents);
}

TEST(FailingFile, ThatGrowsIsProcessedAsItWas) {
  Sandbox const folder;
  auto const contents = mixed_bytes(4 << 20, 4);
  auto const input = folder.write("data.bin", contents);
  CliProcess run(words_of("run data.bin --kernel affine --output out.bin --chunk 256KiB --device sim:h2d=4MB/s"),
                 {.directory = folder.path()});
  ASSERT_TRUE(reaches(run, [&] { return run.writes_in(folder.path()); })) << run.wait().err;
  fs::resize_file(input, contents.size() + 1'000);
  EXPECT_EQ(run.wait().exit_code, 0);
  EXPECT_EQ(folder.read("out.bin"), contents);
}

TEST(FailingFile, OnAFullDiskKeepsAnOlderOutput) {
  Sandbox const folder;
  SmallDisk const disk(folder / "small", 1 << 20);
  if (!disk.mounted()) GTEST_SKIP() << "cannot mount a small disk: " << disk.reason();
  folder.write("data.bin", mixed_bytes(4 << 20, 5));
  folder.write("small/out.bin", "the older output");
  auto const before = folder.snapshot();
  for (std::string const device : {"cpu", "sim"}) {
    auto const outcome =
        run_cli(words_of("run data.bin --kernel affine --output small/out.bin --chunk 128KiB --device " + device),
                {.directory = folder.path()});
    EXPECT_EQ(outcome.exit_code, 1) << device;
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_THAT(outcome.err, HasSubstr("small/out.bin: cannot write: No space left on device"));
    EXPECT_EQ(folder.snapshot(), before) << device;
  }
}

TEST(FailingFile, AtTheFileSizeLimitNoSignalKills) {
  Sandbox const folder;
  folder.write("data.bin", mixed_bytes(4 << 20, 6));
  auto const before = folder.snapshot();
  auto const outcome = run_cli(words_of("run data.bin --kernel affine --output out.bin --chunk 128KiB"),
                               {.directory = folder.path(), .file_size_limit = 1 << 20});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_FALSE(outcome.ended_by_signal);
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, HasSubstr("out.bin: cannot write: File too large"));
  EXPECT_EQ(folder.snapshot(), before);
}

}  // namespace
}  // namespace unimem
