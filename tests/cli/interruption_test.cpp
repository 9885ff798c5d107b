#include "cli/cli_process.hpp"
#include "cli/sample_data.hpp"
#include "cli/sandbox.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  /// Starts `command` in the folder, sends the signal once a partial output is there and `bytes` have been read, and
  /// asserts the promise: gone, with the signal's exit code, and without leaving anything behind.
  void expect_stops(std::string const& command, std::size_t bytes) {
    auto const before = folder_.snapshot();
    CliProcess run(words_of(command), {.directory = folder_.path()});
    ASSERT_TRUE(reaches(run, [&] { return run.bytes_read() >= bytes && folder_.snapshot().size() > before.size(); }))
        << run.wait().err;
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

TEST_P(Interruption, BetweenChunksStopsWithinASecondAndRemovesThePartialOutput) {
  folder_.write_hole("data.bin", std::size_t{1} << 30);
  folder_.write("out.bin", "the older output");
  expect_stops("run data.bin --kernel affine --output out.bin --chunk 1MiB --device sim:h2d=20MB/s", 4 << 20);
}

TEST_P(Interruption, OfACopyThatLastsAMinuteStopsWithinASecondToo) {
  constexpr std::size_t one_chunk = 64 << 20;
  folder_.write_hole("data.bin", one_chunk);
  expect_stops("run data.bin --kernel affine --output out.bin --device sim:h2d=1MB/s", one_chunk);
}

TEST_P(Interruption, OfAKernelThatRunsForMinutesStopsWithinASecondToo) {
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

TEST(InterruptionByTheTerminal, IsIgnoredByACommandThatWasStartedToIgnoreIt) {
  Sandbox const folder;
  auto const contents = mixed_bytes(2 << 20, 8);
  folder.write("data.bin", contents);
  CliProcess run(words_of("run data.bin --kernel affine --output out.bin --chunk 128KiB --device sim:h2d=4MB/s"),
                 {.directory = folder.path(), .ignored_signals = {SIGHUP, SIGINT}});
  ASSERT_TRUE(reaches(run, [&] { return folder.snapshot().size() > 1; })) << run.wait().err;
  run.send(SIGHUP);
  run.send(SIGINT);
  EXPECT_EQ(run.wait().exit_code, 0);
  EXPECT_EQ(folder.read("out.bin"), contents);
}

TEST(WaitingForInterruption, NeverHoldsUpTheProcessForkedToLookAtADriver) {
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
  ASSERT_TRUE(reaches(run, [&] { return folder.snapshot().size() > 1; })) << run.wait().err;
  run.send(SIGINT);
  run.send(SIGTERM);
  run.send(SIGINT);
  auto const outcome = run.wait();
  EXPECT_THAT(outcome.exit_code, ::testing::AnyOf(130, 143));
  EXPECT_FALSE(outcome.ended_by_signal);
  EXPECT_EQ(folder.snapshot().size(), 1U);
}

}  // namespace
}  // namespace unimem
