#include "cli/cli_process.hpp"
#include "cli/sample_data.hpp"
#include "cli/sandbox.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include <csignal>

namespace unimem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Clock = std::chrono::steady_clock;

/// What the command does when it is interrupted, and how it says so.
struct Stop {
  char const* name;
  int signal;
  int exit_code;
  char const* word;

  friend void PrintTo(Stop const& stop, std::ostream* out) { *out << stop.name; }
};

class Interruption : public ::testing::TestWithParam<Stop> {
 protected:
  /// Starts `command` in the folder, with reads that the system counts at once (rchar), sends the signal once an
  /// unfinished output is there and `bytes` have been read, and asserts the promise: gone, with the signal's exit code,
  /// and without leaving anything behind.
  void expect_stops(std::string const& command, std::size_t bytes, bool no_unnamed_files = false) {
    auto const before = folder_.snapshot();
    CliProcess run(words_of(command + " --direct off"),
                   {.directory = folder_.path(), .no_unnamed_files = no_unnamed_files});
    ASSERT_TRUE(reaches(run, [&] { return run.bytes_read() >= bytes && run.writes_in(folder_.path()); }))
        << run.wait().err;
    EXPECT_EQ(folder_.snapshot().size(), before.size() + (no_unnamed_files ? 1 : 0));
    auto const sent = Clock::now();
    run.send(GetParam().signal);
    auto const outcome = run.wait();
    EXPECT_LT(Clock::now() - sent, std::chrono::seconds(10));
    EXPECT_EQ(outcome.exit_code, GetParam().exit_code);
    EXPECT_FALSE(outcome.ended_by_signal);
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_THAT(outcome.err, HasSubstr(GetParam().word));
    EXPECT_EQ(folder_.snapshot(), before);
  }

  Sandbox folder_;
};

TEST_P(Interruption, BetweenChunksRemovesThePartialOutput) {
  folder_.write_hole("data.bin", std::size_t{1} << 30);
  folder_.write("out.bin", "the older output");
  expect_stops("run data.bin --kernel affine --output out.bin --chunk 1MiB --device sim:h2d=20MB/s", 4 << 20);
}

TEST_P(Interruption, RemovesAPartialOutputThatHasAName) {
  folder_.write_hole("data.bin", std::size_t{1} << 30);
  folder_.write("out.bin", "the older output");
  expect_stops("run data.bin --kernel affine --output out.bin --chunk 1MiB --device sim:h2d=20MB/s", 4 << 20, true);
}

TEST_P(Interruption, OfALongCopyStopsWithinASecond) {
  constexpr std::size_t one_chunk = 64 << 20;
  folder_.write_hole("data.bin", one_chunk);
  expect_stops("run data.bin --kernel affine --output out.bin --device sim:h2d=1MB/s", one_chunk);
}

TEST_P(Interruption, OfALongKernelStopsWithinASecond) {
  if (!has_device("opencl:0")) GTEST_SKIP() << "no OpenCL device";
  constexpr std::size_t one_chunk = 64 << 20;
  folder_.write_hole("data.bin", one_chunk);
  folder_.write("slow.cl",
                "UNIMEM_KERNEL slow(UNIMEM_CONST_BUFFER(uchar, in), UNIMEM_BUFFER(uchar, out), unimem_u64 count) {\n"
                "  uint x = UNIMEM_DATA(const uchar, in)[UNIMEM_ITEM_X] + 1;\n"
                "  for (uint i = 0; i < 100000; ++i) x = x * 1664525u + 1013904223u + (x >> 7);\n"
                "  UNIMEM_DATA(uchar, out)[UNIMEM_ITEM_X] = (uchar)x;\n"
                "}\n");
  expect_stops("run data.bin --source slow.cl --entry slow --output out.bin --device opencl:0", one_chunk);
}

INSTANTIATE_TEST_SUITE_P(Signals, Interruption,
                         ::testing::Values(Stop{"SIGINT", SIGINT, 130, "interrupted"},
                                           Stop{"SIGTERM", SIGTERM, 143, "terminated"},
                                           Stop{"SIGHUP", SIGHUP, 129, "hung up"}),
                         [](auto const& test) { return test.param.name; });

TEST(InterruptionByTheTerminal, IsIgnoredWhereItWasIgnoredAtStart) {
  Sandbox const folder;
  auto const contents = mixed_bytes(2 << 20, 8);
  folder.write("data.bin", contents);
  CliProcess run(words_of("run data.bin --kernel affine --output out.bin --chunk 128KiB --device sim:h2d=4MB/s"),
                 {.directory = folder.path(), .ignored_signals = {SIGHUP, SIGINT}});
  ASSERT_TRUE(reaches(run, [&] { return run.writes_in(folder.path()); })) << run.wait().err;
  run.send(SIGHUP);
  run.send(SIGINT);
  EXPECT_EQ(run.wait().exit_code, 0);
  EXPECT_EQ(folder.read("out.bin"), contents);
}

