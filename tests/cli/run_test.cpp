#include "cli/cli_process.hpp"
#include "cli/sample_data.hpp"
#include "cli/sandbox.hpp"
#include "core/sanitizers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <tuple>

namespace unimem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;

std::vector<std::string> keys_of(Json const& json) {
  std::vector<std::string> keys;
  for (auto const& [key, value] : json.items()) keys.push_back(key);
  return keys;
}

std::array<std::uint64_t, 256> counted(std::string const& bytes) {
  std::array<std::uint64_t, 256> counts{};
  for (char const c : bytes) ++counts[static_cast<unsigned char>(c)];
  return counts;
}

double entropy_of(std::array<std::uint64_t, 256> const& counts, std::size_t total) {
  double bits = 0;
  for (auto const count : counts) {
    if (count == 0) continue;
    double const share = static_cast<double>(count) / static_cast<double>(total);
    bits -= share * std::log2(share);
  }
  return bits;
}

/// Every promise of the command, on every kind of device: memory shared with the host, discrete, and a real driver's.
class Run : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (device().starts_with("opencl") && !has_device(device())) GTEST_SKIP() << "no OpenCL device";
  }

  [[nodiscard]] std::string const& device() const { return GetParam(); }
  [[nodiscard]] bool shares_memory() const { return device() == "cpu"; }
  [[nodiscard]] std::string id() const { return device().substr(0, device().find(':')); }

  /// Runs `command` on the device with `--json`, and gives the object.
  [[nodiscard]] Json json_of(std::string const& command) const {
    auto const outcome = run_cli(words_of(command + " --json --device " + device()), {.directory = folder_.path()});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, IsEmpty());
    if (outcome.exit_code != 0) return {};
    EXPECT_EQ(outcome.out.find('\n'), outcome.out.size() - 1) << "one object on one line";
    return Json::parse(outcome.out);
  }

  /// The transfers of a run that moved `in` bytes of file and brought at least `back` bytes back.
  void expect_moved(Json const& json, std::size_t in, std::size_t back) const {
    EXPECT_EQ(json["host_to_device_bytes"], shares_memory() ? 0 : in);
    if (shares_memory()) {
      EXPECT_EQ(json["device_to_host_bytes"], 0);
    } else {
      EXPECT_GE(json["device_to_host_bytes"].get<std::size_t>(), back);
    }
  }

  Sandbox folder_;
};

TEST_P(Run, HistogramEqualsAnIndependentCount) {
  auto const contents = mixed_bytes(1'000'003, 11);
  folder_.write("data.bin", contents);
  auto const json = json_of("run data.bin --kernel histogram --chunk 100KB");
  EXPECT_THAT(keys_of(json),
              ElementsAre("kernel", "device", "bytes", "chunks", "chunk_bytes", "access", "direct_bytes", "seconds",
                          "gigabytes_per_second", "result", "host_to_device_bytes", "device_to_host_bytes",
                          "peak_device_bytes", "pool", "retries", "resumed_bytes", "files"));
  EXPECT_EQ(json["kernel"], "histogram");
  EXPECT_THAT(json["device"].get<std::string>(), ::testing::StartsWith(id()));
  EXPECT_EQ(json["bytes"], contents.size());
  EXPECT_EQ(json["chunks"], 11);
  EXPECT_GT(json["seconds"].get<double>(), 0);
  EXPECT_NEAR(json["gigabytes_per_second"].get<double>(),
              static_cast<double>(contents.size()) / json["seconds"].get<double>() / 1e9, 1e-9);
  EXPECT_THAT(keys_of(json["result"]), ElementsAre("histogram", "entropy_bits_per_byte"));
  auto const counts = counted(contents);
  EXPECT_EQ(json["result"]["histogram"], Json(counts));
  EXPECT_NEAR(json["result"]["entropy_bits_per_byte"].get<double>(), entropy_of(counts, contents.size()), 1e-9);
  expect_moved(json, contents.size(), 0);
  EXPECT_EQ(json["pool"]["pool_hits"].get<std::size_t>() + json["pool"]["pool_misses"].get<std::size_t>(),
            json["pool"]["total_allocations"]);
}

TEST_P(Run, AnEmptyFileHasNoEntropy) {
  folder_.write("empty.bin", "");
  auto const json = json_of("run empty.bin --kernel histogram");
  EXPECT_EQ(json["bytes"], 0);
  EXPECT_EQ(json["chunks"], 0);
  EXPECT_EQ(json["result"]["histogram"], Json(std::array<int, 256>{}));
  EXPECT_EQ(json["result"]["entropy_bits_per_byte"], 0.0);
  expect_moved(json, 0, 0);
}

