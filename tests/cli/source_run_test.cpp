#include "cli/cli_process.hpp"
#include "cli/sample_data.hpp"
#include "cli/sandbox.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <array>

// Kernels of the user's own.

namespace unimem {
namespace {

using Json = nlohmann::ordered_json;

class SourceRun : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_device("opencl:0")) GTEST_SKIP() << "no OpenCL device";
    folder_.write(
        "polynomial.cl",
        "UNIMEM_FUNCTION float horner(float x) { return (2 * x - 3) * x + 0.5f; }\n"
        "UNIMEM_KERNEL polynomial(UNIMEM_CONST_BUFFER(float, in), UNIMEM_BUFFER(float, out), unimem_u64 count) {\n"
        "  if (UNIMEM_ITEM_X >= count) return;\n"
        "  UNIMEM_DATA(float, out)[UNIMEM_ITEM_X] = horner(UNIMEM_DATA(float, in)[UNIMEM_ITEM_X]);\n"
        "}\n");
    for (std::size_t i = 0; i < numbers_.size(); ++i) numbers_[i] = static_cast<float>(i % 1'000) / 8;
    folder_.write("data.bin", bytes_of(numbers_));
  }

  /// What the kernel makes of the numbers: exact in single precision, so that no rounding can differ.
  [[nodiscard]] std::string expected() const {
    auto mapped = numbers_;
    for (auto& x : mapped) x = (2 * x - 3) * x + 0.5F;
    return bytes_of(mapped);
  }

  Sandbox folder_;
  std::vector<float> numbers_ = std::vector<float>(100'003);
};

TEST_F(SourceRun, MapsEveryElementOfEveryChunk) {
  auto const outcome =
      run_cli(words_of("run data.bin --source polynomial.cl --entry polynomial --dtype f32 --output out.bin "
                       "--chunk 64KiB --device opencl:0 --json"),
              {.directory = folder_.path()});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  auto const json = Json::parse(outcome.out);
  EXPECT_EQ(json["kernel"], "polynomial");
  EXPECT_EQ(json["chunks"], 7);
  EXPECT_EQ(json["result"], Json::parse(R"({"elements":100003})"));
  EXPECT_EQ(json["host_to_device_bytes"], numbers_.size() * 4);
  EXPECT_EQ(json["device_to_host_bytes"], numbers_.size() * 4);
  EXPECT_TRUE(folder_.read("out.bin") == expected());
}

TEST_F(SourceRun, ItsOwnWritesAreNoMistakesOfAnybodys) {
  for (auto const* const level : {"1", "2"}) {
    auto const outcome =
        run_cli(words_of("run data.bin --source polynomial.cl --entry polynomial --dtype f32 --output out.bin "
                         "--chunk 64KiB --device opencl:0 --json"),
                {.directory = folder_.path(), .environment = {{"UNIMEM_CHECK", level}}});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "") << level;
    EXPECT_TRUE(folder_.read("out.bin") == expected()) << level;
  }
}

TEST_F(SourceRun, TheHelpsKernelRuns) {
  auto const help = run_cli(words_of("run --help"), {.directory = folder_.path()}).out;
  auto const begin = help.find("  UNIMEM_KERNEL mine(");
  auto const end = help.find("  }\n", begin);
  ASSERT_NE(begin, std::string::npos) << help;
  ASSERT_NE(end, std::string::npos) << help;
  folder_.write("mine.cl", help.substr(begin, end + 4 - begin));
  auto const plain = help.find("__kernel void mine(");
  ASSERT_NE(plain, std::string::npos) << help;
  auto const signature = help.substr(plain, help.find('\n', plain) - plain);
  folder_.write("plain.cl",
                signature + " { if (get_global_id(0) < count) out[get_global_id(0)] = 2 * in[get_global_id(0)]; }\n");
  auto doubled = numbers_;
  for (auto& x : doubled) x *= 2;
  for (auto const* const source : {"mine.cl", "plain.cl"}) {
    auto const outcome = run_cli(words_of(std::string("run data.bin --source ") + source +
                                          " --entry mine --dtype f32 --output out.bin --device opencl:0 --chunk 64KiB"),
                                 {.directory = folder_.path()});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_TRUE(folder_.read("out.bin") == bytes_of(doubled)) << source;
  }
}

TEST_F(SourceRun, WithoutAnOutputComputesAndWritesNothing) {
  auto const before = folder_.snapshot();
  auto const outcome =
      run_cli(words_of("run data.bin --source polynomial.cl --entry polynomial --dtype f32 --device opencl:0 "
                       "--json"),
              {.directory = folder_.path()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out)["result"]["elements"], numbers_.size());
  EXPECT_EQ(folder_.snapshot(), before);
}

TEST_F(SourceRun, WithoutADevicePicksOneThatCompiles) {
  auto const outcome =
      run_cli(words_of("run data.bin --source polynomial.cl --entry polynomial --dtype f32 --output out.bin "
                       "--json"),
              {.directory = folder_.path(), .environment = {{"UNIMEM_DEVICE", ""}}});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(Json::parse(outcome.out)["device"].get<std::string>(), ::testing::StartsWith("opencl:"));
  EXPECT_TRUE(folder_.read("out.bin") == expected());
}

TEST_F(SourceRun, IsReadFromAPipeAsWell) {
  // What a shell makes of `--source <(generate)`.
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  auto const source = folder_.read("polynomial.cl");
  ASSERT_EQ(::write(pipe[1], source.data(), source.size()), static_cast<ssize_t>(source.size()));
  ::close(pipe[1]);
  auto const outcome =
      run_cli(words_of("run data.bin --entry polynomial --dtype f32 --output out.bin --device opencl:0 "
                       "--source /dev/fd/" +
                       std::to_string(pipe[0])),
              {.directory = folder_.path()});
  ::close(pipe[0]);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(folder_.read("out.bin") == expected());
}

TEST_F(SourceRun, AccumulatesOverAllChunks) {
  folder_.write(
      "sum.cl",
      "UNIMEM_KERNEL sum(UNIMEM_CONST_BUFFER(unimem_f32, in), UNIMEM_BUFFER(unimem_f64, result), "
      "unimem_u64 count, unimem_u64 lanes, unimem_u64 first) {\n"
      "  for (unimem_u64 i = UNIMEM_ITEM_X; i < count; i += lanes)\n"
      "    UNIMEM_DATA(unimem_f64, result)[UNIMEM_ITEM_X] += UNIMEM_DATA(const unimem_f32, in)[i] + (first + i);\n"
      "}\n");
  auto const outcome = run_cli(words_of("run data.bin --source sum.cl --entry sum --dtype f32 --reduce f64*37 "
                                        "--chunk 64KiB --device opencl:0 --json"),
                               {.directory = folder_.path()});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  auto const json = Json::parse(outcome.out);
  EXPECT_EQ(json["chunks"], 7);
  EXPECT_EQ(json["result"]["dtype"], "f64");
  ASSERT_EQ(json["result"]["values"].size(), 37U);
  double total = 0, expected = 0;
  for (auto const& value : json["result"]["values"]) total += value.get<double>();
  for (std::size_t i = 0; i < numbers_.size(); ++i)
    expected += static_cast<double>(numbers_[i]) + static_cast<double>(i);
  EXPECT_EQ(total, expected);  // eighths, and far below 2^53
}

}  // namespace
}  // namespace unimem
