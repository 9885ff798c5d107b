#include "cli/cli_process.hpp"
#include "cli/json_keys.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace unimem {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;

class BenchCommandLine : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam().starts_with("opencl") && !has_device(GetParam())) GTEST_SKIP() << "no OpenCL device";
  }
  [[nodiscard]] static Json json_of(std::string const& options) {
    auto const outcome = run_cli(words_of("bench --quick --json --device " + GetParam() + options));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, IsEmpty());
    EXPECT_EQ(outcome.out.find('\n'), outcome.out.size() - 1) << "one object on one line";
    return Json::parse(outcome.out);
  }
};

/// The benchmarks of a list, in its order, each once where it stands several times in a row.
std::vector<std::string> benchmarks_in(Json const& list) {
  std::vector<std::string> names;
  for (auto const& one : list) names.push_back(one["benchmark"]);
  auto const twice = std::ranges::unique(names);
  names.erase(twice.begin(), twice.end());
  return names;
}

TEST_P(BenchCommandLine, TellsEveryFigureWithItsUnit) {
  auto const json = json_of("");
  EXPECT_THAT(keys_of(json), ElementsAre("device", "name", "driver", "quick", "figures", "left_out"));
  EXPECT_THAT(json["device"].get<std::string>(), HasSubstr(GetParam().substr(0, GetParam().find(':'))));
  EXPECT_EQ(json["quick"], true);
  auto const measured = benchmarks_in(json["figures"]), left_out = benchmarks_in(json["left_out"]);
  if (GetParam() == "cpu") {
    EXPECT_THAT(measured, ElementsAre("allocation", "transfer", "coherence", "launch", "stream"));
    EXPECT_THAT(left_out, ElementsAre("eviction"));
    EXPECT_THAT(json["left_out"][0]["reason"].get<std::string>(), HasSubstr("the device's memory is the host's"));
  } else {
    EXPECT_THAT(measured, ElementsAre("allocation", "transfer", "coherence", "launch", "stream", "eviction"));
    EXPECT_THAT(left_out, IsEmpty());
  }
  for (auto const& figure : json["figures"]) {
    EXPECT_THAT(keys_of(figure),
                ElementsAre("benchmark", "name", "bytes", "median", "least", "most", "unit", "measurements"));
    EXPECT_THAT(figure["unit"].get<std::string>(), AnyOf("ns", "us", "GB/s"));
    EXPECT_EQ(figure["measurements"], 5);
    EXPECT_GT(figure["least"].get<double>(), 0) << figure;
    EXPECT_LE(figure["least"].get<double>(), figure["median"].get<double>()) << figure;
    EXPECT_LE(figure["median"].get<double>(), figure["most"].get<double>()) << figure;
    // A rate is of bytes.
    if (figure["unit"] == "GB/s") {
      EXPECT_GT(figure["bytes"].get<std::size_t>(), 0U) << figure;
    }
  }
}

TEST_P(BenchCommandLine, MeasuresOnlyWhatIsNamed) {
  auto const json = json_of(" --only launch,allocation,launch");
  EXPECT_THAT(benchmarks_in(json["figures"]), ElementsAre("allocation", "launch"));
  EXPECT_EQ(json["figures"].size(), 5U) << "each once";
  EXPECT_THAT(json["left_out"], IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Devices, BenchCommandLine, ::testing::Values("cpu", "sim:memory=256MiB", "opencl:0"),
                         [](auto const& info) { return info.param.substr(0, info.param.find(':')); });

TEST(BenchOnSim, AKnownLinkIsWhatIsMeasured) {
  // 256 bytes take the latency, 8 MiB theirs besides.
  auto const outcome = run_cli(words_of(
      "bench --quick --json --only transfer,eviction --device sim:memory=1GiB,h2d=2GB/s,d2h=1GB/s,latency=3ms"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  auto const figures = Json::parse(outcome.out)["figures"];
  ASSERT_EQ(figures.size(), 5U);
  EXPECT_LE(figures[0]["most"].get<double>(), 2.0) << figures[0];
  EXPECT_LE(figures[1]["most"].get<double>(), 1.0) << figures[1];
  EXPECT_GE(figures[2]["least"].get<double>(), 3'000) << figures[2];
  EXPECT_GE(figures[3]["least"].get<double>(), 3'000) << figures[3];
  // Two buffers of 1 MiB, each out and in.
  EXPECT_EQ(figures[4]["bytes"], 4 << 20);
  EXPECT_LE(figures[4]["most"].get<double>(), 4.0 / 3.0) << "no faster than the link";
}

TEST(BenchOnSim, ASmallDeviceIsMeasuredWithLess) {
  auto const outcome = run_cli(words_of("bench --quick --json --device sim:memory=1MiB"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  auto const json = Json::parse(outcome.out);
  ASSERT_FALSE(json["figures"].empty());
  for (auto const& figure : json["figures"]) {
    if (figure["benchmark"] == "transfer") {
      EXPECT_LE(figure["bytes"].get<std::size_t>(), 128U << 10) << figure;
    }
  }
}

TEST(BenchForPeople, IsATable) {
  auto const outcome = run_cli(words_of("bench --quick --only launch,eviction --device cpu"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("cpu "));
  EXPECT_THAT(outcome.out, HasSubstr("  launch     a launch, and its end  "));
  EXPECT_THAT(outcome.out, HasSubstr("  eviction   left out: the device's memory is the host's"));
  EXPECT_EQ(std::ranges::count(outcome.out, '\n'), 4);
}

}  // namespace
}  // namespace unimem