TEST(WaitingForInterruption, DoesNotHoldUpADriversTrial) {
  if (!has_device("opencl:0")) GTEST_SKIP() << "no OpenCL device";
  Sandbox const folder;
  folder.write("data.bin", "some bytes");
  // A watching thread caught while starting leaves its locks to the fork, which then hangs: one run of twenty.
  for (int run = 0; run < 30; ++run) {
    auto const outcome =
        run_cli(words_of("run data.bin --kernel histogram --device opencl:0 --json"), {.directory = folder.path()});
    ASSERT_EQ(outcome.exit_code, 0) << "run " << run << ": " << outcome.err;
  }
}

TEST(InterruptionByTheTerminal, SentTwiceIsAsGoodAsOnce) {
  Sandbox const folder;
  folder.write_hole("data.bin", std::size_t{1} << 30);
  CliProcess run(words_of("run data.bin --kernel affine --output out.bin --chunk 1MiB --device sim:h2d=20MB/s"),
                 {.directory = folder.path()});
  ASSERT_TRUE(reaches(run, [&] { return run.writes_in(folder.path()); })) << run.wait().err;
  run.send(SIGINT);
  run.send(SIGTERM);
  run.send(SIGINT);
  auto const outcome = run.wait();
  EXPECT_THAT(outcome.exit_code, ::testing::AnyOf(130, 143));
  EXPECT_FALSE(outcome.ended_by_signal);
  EXPECT_EQ(folder.snapshot().size(), 1U);
}

// ---------------------------------------------------------------------------------------------------------------------

/// Killed, a process cannot clean up.
class Killed : public ::testing::Test {
 protected:
  void SetUp() override {
    int const file = ::open(folder_.path().c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (file < 0) GTEST_SKIP() << "the test's file system has no files without names";
    ::close(file);
  }

  Sandbox folder_;
};

TEST_F(Killed, DuringARunLeavesNothingBehind) {
  folder_.write_hole("data.bin", std::size_t{1} << 30);
  for (bool const older : {false, true}) {
    if (older) folder_.write("out.bin", "the older output");
    auto const before = folder_.snapshot();
    CliProcess run(
        words_of("run data.bin --kernel affine --output out.bin --chunk 1MiB --device sim:h2d=20MB/s --direct off"),
        {.directory = folder_.path()});
    ASSERT_TRUE(reaches(run, [&] { return run.bytes_read() >= 4 << 20 && run.writes_in(folder_.path()); }))
        << run.wait().err;
    run.send(SIGKILL);
    EXPECT_TRUE(run.wait().ended_by_signal);
    EXPECT_TRUE(folder_.snapshot() == before) << (older ? "with" : "without") << " an older output";
  }
}

/// From the first byte read until after the end, the moments are where the runs happen to be.
TEST_F(Killed, LeavesAWholeOutputOrNone) {
  auto const contents = mixed_bytes(512 << 10, 18), old = mixed_bytes(1 << 10, 19);
  folder_.write("data.bin", contents);
  auto const command = words_of("run data.bin --kernel affine --output out.bin --chunk 16KiB --device sim");
  std::size_t before_the_end = 0, whole = 0;
  for (int attempt = 0; attempt < 48; ++attempt) {
    bool const replaces = attempt % 2 != 0;
    std::filesystem::remove(folder_ / "out.bin");
    if (replaces) folder_.write("out.bin", old);
    CliProcess run(command, {.directory = folder_.path()});
    static_cast<void>(reaches(run, [&] { return run.writes_in(folder_.path()); }));
    auto const until = run.bytes_read() + contents.size() * static_cast<std::size_t>(attempt) / 32;
    static_cast<void>(reaches(run, [&] { return run.bytes_read() >= until; }));
    if (run.running()) run.send(SIGKILL);
    before_the_end += run.wait().ended_by_signal ? 1 : 0;
    for (auto const& [name, bytes] : folder_.snapshot()) {
      if (name == "data.bin") continue;
      bool const is_new = bytes == contents;
      whole += name == "out.bin" && is_new ? 1 : 0;
      // Replacing takes two steps, between which the new one is beside the old one.
      EXPECT_TRUE(is_new || (name == "out.bin" && replaces && bytes == old)) << name << " in attempt " << attempt;
      if (name != "out.bin") std::filesystem::remove(folder_ / name);
    }
    EXPECT_TRUE(!replaces || std::filesystem::exists(folder_ / "out.bin"));
  }
  EXPECT_GT(before_the_end, 0U);
  EXPECT_GT(whole, 0U);
}

}  // namespace
}  // namespace unimem
