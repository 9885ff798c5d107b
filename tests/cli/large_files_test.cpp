#include "cli/cli_process.hpp"
#include "cli/sample_data.hpp"
#include "cli/sandbox.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <vector>

// Files beyond 4 GiB, many files, and damage in large ones; more of each in long runs (UNIMEM_TEST_OPERATIONS is set).

namespace unimem {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t MiB = std::size_t{1} << 20, GiB = std::size_t{1} << 30;

class LargeFiles : public ::testing::Test {
 protected:
  static bool is_long_run() { return std::getenv("UNIMEM_TEST_OPERATIONS") != nullptr; }

  /// Puts one byte into a file.
  void put(char const* name, std::size_t offset, char byte) const {
    int const file = ::open((folder_ / name).c_str(), O_WRONLY | O_CLOEXEC);
    ASSERT_GE(file, 0);
    EXPECT_EQ(::pwrite(file, &byte, 1, static_cast<::off_t>(offset)), 1);
    ::close(file);
  }
  [[nodiscard]] Outcome run(std::string const& arguments) const {
    return run_cli(words_of("run " + arguments), {.directory = folder_.path()});
  }

  Sandbox folder_;
};

TEST_F(LargeFiles, PassThroughASmallLimit) {
  std::vector<std::size_t> sizes{4 * GiB + 1};
  if (is_long_run()) sizes.push_back(100 * GiB);
  auto const base = run_cli({"devices"}).peak_resident_bytes;
  for (auto const size : sizes) {
    folder_.write_hole("sparse.bin", size);
    auto const marks = std::array{std::size_t{0}, 4 * GiB - 1, size - 1};
    for (auto const at : marks) put("sparse.bin", at, '\x07');
    auto const outcome =
        run("sparse.bin --kernel histogram --device sim --memory-limit 64MiB --checksum crc32c --json");
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    auto const json = Json::parse(outcome.out);
    EXPECT_EQ(json["bytes"], size);
    EXPECT_EQ(json["result"]["histogram"][7], marks.size());
    EXPECT_EQ(json["result"]["histogram"][0], size - marks.size());
    EXPECT_EQ(json["host_to_device_bytes"], size);
    EXPECT_LE(json["peak_device_bytes"], 64 * MiB);
    EXPECT_LE(outcome.peak_resident_bytes, base + 228 * MiB);  // twice the limit, and threads' own
    auto const chunk = json["checksum_bytes"].get<std::size_t>();
    EXPECT_EQ(json["files"][0]["checksums"].size(), (size + chunk - 1) / chunk);
  }
}

TEST_F(LargeFiles, ManySmallOnesAreOneRun) {
  std::size_t const count = is_long_run() ? 10'000 : 1'200;  // more than a process may have open
  std::string all, names;
  for (std::size_t i = 0; i < count; ++i) {
    auto const bytes = std::to_string(i) + std::string(i % 50, 'x');
    all += bytes;
    folder_.write(std::to_string(i), bytes);
    names += std::to_string(i) + " ";
  }
  auto const outcome = run(names + "--kernel affine --output out --checksum xxh3 --json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(folder_.read("out") == all);
  auto const json = Json::parse(outcome.out);
  EXPECT_EQ(json["files"].size(), count);
  EXPECT_EQ(json["files"][count - 1]["path"], std::to_string(count - 1));
  EXPECT_EQ(json["bytes"], all.size());
}

TEST_F(LargeFiles, AHundredFlippedBitsAreAllFound) {
  std::size_t const pieces = is_long_run() ? 1'024 : 128;
  auto const piece = mixed_bytes(MiB, 21);
  std::string bytes;
  for (std::size_t i = 0; i < pieces; ++i) bytes += piece;
  folder_.write("data.bin", bytes);
  auto const written = run("data.bin --kernel histogram --chunk 64KiB --checksum crc32c --manifest m.json --json");
  ASSERT_EQ(written.exit_code, 0) << written.err;
  constexpr unsigned seed = 2026;
  std::mt19937_64 random{seed};
  std::set<std::size_t> expected;
  for (int i = 0; i < 100; ++i) {
    auto const bit = random() % (bytes.size() * 8);
    put("data.bin", bit / 8, bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8))));
    expected.insert(bit / 8 / (64 << 10));
  }
  auto const verified = run("data.bin --kernel histogram --verify m.json");
  EXPECT_EQ(verified.exit_code, 1);
  EXPECT_EQ(verified.out, "");
  std::set<std::size_t> named;
  std::regex const chunks("chunks? ([0-9]+)(?: to ([0-9]+))? \\(bytes \\[([0-9]+), ([0-9]+)\\)");
  for (std::sregex_iterator at(verified.err.begin(), verified.err.end(), chunks), end; at != end; ++at) {
    auto const first = std::stoul((*at)[1]), last = (*at)[2].matched ? std::stoul((*at)[2]) : first;
    EXPECT_EQ(std::stoul((*at)[3]), first * (64 << 10));
    EXPECT_EQ(std::stoul((*at)[4]), (last + 1) * (64 << 10));
    for (auto chunk = first; chunk <= last; ++chunk) named.insert(chunk);
  }
  EXPECT_EQ(named, expected) << "seed " << seed;
}

}  // namespace
}  // namespace unimem
