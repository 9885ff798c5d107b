#include "cli/cli_process.hpp"
#include "cli/sample_data.hpp"
#include "cli/sandbox.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <cstdlib>
#include <string>
#include <system_error>

namespace unimem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

/// One thing a user gets wrong, and what is said of it.
struct BadInput {
  char const* command;  ///< words after `unimem`, in a folder filled by `fill`
  int exit_code;        ///< 2: the command line itself; 1: the work
  char const* message;  ///< is part of the reason

  friend void PrintTo(BadInput const& bad, std::ostream* out) { *out << "unimem " << bad.command; }
};

/// The folder every command of the tables runs in.
void fill(Sandbox const& folder) {
  auto const data = bytes_of<float>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  folder.write("data.bin", mixed_bytes(100'000, 1));
  folder.write("odd.bin", std::string(1'001, 'x'));
  folder.write("secret.bin", "not for everybody");
  fs::permissions(folder / "secret.bin", fs::perms::none);
  fs::create_directory(folder / "folder");
  fs::create_symlink("vanished.bin", folder / "link.bin");
  fs::create_symlink("data.bin", folder / "symbolic.bin");
  fs::create_hard_link(folder / "data.bin", folder / "hard.bin");
  ::mkfifo((folder / "pipe").c_str(), 0666);

  folder.write("good.npy", npy("<f4", false, "(10,)", data));
  folder.write("fortran.npy", npy("<f4", true, "(2, 5)", data));
  folder.write("big_endian.npy", npy(">f4", false, "(10,)", data));
  folder.write("complex.npy", npy("<c8", false, "(5,)", data));
  folder.write("text.npy", npy("<U10", false, "(1,)", data));
  folder.write("longer.npy", npy("<f4", false, "(11,)", data));
  folder.write("shorter.npy", npy("<f4", false, "(9,)", data));
  folder.write("huge_shape.npy", npy("<f4", false, "(4294967296, 4294967296)", data));
  folder.write("not_really.npy", "This is a text that somebody renamed to .npy.");
  folder.write("cut.npy", npy("<f4", false, "(10,)", data).substr(0, 40));
  folder.write("empty.npy", "");
  auto future = npy("<f4", false, "(10,)", data);
  future[6] = '\x09';
  folder.write("future.npy", future);
  folder.write("model.safetensors", safetensors(R"({"half":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},)"
                                                R"("w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                                                "halfdata"));
  folder.write("lying.safetensors", safetensors(R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})", "data"));

  folder.write("log.csv", "Thread,Time,Action,Pointer,Size,Stream\n1,t,allocate,0x10,64,0\n1,t,free,0x10,64,0\n");
  folder.write("wrong.csv", "Thread,Time,Action,Pointer,Size,Stream\n1,t,allocate,0x10,64,0\n1,t,free,0x20,64,0\n");

  folder.write("broken.cl", "UNIMEM_KERNEL twice(UNIMEM_CONST_BUFFER(float, in) { this is not a program }\n");
  folder.write("twice.cl",
               "UNIMEM_KERNEL twice(UNIMEM_CONST_BUFFER(float, in), UNIMEM_BUFFER(float, out), ulong count) {\n"
               "  if (UNIMEM_ITEM_X < count) {\n"
               "    UNIMEM_DATA(float, out)[UNIMEM_ITEM_X] = 2 * UNIMEM_DATA(float, in)[UNIMEM_ITEM_X];\n"
               "  }\n"
               "}\n");
  folder.write("null.cl", std::string("UNIMEM_KERNEL\0", 14));
  folder.write("empty.cl", "");

  fs::create_directory(folder / "locked");
  folder.write("locked/old.bin", "old");
  fs::permissions(folder / "locked",
                  fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read | fs::perms::others_exec);
  folder.write("protected.bin", "keep me");
  fs::permissions(folder / "protected.bin", fs::perms::owner_read | fs::perms::others_read);
}

bool is_one_line(std::string const& text) {
  return text.find('\n') == text.size() - 1;
}

/// Runs the command, and asserts what holds for every bad input: its exit code, one line that gives the reason, nothing
/// on standard output, and a folder in which nothing appeared, vanished or changed.
void expect_refused(BadInput const& bad, Surroundings surroundings, bool allows_log = false) {
  Sandbox const folder;
  fill(folder);
  auto const before = folder.snapshot();
  surroundings.directory = folder.path();

  auto const outcome = run_cli(words_of(bad.command), surroundings);
  EXPECT_EQ(outcome.exit_code, bad.exit_code) << outcome.err;
  EXPECT_FALSE(outcome.ended_by_signal);
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, StartsWith("unimem: "));
  EXPECT_THAT(outcome.err, HasSubstr(bad.message));
  EXPECT_TRUE(allows_log || is_one_line(outcome.err)) << outcome.err;
  EXPECT_EQ(folder.snapshot(), before);
}

// ---------------------------------------------------------------------------------------------------------------------

class WrongCommandLine : public ::testing::TestWithParam<BadInput> {};

TEST_P(WrongCommandLine, ExitsWith2AndNamesTheValue) {
  expect_refused(GetParam(), {});
}

// clang-format off
INSTANTIATE_TEST_SUITE_P(Commands, WrongCommandLine, ::testing::Values(
    BadInput{"",                                                          2, "a command is missing: there are devices, run, replay, bench, ps, version"},
    BadInput{"frobnicate",                                                2, "no command 'frobnicate': there are devices, run, replay, bench, ps, version"},
    BadInput{"Run data.bin --kernel histogram",                           2, "no command 'Run'"},
    BadInput{"--frobnicate",                                              2, "unknown option '--frobnicate'"},
    BadInput{"--json",                                                    2, "--json stands behind a command, or with --version"},
    BadInput{"--json devices",                                            2, "--json stands behind a command, or with --version"},
    BadInput{"devices --frobnicate",                                      2, "unknown option '--frobnicate'"},
    BadInput{"devices surplus",                                           2, "unexpected argument 'surplus'"},
    BadInput{"version surplus",                                           2, "unexpected argument 'surplus'"},
    BadInput{"ps surplus",                                                2, "unexpected argument 'surplus'"},
    BadInput{"ps --frobnicate",                                           2, "unknown option '--frobnicate'"},
    BadInput{"run data.bin --kernel histogram --frobnicate",              2, "unknown option '--frobnicate'"},
    BadInput{"run data.bin --kernel histogram --direct maybe",            2, "invalid --direct 'maybe': must be auto, on or off"},
    BadInput{"run data.bin --kernel histogram -j",                        2, "unknown option '-j'"},
    BadInput{"run data.bin --kern histogram",                             2, "unknown option '--kern'"},
    BadInput{"run --frobnicate",                                          2, "unknown option '--frobnicate'"},
    BadInput{"run data.bin --kernel histogram --checksum md5",            2, "invalid --checksum 'md5': must be xxh3 or crc32c"},
    BadInput{"run data.bin --kernel histogram --retries -1",              2, "invalid --retries '-1': must be a whole number from 0 to 1000"},
    BadInput{"run data.bin --kernel histogram --manifest m.json --manifest n.json", 2, "--manifest is given more than once"},
    BadInput{"run data.bin --kernel histogram --reduce u64*4",            2, "--reduce u64*4 belongs to --source"},
    BadInput{"run data.bin --source k.cl --entry k --reduce u64",         2, "invalid --reduce 'u64': must be such as u64*256"},
    BadInput{"run data.bin --source k.cl --entry k --reduce u64*0",       2, "invalid --reduce 'u64*0'"},
    BadInput{"run data.bin --source k.cl --entry k --reduce u65*4",       2, "invalid --reduce 'u65*4'"},
    BadInput{"run data.bin --source k.cl --entry k --reduce u64*4 --output o", 2, "--output o and --reduce exclude each other: a reduction writes no elements"},
    BadInput{"run data.bin --kernel histogram --manifest symbolic.bin",   2, "invalid --manifest 'symbolic.bin': must be another file than the input"},
    BadInput{"run data.bin --kernel affine --output o --manifest ./o",    2, "invalid --manifest './o': must be another file than the output"},
    BadInput{"run pipe --kernel histogram --direct on",                   1, "'pipe': there is a pipe, which no disk is behind"},
    BadInput{"run data.bin --kernel histogram --resume",                  2, "--resume needs --output"},
    BadInput{"run data.bin --kernel affine --output -",                   2, "invalid --output '-': must be a file, not standard output; ./- is"},
    BadInput{"run data.bin --kernel histogram --manifest -",              2, "invalid --manifest '-': must be a file, not standard output"},
    BadInput{"run data.bin good.npy --kernel affine --output out.bin --resume", 2, "--resume goes on with one FILE, not with several"},
    BadInput{"run data.bin out.bin --kernel affine --output data.bin",    2, "must be another file than the input"}));

INSTANTIATE_TEST_SUITE_P(OutputOverInput, WrongCommandLine, ::testing::Values(
    BadInput{"run data.bin --kernel affine --output data.bin",            2, "invalid --output 'data.bin': must be another file than the input"},
    BadInput{"run data.bin --kernel affine --output ./folder/../data.bin", 2, "invalid --output './folder/../data.bin'"},
    BadInput{"run data.bin --kernel affine --output symbolic.bin",        2, "invalid --output 'symbolic.bin'"},
    BadInput{"run symbolic.bin --kernel affine --output data.bin",        2, "invalid --output 'data.bin'"},
    BadInput{"run data.bin --kernel affine --output hard.bin",            2, "invalid --output 'hard.bin'"},
    BadInput{"run model.safetensors --kernel statistics",                 2, "invalid FILE 'model.safetensors': must be FILE#NAME, one of its arrays, or come with --dtype u8 for its raw bytes"},
    BadInput{"run data.bin lying.safetensors --kernel histogram",         2, "invalid FILE 'lying.safetensors': must be FILE#NAME"},
    BadInput{"run model.safetensors#w --kernel affine --output model.safetensors", 2, "invalid --output 'model.safetensors': must be another file than the input"},
    BadInput{"run data.bin --source twice.cl --entry twice --output data.bin --device nonsense", 2, "another file than the input"},
    BadInput{"run data.bin --source twice.cl --entry twice --output ./twice.cl", 2, "invalid --output './twice.cl': must be another file than the kernel's source"},
    BadInput{"run data.bin --source twice.cl --entry twice --output o --manifest twice.cl", 2, "invalid --manifest 'twice.cl': must be another file than the kernel's source"}));

INSTANTIATE_TEST_SUITE_P(Kernels, WrongCommandLine, ::testing::Values(
    BadInput{"run",                                                       2, "run needs a FILE"},
    BadInput{"run --kernel histogram",                                    2, "run needs a FILE"},
    BadInput{"run data.bin",                                              2, "needs --kernel (histogram, statistics, affine) or --source"},
    BadInput{"run data.bin --kernel median",                              2, "no kernel 'median': there are histogram, statistics, affine"},
    BadInput{"run data.bin --kernel Histogram",                           2, "no kernel 'Histogram'"},
    BadInput{"run data.bin --kernel=",                                    2, "--kernel has no value"},
    BadInput{"run data.bin --kernel",                                     2, "--kernel"},
    BadInput{"run data.bin --kernel histogram --kernel statistics",       2, "--kernel is given more than once: 'histogram', 'statistics'"},
    BadInput{"run data.bin --kernel histogram --source twice.cl --entry twice", 2, "--kernel histogram and --source twice.cl exclude each other"},
    BadInput{"run data.bin --source twice.cl",                            2, "--source twice.cl needs --entry"},
    BadInput{"run data.bin --entry twice",                                2, "--source"},
    BadInput{"run data.bin --kernel histogram --entry twice",             2, "--entry twice belongs to --source"},
    BadInput{"run data.bin --kernel affine --scale 2",                    2, "--kernel affine needs --output"},
    BadInput{"run data.bin --kernel histogram --output out.bin",          2, "--output out.bin belongs to affine and --source"},
    BadInput{"run data.bin --kernel statistics --output out.bin",         2, "--output out.bin belongs to affine and --source"},
    BadInput{"run data.bin --kernel histogram --scale 2",                 2, "--scale 2 belongs to --kernel affine"},
    BadInput{"run data.bin --source twice.cl --entry twice --offset 1",   2, "--offset 1 belongs to --kernel affine"}));

INSTANTIATE_TEST_SUITE_P(Spellings, WrongCommandLine, ::testing::Values(
    BadInput{"run data.bin --kernel statistics --dtype f16",              2, "invalid --dtype 'f16': must be one of u8, i8"},
    BadInput{"run data.bin --kernel statistics --dtype F32",              2, "invalid --dtype 'F32'"},
    BadInput{"run data.bin --kernel statistics --dtype float",            2, "invalid --dtype 'float'"},
    BadInput{"run data.bin --kernel histogram --chunk 0",                 2, "invalid --chunk '0': must be greater than zero"},
    BadInput{"run data.bin --kernel histogram --chunk 0MiB",              2, "invalid --chunk '0MiB': must be greater than zero"},
    BadInput{"run data.bin --kernel histogram --chunk -1",                2, "invalid --chunk '-1'"},
    BadInput{"run data.bin --kernel histogram --chunk +1",                2, "invalid --chunk '+1'"},
    BadInput{"run data.bin --kernel histogram --chunk 12XB",              2, "invalid --chunk '12XB': must be a size such as 4096, 64KiB"},
    BadInput{"run data.bin --kernel histogram --chunk 1.5",               2, "invalid --chunk '1.5'"},
    BadInput{"run data.bin --kernel histogram --chunk 64mib",             2, "invalid --chunk '64mib'"},
    BadInput{"run data.bin --kernel histogram --chunk 0x1000",            2, "invalid --chunk '0x1000'"},
    BadInput{"run data.bin --kernel histogram --chunk nan",               2, "invalid --chunk 'nan'"},
    BadInput{"run data.bin --kernel histogram --chunk 99999999999GiB",    2, "invalid --chunk '99999999999GiB': must be below"},
    BadInput{"run data.bin --kernel histogram --chunk 10000PiB",          2, "invalid --chunk '10000PiB': must be below"},
    BadInput{"run data.bin --kernel histogram --chunk= --json",           2, "--chunk has no value"},
    BadInput{"run data.bin --kernel histogram --memory-limit 0",          2, "invalid --memory-limit '0': must be greater than zero"},
    BadInput{"run data.bin --kernel histogram --memory-limit -1GiB",      2, "invalid --memory-limit '-1GiB'"},
    BadInput{"run data.bin --kernel histogram --memory-limit plenty",     2, "invalid --memory-limit 'plenty'"},
    BadInput{"run data.bin --kernel histogram --memory-limit 18446744073709551616", 2, "'18446744073709551616': must be below"},
    BadInput{"run data.bin --kernel histogram --buffers 0",               2, "invalid --buffers '0': must be a whole number from 1"},
    BadInput{"run data.bin --kernel histogram --buffers -3",              2, "invalid --buffers '-3'"},
    BadInput{"run data.bin --kernel histogram --buffers 2.5",             2, "invalid --buffers '2.5'"},
    BadInput{"run data.bin --kernel histogram --buffers 1000000",         2, "invalid --buffers '1000000'"},
    BadInput{"run data.bin --kernel affine --output o --scale inf",       2, "invalid --scale 'inf': must be a finite number"},
    BadInput{"run data.bin --kernel affine --output o --scale 1e999",     2, "invalid --scale '1e999'"},
    BadInput{"run data.bin --kernel affine --output o --scale two",       2, "invalid --scale 'two'"},
    BadInput{"run data.bin --kernel affine --output o --offset nan",      2, "invalid --offset 'nan'"},
    BadInput{"run data.bin --kernel affine --output o --offset 1,5",      2, "invalid --offset '1,5'"},
    BadInput{"run data.bin --kernel statistics --dtype f32 --chunk 1002", 2, "invalid --chunk '1002': must be a multiple of the 4 bytes of f32"},
    BadInput{"run data.bin --kernel histogram --device sim:memory=12XB",  2, "'12XB'"},
    BadInput{"run data.bin --kernel histogram --device sim:memory=0",     2, "invalid memory '0'"},
    BadInput{"run data.bin --kernel histogram --device sim:colour=red",   2, "'colour'"},
    BadInput{"run data.bin --kernel histogram --device sim:latency=1km",  2, "'1km'"},
    BadInput{"run data.bin --kernel histogram --device cpu,cores=4",      2, "'cores=4'"}));

INSTANTIATE_TEST_SUITE_P(Replays, WrongCommandLine, ::testing::Values(
    BadInput{"replay",                                                    2, "replay needs a TRACE.csv"},
    BadInput{"replay --json",                                             2, "replay needs a TRACE.csv"},
    BadInput{"replay log.csv surplus",                                    2, "unexpected argument 'surplus'"},
    BadInput{"replay log.csv --frobnicate",                               2, "unknown option '--frobnicate'"},
    BadInput{"replay log.csv --kernel histogram",                         2, "unknown option '--kernel'"},
    BadInput{"replay log.csv --capacity",                                 2, "--capacity"},
    BadInput{"replay log.csv --capacity 0",                               2, "invalid --capacity '0': must be greater than zero"},
    BadInput{"replay log.csv --capacity -1GiB",                           2, "invalid --capacity '-1GiB'"},
    BadInput{"replay log.csv --capacity much",                            2, "invalid --capacity 'much': must be a size such as 4096, 64KiB"},
    BadInput{"replay log.csv --capacity 10000PiB",                        2, "invalid --capacity '10000PiB': must be below"},
    BadInput{"replay log.csv --capacity 1GiB --capacity 2GiB",            2, "--capacity is given more than once: '1GiB', '2GiB'"},
    BadInput{"replay log.csv --device=",                                  2, "--device has no value"},
    BadInput{"replay log.csv --device sim:memory=0",                      2, "invalid memory '0'"},
    BadInput{"bench surplus",                                             2, "unexpected argument 'surplus'"},
    BadInput{"bench --frobnicate",                                        2, "unknown option '--frobnicate'"},
    BadInput{"bench --only",                                              2, "--only"},
    BadInput{"bench --only=",                                             2, "--only has no value"},
    BadInput{"bench --only speed",                                        2, "no benchmark 'speed': there are allocation, transfer, coherence, launch, stream, eviction"},
    BadInput{"bench --only launch,",                                      2, "no benchmark ''"},
    BadInput{"bench --only Launch",                                       2, "no benchmark 'Launch'"},
    BadInput{"bench --only launch --only stream",                         2, "--only is given more than once: 'launch', 'stream'"},
    BadInput{"bench --device=",                                           2, "--device has no value"},
    BadInput{"bench --device sim:memory=0 --json",                        2, "invalid memory '0'"}));
// clang-format on

// ---------------------------------------------------------------------------------------------------------------------

class FailedWork : public ::testing::TestWithParam<BadInput> {};

TEST_P(FailedWork, ExitsWith1AndNamesTheReason) {
  // As an ordinary user: to root no file is unreadable and no folder locked.
  expect_refused(GetParam(), {.ordinary_user = true});
}

// clang-format off
INSTANTIATE_TEST_SUITE_P(Inputs, FailedWork, ::testing::Values(
    BadInput{"run missing.bin --kernel histogram",                        1, "missing.bin: cannot open for reading: No such file or directory"},
    BadInput{"run nowhere/data.bin --kernel histogram",                   1, "nowhere/data.bin: cannot open for reading: No such file or directory"},
    BadInput{"run link.bin --kernel histogram",                           1, "link.bin: cannot open for reading: No such file or directory"},
    BadInput{"run secret.bin --kernel histogram",                         1, "secret.bin: cannot open for reading: Permission denied"},
    BadInput{"run folder --kernel histogram",                             1, "folder: cannot read: Is a directory"},
    BadInput{"run /dev/zero --kernel histogram",                          1, "/dev/zero: not a regular file but a character device, as terminals are: copy what it gives to a file first (cat > FILE)\n"},
    BadInput{"run pipe --kernel affine --output out.npy --device sim",     2, "invalid --output 'out.npy': must be no .npy"},
    BadInput{"run pipe --kernel affine --output out.bin --resume",         2, "invalid --resume 'pipe': must be one file"},
    BadInput{"run data.bin good.npy --kernel statistics --dtype f64",      1, "it holds f32, not f64"},
    BadInput{"run data.bin --kernel histogram --verify missing.json",      1, "missing.json: cannot open for reading"},
    BadInput{"run data.bin --kernel histogram --verify log.csv",           1, "log.csv: no manifest that can be used: no JSON at byte 1"},
    BadInput{"run folder/. --kernel statistics --json",                   1, "folder/.: cannot read: Is a directory"},
    BadInput{"run /proc/cpuinfo --kernel histogram",                      1, "/proc/cpuinfo: its size is not known: the system says 0 bytes, and there are more"},
    BadInput{"run /proc/self/status --kernel statistics --json --device sim", 1, "/proc/self/status: its size is not known"},
    BadInput{"run /proc/version --kernel affine --output out.bin",        1, "/proc/version: its size is not known"},
    BadInput{"run /proc/self/fd --kernel histogram",                      1, "/proc/self/fd: cannot read: Is a directory"},
    BadInput{"run odd.bin --kernel statistics --dtype u16",               1, "1001"},
    BadInput{"run odd.bin --kernel statistics --dtype f32",               1, "odd.bin"},
    BadInput{"run odd.bin --kernel affine --dtype f64 --output out.bin",  1, "f64"},
    BadInput{"run odd.bin --kernel statistics --dtype f32 --device sim",  1, "1001"}));

INSTANTIATE_TEST_SUITE_P(NumPyFiles, FailedWork, ::testing::Values(
    BadInput{"run fortran.npy --kernel statistics",                       1, "fortran.npy: unsupported .npy: Fortran order"},
    BadInput{"run big_endian.npy --kernel statistics",                    1, "big_endian.npy: unsupported .npy: big-endian dtype '>f4'"},
    BadInput{"run complex.npy --kernel statistics",                       1, "complex.npy: unsupported .npy: dtype '<c8'"},
    BadInput{"run text.npy --kernel histogram",                           1, "text.npy: unsupported .npy: dtype '<U10'"},
    BadInput{"run longer.npy --kernel statistics",                        1, "longer.npy: malformed .npy"},
    BadInput{"run shorter.npy --kernel statistics",                       1, "shorter.npy: malformed .npy"},
    BadInput{"run huge_shape.npy --kernel statistics",                    1, "huge_shape.npy: malformed .npy"},
    BadInput{"run not_really.npy --kernel statistics",                    1, "not_really.npy: malformed .npy"},
    BadInput{"run cut.npy --kernel statistics",                           1, "cut.npy: malformed .npy"},
    BadInput{"run empty.npy --kernel histogram",                          1, "empty.npy: malformed .npy"},
    BadInput{"run future.npy --kernel statistics",                        1, "future.npy: unsupported .npy: format version 9.0"},
    BadInput{"run good.npy --kernel statistics --dtype f64",              1, "good.npy"},
    BadInput{"run good.npy --kernel statistics --chunk 1002",             1, "1002"},
    BadInput{"run fortran.npy --kernel affine --output out.npy",          1, "Fortran order"}));

INSTANTIATE_TEST_SUITE_P(ArraysOfFiles, FailedWork, ::testing::Values(
    BadInput{"run model.safetensors#v --kernel statistics",               1, "no tensor 'v': there are 'half', 'w'; in model.safetensors"},
    BadInput{"run model.safetensors# --kernel statistics",                1, "no tensor ''"},
    BadInput{"run model.safetensors#half --kernel statistics",            1, "model.safetensors: tensor 'half' is of float16, of which a stream knows nothing"},
    BadInput{"run model.safetensors#w --kernel statistics --dtype f64",   1, "model.safetensors#w: it holds f32, not f64"},
    BadInput{"run lying.safetensors#w --kernel statistics --json",        1, "lying.safetensors: malformed .safetensors header: its tensors take 12 bytes, and 4 follow it"},
    BadInput{"run missing.safetensors#w --kernel statistics",             1, "missing.safetensors: cannot open for reading: No such file or directory"},
    BadInput{"run data.bin#w --kernel statistics",                        1, "data.bin#w: cannot open for reading: No such file or directory"},
    BadInput{"run good.npy#w --kernel statistics",                        1, "no tensor 'w': there are 'good'; in good.npy"}));

INSTANTIATE_TEST_SUITE_P(Logs, FailedWork, ::testing::Values(
    BadInput{"replay missing.csv",                                        1, "missing.csv: cannot open for reading: No such file or directory"},
    BadInput{"replay secret.bin --json",                                  1, "secret.bin: cannot open for reading: Permission denied"},
    BadInput{"replay folder",                                             1, "folder: cannot read: Is a directory"},
    BadInput{"replay pipe",                                               1, "pipe: not a regular file"},
    BadInput{"replay empty.cl --json",                                    1, "empty.cl: is empty: an allocation log begins with the names of its columns"},
    BadInput{"replay good.npy",                                           1, "good.npy: line 1: no column Thread"},
    BadInput{"replay data.bin",                                           1, "data.bin: line "},
    BadInput{"replay wrong.csv --json",                                   1, "wrong.csv: line 3: free of 0x20, which is not live"},
    BadInput{"replay wrong.csv --device sim --capacity 1",                1, "wrong.csv: line 3: "},
    BadInput{"replay log.csv --device tpu",                               1, "no device 'tpu': there are cpu"},
    BadInput{"replay log.csv --device sim:7 --json",                      1, "no device 'sim:7'"},
    BadInput{"bench --quick --device tpu",                                1, "no device 'tpu': there are cpu"},
    BadInput{"bench --quick --device sim:memory=16KiB --json",            1, "out of memory on sim:0"}));

INSTANTIATE_TEST_SUITE_P(DevicesAndMemory, FailedWork, ::testing::Values(
    BadInput{"run data.bin --kernel histogram --device tpu",              1, "no device 'tpu': there are cpu"},
    BadInput{"run data.bin --kernel histogram --device CPU",              1, "no device 'CPU'"},
    BadInput{"run data.bin --kernel histogram --device cpu:1",            1, "no device 'cpu:1'"},
    BadInput{"run data.bin --kernel histogram --device opencl:99",        1, "no device 'opencl:99'"},
    BadInput{"run data.bin --kernel histogram --device opencl:-1",        1, "no device 'opencl:-1'"},
    BadInput{"run data.bin --kernel histogram --device metal:0",          1, "metal is unavailable: Metal needs macOS"},
    BadInput{"run data.bin --kernel histogram --device sim:7",            1, "no device 'sim:7'"},
    BadInput{"run data.bin --kernel histogram --device sim --chunk 64KiB --memory-limit 32KiB", 1, "limit"},
    BadInput{"run data.bin --kernel histogram --device sim --memory-limit 8", 1, "the limit is below one chunk: 1 B and "},
    BadInput{"run data.bin --kernel affine --output out.bin --device sim --chunk 64KiB --memory-limit 32KiB", 1, "limit"},
    BadInput{"run data.bin --kernel histogram --device sim:memory=32KiB --chunk 64KiB", 1, "out of memory"},
    BadInput{"run data.bin --kernel histogram --device sim:fail_upload=1", 1, "sim"},
    BadInput{"run data.bin --kernel affine --output out.bin --device sim:fail_download=1", 1, "sim"},
    BadInput{"run data.bin --kernel affine --output out.bin --device sim:fail_run=2 --chunk 16KiB", 1, "sim"},
    BadInput{"run data.bin --kernel affine --output out.bin --device sim:lose_after=7 --chunk 16KiB", 1, "sim"}));

INSTANTIATE_TEST_SUITE_P(Outputs, FailedWork, ::testing::Values(
    BadInput{"run data.bin --kernel affine --output nowhere/out.bin",     1, "nowhere/out.bin: cannot create a file beside it: No such file or directory"},
    BadInput{"run data.bin --kernel affine --output locked/out.bin",      1, "locked/out.bin: cannot create a file beside it: Permission denied"},
    BadInput{"run data.bin --kernel affine --output protected.bin",       1, "protected.bin: cannot write: Permission denied"},
    BadInput{"run data.bin --kernel affine --output folder",              1, "folder: cannot write: Is a directory"},
    BadInput{"run data.bin --kernel affine --output pipe",                1, "pipe: cannot write: it exists and is not a regular file"},
    BadInput{"run data.bin --kernel affine --output /dev/full",           1, "/dev/full: cannot write: No space left on device"},
    BadInput{"run missing.bin --kernel affine --output missing.bin",      1, "missing.bin: cannot open for reading: No such file or directory"}));

INSTANTIATE_TEST_SUITE_P(Sources, FailedWork, ::testing::Values(
    BadInput{"run data.bin --source missing.cl --entry twice",            1, "missing.cl: cannot open the kernel source: No such file or directory"},
    BadInput{"run data.bin --source folder --entry twice",                1, "folder: cannot read the kernel source: Is a directory"},
    BadInput{"run data.bin --source secret.bin --entry twice",            1, "secret.bin: cannot open the kernel source: Permission denied"},
    BadInput{"run data.bin --source null.cl --entry twice",               1, "null.cl: holds a null byte"},
    BadInput{"run data.bin --source empty.cl --entry twice",              1, "empty.cl"},
    BadInput{"run data.bin --source /dev/zero --entry twice",             1, "/dev/zero: is larger than the 16 MiB"},
    BadInput{"run data.bin --source twice.cl --entry twice --device cpu --dtype f32", 1, "kernel 'twice'"},
    BadInput{"run data.bin --source twice.cl --entry twice --device sim --dtype f32", 1, "kernel 'twice'"}));
// clang-format on

// ---------------------------------------------------------------------------------------------------------------------

class FailedOpenCl : public ::testing::TestWithParam<BadInput> {
 protected:
  void SetUp() override {
    if (!has_device("opencl:0")) GTEST_SKIP() << "no OpenCL device";
  }
};

TEST_P(FailedOpenCl, ExitsWithItsCodeAndNamesTheReason) {
  expect_refused(GetParam(), {}, true);
}

// clang-format off
INSTANTIATE_TEST_SUITE_P(Sources, FailedOpenCl, ::testing::Values(
    BadInput{"run data.bin --source broken.cl --entry twice --device opencl:0 --dtype f32", 1, "kernel 'twice'"},
    BadInput{"run data.bin --source broken.cl --entry twice --device opencl:0 --dtype f32 --output out.bin", 1, "error"},
    BadInput{"run data.bin --source twice.cl --entry thrice --device opencl:0 --dtype f32 --output out.bin", 1, "kernel 'thrice'"},
    BadInput{"run data.bin --kernel histogram --device opencl:0,zero_copy=maybe", 2, "maybe"},
    BadInput{"run data.bin --kernel histogram --device opencl:0 --chunk 64KiB --memory-limit 32KiB", 1, "limit"}));
// clang-format on

TEST(BadInput, ACompilersLogFollowsTheReason) {
  if (!has_device("opencl:0")) GTEST_SKIP() << "no OpenCL device";
  Sandbox const folder;
  fill(folder);
  auto const outcome = run_cli(words_of("run data.bin --source broken.cl --entry twice --device opencl:0 --dtype f32"),
                               {.directory = folder.path()});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, StartsWith("unimem: kernel 'twice': "));
  EXPECT_FALSE(is_one_line(outcome.err));
}

TEST(BadInput, ARefusedThreadIsNamed) {
  Sandbox const folder;
  fill(folder);
  // LeakSanitizer would need a thread of its own.
  auto const* const given = std::getenv("ASAN_OPTIONS");
  auto const options = std::string(given == nullptr ? "" : given) + ":detect_leaks=0";
  for (std::string const device : {"cpu", "sim"}) {
    auto const outcome = run_cli(words_of("run data.bin --kernel histogram --device " + device),
                                 {.directory = folder.path(),
                                  .environment = {{"ASAN_OPTIONS", options}},
                                  .ordinary_user = true,
                                  .no_threads = true});
    EXPECT_EQ(outcome.exit_code, 1) << device;
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_THAT(outcome.err, StartsWith("unimem: the system: starting a thread for signals (limits: `ulimit -u`"))
        << device;
    EXPECT_TRUE(is_one_line(outcome.err)) << outcome.err;
  }
}

TEST(BadInput, AFileShorterThanItsSizeIsRefused) {
  // Of what it makes up while it is read, this part of the system says that it is a page.
  std::string const file = "/sys/devices/system/cpu/online";
  std::error_code none;
  if (fs::file_size(file, none) != 4096 || none) GTEST_SKIP() << "there is no " << file;
  for (std::string const device : {"cpu", "sim"}) {
    auto const outcome = run_cli({"run", file, "--kernel", "histogram", "--device", device});
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_THAT(outcome.err, StartsWith("unimem: " + file + ": ")) << device;
    EXPECT_TRUE(is_one_line(outcome.err)) << outcome.err;
  }
}

TEST(BadInput, AReasonStaysOnOneLine) {
  auto const outcome = run_cli({"run", "first line\nsecond\x1b[31m", "--kernel", "histogram"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_TRUE(is_one_line(outcome.err)) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("first line\\nsecond\\x1b[31m"));
}

TEST(BadInput, AMissingDefaultDeviceIsNamed) {
  Sandbox const folder;
  folder.write("data.bin", "data");
  auto const outcome = run_cli(words_of("run data.bin --kernel histogram"),
                               {.directory = folder.path(), .environment = {{"UNIMEM_DEVICE", "abacus"}}});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, HasSubstr("no device 'abacus'"));
  EXPECT_TRUE(is_one_line(outcome.err)) << outcome.err;
}

}  // namespace
}  // namespace unimem