TEST_P(Run, StatisticsOfDoublesEqualThoseOfExtendedPrecision) {
  std::mt19937_64 random{5};
  std::normal_distribution<double> normal(1e6, 3);  // a large mean costs a naive sum of squares all its digits
  std::vector<double> numbers(50'001);
  std::ranges::generate(numbers, [&] { return normal(random); });
  folder_.write("data.bin", bytes_of(numbers));
  auto const result = json_of("run data.bin --kernel statistics --dtype f64 --chunk 64KiB")["result"];

  long double sum = 0, squares = 0;
  for (auto const x : numbers) sum += x;
  auto const mean = sum / static_cast<long double>(numbers.size());
  for (auto const x : numbers) squares += (x - mean) * (x - mean);
  auto const deviation = std::sqrt(squares / static_cast<long double>(numbers.size()));
  EXPECT_THAT(keys_of(result), ElementsAre("count", "min", "max", "mean", "standard_deviation"));
  EXPECT_EQ(result["count"], numbers.size());
  EXPECT_EQ(result["min"].get<double>(), *std::ranges::min_element(numbers));
  EXPECT_EQ(result["max"].get<double>(), *std::ranges::max_element(numbers));
  EXPECT_NEAR(result["mean"].get<double>(), static_cast<double>(mean), 1e-6);
  EXPECT_NEAR(result["standard_deviation"].get<double>(), static_cast<double>(deviation), 1e-9);
}

TEST_P(Run, StatisticsOf64BitIntegersHaveExactExtremes) {
  std::vector<std::uint64_t> const numbers{std::numeric_limits<std::uint64_t>::max(), 9'007'199'254'740'993U, 1U << 31};
  folder_.write("data.bin", bytes_of(numbers));
  auto const result = json_of("run data.bin --kernel statistics --dtype u64")["result"];
  EXPECT_EQ(result["count"], 3);
  EXPECT_EQ(result["min"].get<std::uint64_t>(), 1U << 31);
  EXPECT_EQ(result["max"].get<std::uint64_t>(), std::numeric_limits<std::uint64_t>::max());

  folder_.write("signed.bin",
                bytes_of<std::int64_t>({std::numeric_limits<std::int64_t>::min(), -9'007'199'254'740'993}));
  auto const with_sign = json_of("run signed.bin --kernel statistics --dtype i64")["result"];
  EXPECT_EQ(with_sign["min"].get<std::int64_t>(), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(with_sign["max"].get<std::int64_t>(), -9'007'199'254'740'993);
}

TEST_P(Run, WhatIsNoNumberIsNull) {
  folder_.write("empty.bin", "");
  EXPECT_EQ(json_of("run empty.bin --kernel statistics --dtype f32")["result"],
            Json::parse(R"({"count":0,"min":null,"max":null,"mean":null,"standard_deviation":null})"));
  folder_.write("nan.bin", bytes_of<float>({1, std::numeric_limits<float>::quiet_NaN(), 3}));
  EXPECT_EQ(json_of("run nan.bin --kernel statistics --dtype f32")["result"],
            Json::parse(R"({"count":3,"min":null,"max":null,"mean":null,"standard_deviation":null})"));
}

TEST_P(Run, NaNIsSpelledInOneWay) {
  using Limits = std::numeric_limits<double>;
  auto const lines_of = [&](std::string const& file) {
    auto const outcome = run_cli(words_of("run " + file + " --kernel statistics --dtype f64 --device " + device()),
                                 {.directory = folder_.path()});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  };
  auto const spells = [](char const* min, char const* max, char const* mean, char const* deviation) {
    return HasSubstr(std::string("\n  min           ") + min + "\n  max           " + max + "\n  mean          " +
                     mean + "\n  deviation     " + deviation + '\n');
  };
  folder_.write("empty.bin", "");
  EXPECT_THAT(lines_of("empty.bin"), spells("nan", "nan", "nan", "nan"));
  for (double const nan : {Limits::quiet_NaN(), -Limits::quiet_NaN()}) {
    folder_.write("nan.bin", bytes_of<double>({1, nan, 3}));
    EXPECT_THAT(lines_of("nan.bin"), spells("nan", "nan", "nan", "nan")) << "whatever its sign";
  }
  folder_.write("endless.bin", bytes_of<double>({-Limits::infinity(), 1, Limits::infinity()}));
  EXPECT_THAT(lines_of("endless.bin"), spells("-inf", "inf", "nan", "nan"));
  EXPECT_EQ(json_of("run endless.bin --kernel statistics --dtype f64")["result"],
            Json::parse(R"({"count":3,"min":null,"max":null,"mean":null,"standard_deviation":null})"));
  folder_.write("zero.bin", bytes_of<double>({-0.5, 0.5}));
  EXPECT_THAT(lines_of("zero.bin"), spells("-0.5", "0.5", "0", "0.5"));
}

/// y = a · x + b as the contract has it: in doubles, integers to nearest (ties to even) and saturated.
template <class T>
T affine_of(T x, double a, double b) {
  double const product = a * static_cast<double>(x);
  double const y = product + b;
  if constexpr (std::is_integral_v<T>) {
    double const rounded = std::nearbyint(y);
    if (rounded <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
    if (rounded >= static_cast<double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
    return static_cast<T>(rounded);
  } else {
    return static_cast<T>(y);
  }
}

TEST_P(Run, AffineWritesRoundedAndSaturatedIntegers) {
  auto const contents = mixed_bytes(200'006, 12);
  folder_.write("data.bin", contents);
  auto const json =
      json_of("run data.bin --kernel affine --scale -1.5 --offset 0.5 --dtype i16 --output out.bin --chunk 30000");
  EXPECT_THAT(keys_of(json["result"]), ElementsAre("elements"));
  EXPECT_EQ(json["result"]["elements"], contents.size() / 2);
  EXPECT_EQ(json["chunks"], 7);
  expect_moved(json, contents.size(), contents.size());
  auto expected = numbers_of<std::int16_t>(contents);
  for (auto& x : expected) x = affine_of(x, -1.5, 0.5);
  EXPECT_TRUE(folder_.read("out.bin") == bytes_of(expected));
}

TEST_P(Run, AffineKeepsTheShapeOfNumPyFiles) {
  std::vector<float> numbers(3 * 7);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i) / 3;
  folder_.write("in.npy", npy("<f4", false, "(3, 7)", bytes_of(numbers)));
  auto const json = json_of("run in.npy --kernel affine --scale 0.1 --offset 1e-3 --output out.npy --chunk 16");
  EXPECT_EQ(json["bytes"], numbers.size() * 4);
  for (auto& x : numbers) x = affine_of(x, 0.1, 1e-3);
  auto const written = folder_.read("out.npy");
  ASSERT_GE(written.size(), numbers.size() * 4);
  EXPECT_EQ(written.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  EXPECT_THAT(written, HasSubstr("'descr': '<f4'"));
  EXPECT_THAT(written, HasSubstr("'shape': (3, 7)"));
  auto const data = written.size() - numbers.size() * 4;
  EXPECT_EQ(data % 64, 0U);
  EXPECT_EQ(written.substr(data), bytes_of(numbers));

  // What was written is read again as what it is, by its header alone.
  auto const again = json_of("run out.npy --kernel statistics")["result"];
  EXPECT_EQ(again["count"], numbers.size());
  EXPECT_EQ(again["max"].get<double>(), numbers.back());
}

TEST_P(Run, ArraysOfAFileAreTakenByTheirNames) {
  std::vector<float> const numbers{1, -2, 3.5F, 1e10F, 5, 6};
  folder_.write("model.safetensors", safetensors(R"({"flag":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                                 R"("w":{"dtype":"F32","shape":[2,3],"data_offsets":[1,25]}})",
                                                 "\1" + bytes_of(numbers)));
  auto const json = json_of("run model.safetensors#w --kernel statistics");
  EXPECT_EQ(json["bytes"], 24);
  EXPECT_EQ(json["result"]["count"], 6);
  EXPECT_EQ(json["result"]["min"].get<double>(), -2);
  EXPECT_EQ(json["result"]["max"].get<double>(), double{1e10F});
  expect_moved(json, 24, 0);
  EXPECT_EQ(json_of("run model.safetensors#flag --kernel statistics")["result"]["max"], 1);
  EXPECT_EQ(json_of("run model.safetensors#w --kernel affine --scale 2 --output out.npy")["result"]["elements"], 6);
  EXPECT_THAT(folder_.read("out.npy"), HasSubstr("'shape': (2, 3)"));
}

TEST_P(Run, AffineOfAnEmptyFileIsEmpty) {
  folder_.write("empty.bin", "");
  auto const json = json_of("run empty.bin --kernel affine --dtype f64 --output out.bin");
  EXPECT_EQ(json["result"]["elements"], 0);
  EXPECT_EQ(folder_.snapshot().at("out.bin"), "");
}

TEST_P(Run, TheOutputReplacesAnOlderFile) {
  folder_.write("data.bin", "new data");
  folder_.write("out.bin", "something older and longer");
  EXPECT_EQ(json_of("run data.bin --kernel affine --output out.bin --chunk 3")["chunks"], 3);
  EXPECT_THAT(folder_.snapshot(), ElementsAre(std::pair{"data.bin", "new data"}, std::pair{"out.bin", "new data"}));
}

TEST_P(Run, FewerBuffersKeepTheMemoryLimit) {
  auto const contents = mixed_bytes(3'000'000, 13);
  folder_.write("data.bin", contents);
  auto const counts = Json(counted(contents));
  for (std::string const limit : {"4MiB", "1MiB", "600KiB"}) {
    auto const json = json_of("run data.bin --kernel histogram --chunk 256KiB --buffers 8 --memory-limit " + limit);
    EXPECT_EQ(json["result"]["histogram"], counts) << limit;
    EXPECT_EQ(json["chunks"], 12) << "a chunk never shrinks silently";
    auto const most = limit == "4MiB" ? 4 << 20 : limit == "1MiB" ? 1 << 20 : 600 << 10;
    EXPECT_LE(json["peak_device_bytes"].get<int>(), most);
    expect_moved(json, contents.size(), 0);
  }
}

TEST_P(Run, ReadsByTheWayThatIsSaid) {
  auto const contents = mixed_bytes(3'000'001, 18);
  folder_.write("data.bin", contents);
  auto const counts = Json(counted(contents));
  for (std::string const direct : {"auto", "off"}) {
    auto const json = json_of("run data.bin --kernel histogram --direct " + direct);
    EXPECT_EQ(json["result"]["histogram"], counts) << direct;
    EXPECT_THAT(json["access"], ::testing::AnyOf("cached", "mapped")) << direct << ": it was written just now";
    EXPECT_EQ(json["direct_bytes"], 0) << direct;
  }
  auto const all = run_cli(words_of("run data.bin --kernel histogram --json --direct on --device " + device()),
                           {.directory = folder_.path()});
  if (all.exit_code != 0) {
    EXPECT_THAT(all.err, HasSubstr("reading past the page cache (O_DIRECT) is not supported"));
    GTEST_SKIP() << "no such reads in this folder";
  }
  auto const json = Json::parse(all.out);
  EXPECT_EQ(json["result"]["histogram"], counts);
  EXPECT_EQ(json["access"], "direct");
  EXPECT_EQ(json["direct_bytes"], contents.size());
}

TEST_P(Run, TheDefaultChunkFitsTheLimit) {
  auto const contents = mixed_bytes(3'000'000, 17);
  folder_.write("data.bin", contents);
  auto const counts = Json(counted(contents));
  for (auto const& [limit, most, chunk] :
       {std::tuple{"64MiB", 64 << 20, 3'000'000}, std::tuple{"2MiB", 2 << 20, 512 << 10},
        std::tuple{"512KiB", 512 << 10, 128 << 10}}) {
    auto const json = json_of(std::string("run data.bin --kernel histogram --memory-limit ") + limit);
    EXPECT_EQ(json["result"]["histogram"], counts) << limit;
    EXPECT_EQ(json["chunk_bytes"], chunk) << limit;
    EXPECT_EQ(json["chunks"],
              (contents.size() + json["chunk_bytes"].get<std::size_t>() - 1) / json["chunk_bytes"].get<std::size_t>());
    EXPECT_LE(json["peak_device_bytes"].get<int>(), most);
    expect_moved(json, contents.size(), 0);
  }
  auto const text = run_cli(words_of("run data.bin --kernel histogram --memory-limit 2MiB --device " + device()),
                            {.directory = folder_.path()});
  EXPECT_THAT(text.out, HasSubstr("in 6 chunks of 512 KiB\n")) << text.err;
  auto const set =
      run_cli(words_of("run data.bin --kernel histogram --memory-limit 64MiB --chunk 65MiB --device " + device()),
              {.directory = folder_.path()});
  EXPECT_EQ(set.exit_code, 0) << "of a small file a chunk is as small: " << set.err;
}

TEST_P(Run, TheDefaultChunkStreamsALargeFile) {
  folder_.write_hole("data.bin", std::size_t{100} << 20);
  auto const json = json_of("run data.bin --kernel histogram --memory-limit 64MiB");
  EXPECT_EQ(json["result"]["histogram"][0], std::size_t{100} << 20);
  EXPECT_EQ(json["chunk_bytes"], 16 << 20);
  EXPECT_LE(json["peak_device_bytes"].get<int>(), 64 << 20);
  expect_moved(json, std::size_t{100} << 20, 0);
  auto const set =
      run_cli(words_of("run data.bin --kernel histogram --memory-limit 64MiB --chunk 65MiB --device " + device()),
              {.directory = folder_.path()});
  EXPECT_EQ(set.exit_code, 1) << "a chunk that was asked for does not shrink";
  EXPECT_THAT(set.err, HasSubstr("the limit is below one chunk"));
}

TEST_P(Run, ResidentMemoryIsBoundedByTheBuffers) {
  if (detail::is_sanitized) GTEST_SKIP() << "a sanitizer's memory is not the program's";
  constexpr std::size_t mib = std::size_t{1} << 20, file = 256 * mib, chunk = 4 * mib, buffers = 3;
  folder_.write("data.bin", mixed_bytes(mib, 16));
  // Most of it a hole: the pages are as resident as any once they are read.
  std::filesystem::resize_file(folder_ / "data.bin", file);
  auto const base = run_cli({"devices"}).peak_resident_bytes;
  auto const outcome =
      run_cli(words_of("run data.bin --kernel histogram --chunk 4MiB --buffers 3 --device " + device()),
              {.directory = folder_.path()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_LE(outcome.peak_resident_bytes, base + 2 * buffers * chunk + 100 * mib);
}

TEST_P(Run, TextOutputSaysTheSame) {
  auto const contents = mixed_bytes(300'000, 14);
  folder_.write("data.bin", contents);
  auto const outcome =
      run_cli(words_of("run data.bin --kernel histogram --device " + device()), {.directory = folder_.path()});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, IsEmpty());
  EXPECT_THAT(outcome.out, ::testing::StartsWith("data.bin: histogram on " + id()));
  EXPECT_THAT(outcome.out, HasSubstr("bits per byte"));
  EXPECT_THAT(outcome.out, HasSubstr(shares_memory() ? "0 B to the device, 0 B back" : "292.97 KiB to the device"));
}

TEST_P(Run, AFileMayBeNamedLikeAnOption) {
  folder_.write("devices", "12345");
  EXPECT_EQ(json_of("run devices --kernel histogram")["bytes"], 5);
  folder_.write("--json", "1234567");
  auto const outcome = run_cli(words_of("run --json --kernel histogram --device " + device() + " -- --json"),
                               {.directory = folder_.path()});
  EXPECT_EQ(Json::parse(outcome.out)["bytes"], 7);
}

INSTANTIATE_TEST_SUITE_P(Devices, Run, ::testing::Values("cpu", "sim:memory=64MiB", "opencl:0"),
                         [](auto const& test) { return test.param.substr(0, test.param.find(':')); });

// ---------------------------------------------------------------------------------------------------------------------

TEST(BigFile, GivesOneHistogramOnEveryDevice) {
  if (std::getenv("UNIMEM_TEST_OPERATIONS") == nullptr) {
    GTEST_SKIP() << "a file of more than 1 GiB is for long runs (./dev check --long)";
  }
  Sandbox const folder;
  constexpr std::size_t pieces = 17, piece_bytes = (std::size_t{64} << 20) + 11;
  auto const piece = mixed_bytes(piece_bytes, 15);
  auto counts = counted(piece);
  for (auto& count : counts) count *= pieces;
  {
    std::ofstream file(folder / "big.bin", std::ios::binary);
    for (std::size_t i = 0; i < pieces; ++i) file.write(piece.data(), std::streamsize{piece_bytes});
    ASSERT_TRUE(file.flush());
  }
  for (std::string const device : {"cpu", "sim:memory=256MiB", "opencl:0"}) {
    if (device == "opencl:0" && !has_device(device)) continue;
    auto const outcome =
        run_cli(words_of("run big.bin --kernel histogram --json --memory-limit 256MiB --device " + device),
                {.directory = folder.path()});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    auto const json = Json::parse(outcome.out);
    EXPECT_EQ(json["bytes"], pieces * piece_bytes);
    EXPECT_EQ(json["result"]["histogram"], Json(counts)) << device;
    EXPECT_EQ(json["host_to_device_bytes"], device == "cpu" ? 0 : pieces * piece_bytes) << device;
    EXPECT_LE(json["peak_device_bytes"].get<std::size_t>(), std::size_t{256} << 20) << device;
  }
}

}  // namespace
}  // namespace unimem
