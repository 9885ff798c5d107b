#include "cli/cli_process.hpp"
#include "cli/json_keys.hpp"
#include "cli/sandbox.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>

namespace unimem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(Help, IsThereForEveryCommand) {
  for (std::string const command : {"", "devices", "run", "replay", "version"}) {
    auto words = words_of(command);
    words.emplace_back("--help");
    auto const outcome = run_cli(words);
    EXPECT_EQ(outcome.exit_code, 0) << command;
    EXPECT_THAT(outcome.out, HasSubstr("Usage: unimem " + command)) << command;
    EXPECT_THAT(outcome.err, IsEmpty()) << command;
  }
}

TEST(Help, NamesEveryOptionOfRun) {
  auto const outcome = run_cli(words_of("run missing.bin --kernel nonsense --chunk 0 --help"));
  EXPECT_EQ(outcome.exit_code, 0);
  for (std::string const option : {"--kernel", "--source", "--entry", "--dtype", "--scale", "--offset", "--output",
                                   "--device", "--chunk", "--buffers", "--memory-limit", "--no-progress", "--json"}) {
    EXPECT_THAT(outcome.out, HasSubstr(option));
  }
}

TEST(Version, IsTextOrOneJsonObject) {
  auto const text = run_cli({"version"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, StartsWith("unimem 0."));
  auto const json = run_cli({"version", "--json"});
  EXPECT_EQ(json.exit_code, 0);
  EXPECT_EQ(json.out.find('\n'), json.out.size() - 1);
  auto const version = nlohmann::json::parse(json.out)["version"].get<std::string>();
  EXPECT_THAT(text.out, StartsWith("unimem " + version + "\n"));
  EXPECT_EQ(run_cli({"--version"}).out, "unimem " + version + "\n");
  for (auto const& command : {"--json --version", "--version --json"}) {
    auto const flags = run_cli(words_of(command));
    EXPECT_EQ(flags.exit_code, 0) << flags.err;
    EXPECT_EQ(flags.out, json.out) << command;
  }
}

TEST(Devices, AreOneJsonObject) {
  for (std::string const command : {"devices", "devices --json"}) {
    auto const outcome = run_cli(words_of(command));
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_THAT(outcome.err, IsEmpty());
    EXPECT_EQ(outcome.out.find('\n'), outcome.out.size() - 1);
    auto const json = nlohmann::ordered_json::parse(outcome.out);
    EXPECT_THAT(keys_of(json), ElementsAre("devices", "unavailable"));
    auto const& cpu = json["devices"].at(0);
    EXPECT_THAT(keys_of(cpu), ElementsAre("id", "backend", "name", "total_bytes", "free_bytes", "limits"));
    EXPECT_EQ(cpu["id"], "cpu");
    EXPECT_EQ(cpu["backend"], "cpu");
    EXPECT_GT(cpu["total_bytes"].get<std::uint64_t>(), 0U);
    EXPECT_LE(cpu["free_bytes"].get<std::uint64_t>(), cpu["total_bytes"].get<std::uint64_t>());
    EXPECT_THAT(
        json["unavailable"],
        ::testing::Contains(nlohmann::ordered_json::parse(R"({"backend":"metal","reason":"Metal needs macOS"})")));
  }
}

TEST(Devices, TellWhatTheEnvironmentLimitsThemTo) {
  Surroundings const surroundings{.environment = {{"UNIMEM_LIMITS", "cpu=64MiB;cpu/pinned=1MiB"}}};
  for (std::string const command : {"devices", "devices --verbose"}) {
    auto const json = nlohmann::ordered_json::parse(run_cli(words_of(command), surroundings).out);
    EXPECT_EQ(json["devices"].at(0)["limits"].dump(), R"({"host":67108864,"pinned":1048576})") << command;
    EXPECT_GT(json["devices"].at(0)["total_bytes"], 64 << 20) << "of the machine";
  }
  auto const unlimited = nlohmann::json::parse(run_cli({"devices"}, {.environment = {{"UNIMEM_LIMITS", ""}}}).out);
  EXPECT_EQ(unlimited["devices"].at(0)["limits"], nlohmann::json::object());
}

TEST(Devices, SayEverythingWhenVerbose) {
  auto const json = nlohmann::ordered_json::parse(run_cli(words_of("devices --verbose --json")).out);
  auto const& cpu = json["devices"].at(0);
  EXPECT_GE(cpu["compute_units"].get<int>(), 1);
  EXPECT_GE(cpu["alignment"].get<int>(), 1);
  EXPECT_EQ(cpu["runs_host_form"], true);
  EXPECT_EQ(cpu["shares_storage_with_host"], true);
}

TEST(Devices, AreATableOnATerminal) {
  int master = -1, terminal = -1;
  std::array<char, 256> name{};
  ASSERT_EQ(::openpty(&master, &terminal, name.data(), nullptr, nullptr), 0);
  auto const outcome = run_cli({"devices"}, {.standard_output = name.data()});
  std::string shown(4'096, '\0');
  shown.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::read(master, shown.data(), shown.size()))));
  ::close(master);
  ::close(terminal);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(shown, StartsWith("device "));
  EXPECT_THAT(shown, HasSubstr("\ncpu "));
  EXPECT_THAT(shown, HasSubstr("no metal device: Metal needs macOS"));
}

TEST(Devices, WithoutOpenClSayWhy) {
  Sandbox const no_platforms;
  auto const outcome = run_cli({"devices"}, {.environment = {{"OCL_ICD_VENDORS", no_platforms.path().native() + "/"}}});
  EXPECT_EQ(outcome.exit_code, 0);
  auto const json = nlohmann::json::parse(outcome.out);
  for (auto const& device : json["devices"]) EXPECT_NE(device["backend"], "opencl");
  bool explained = false;
  for (auto const& missing : json["unavailable"]) {
    if (missing["backend"] == "opencl") explained = !missing["reason"].get<std::string>().empty();
  }
  EXPECT_TRUE(explained) << outcome.out;
}

TEST(Devices, MeasureTheirLinksOnce) {
  Sandbox const caches;
  Surroundings const surroundings{.environment = {{"UNIMEM_CACHE_DIR", (caches / "mine").native()}}};
  EXPECT_FALSE(nlohmann::json::parse(run_cli({"devices"}, surroundings).out).contains("links"));
  EXPECT_FALSE(std::filesystem::exists(caches / "mine" / "links-v1")) << "nobody has asked";

  auto const outcome = run_cli(words_of("devices --links"), surroundings);
  EXPECT_EQ(outcome.exit_code, 0);
  auto const first = nlohmann::ordered_json::parse(outcome.out);
  EXPECT_THAT(keys_of(first), ElementsAre("devices", "unavailable", "links"));
  std::size_t measured = 0;
  for (auto const& link : first["links"]) {
    EXPECT_THAT(keys_of(link),
                ElementsAre("from", "to", "bytes_per_second", "latency_seconds", "via_host", "source", "within_cache"));
    EXPECT_GT(link["bytes_per_second"], 0) << link;
    EXPECT_GT(link["latency_seconds"], 0) << link;
    if (link["source"] == "measured" && link["via_host"] == false) ++measured;
  }
  if (measured == 0) GTEST_SKIP() << "every device here shares the host's memory";
  std::size_t kept = 0;
  for ([[maybe_unused]] auto const& file : std::filesystem::directory_iterator(caches / "mine" / "links-v1")) ++kept;
  EXPECT_EQ(kept, measured);
  auto const again = nlohmann::ordered_json::parse(run_cli(words_of("devices --links"), surroundings).out);
  EXPECT_EQ(again["links"], first["links"]) << "to the last digit: they are remembered";
}

TEST(Reports, OfARunGoToTheNamedFile) {
  Sandbox const folder;
  folder.write("data.bin", "some data");
  auto const outcome = run_cli(words_of("run data.bin --kernel histogram --device sim --json"),
                               {.directory = folder.path(), .environment = {{"UNIMEM_REPORT", "report.json"}}});
  EXPECT_EQ(outcome.exit_code, 0);
  auto const json = nlohmann::json::parse(folder.read("report.json"));
  EXPECT_TRUE(json["statistics"].contains("pools"));
  EXPECT_EQ(json["statistics"]["active_bytes"], 0) << "all was given back";
  EXPECT_EQ(json["limits"].size(), json["statistics"]["pools"].size());

  auto const nowhere = run_cli(words_of("run data.bin --kernel histogram --device sim --json"),
                               {.directory = folder.path(), .environment = {{"UNIMEM_REPORT", "no/where.json"}}});
  EXPECT_EQ(nowhere.exit_code, 0);
  EXPECT_THAT(nowhere.err, HasSubstr("UNIMEM_REPORT: no/where.json: No such file or directory"));
  EXPECT_EQ(nlohmann::json::parse(nowhere.out)["result"], nlohmann::json::parse(outcome.out)["result"]);
}

TEST(Reports, OfARunHaveItsMemory) {
  Sandbox const folder;
  folder.write("data.bin", std::string(300'000, 'x'));
  Surroundings const surroundings{.directory = folder.path(), .environment = {{"UNIMEM_REPORT", "report.json"}}};
  auto const outcome = run_cli(
      words_of("run data.bin --kernel histogram --device sim --chunk 64KiB --memory-limit 1MiB --json"), surroundings);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  auto const run = nlohmann::json::parse(outcome.out), report = nlohmann::json::parse(folder.read("report.json"));
  auto const is_devices = [&](nlohmann::json const& one) {
    return one["device"] == run["device"] && one["location"] == "device";
  };
  auto const& pools = report["statistics"]["pools"];
  auto const pool = std::ranges::find_if(pools, is_devices);
  ASSERT_NE(pool, pools.end()) << pools;
  EXPECT_GT((*pool)["pool"]["total_allocations"], 0);
  EXPECT_EQ((*pool)["pool"]["total_allocations"], run["pool"]["total_allocations"]);
  EXPECT_EQ((*pool)["pool"]["peak_active_bytes"], run["pool"]["peak_active_bytes"]);
  EXPECT_EQ((*pool)["pool"]["peak_reserved_bytes"], run["peak_device_bytes"]);
  auto const& lines = report["usage"]["lines"];
  auto const chunks = std::ranges::find_if(
      lines, [&](nlohmann::json const& line) { return is_devices(line) && line["name"] == "stream chunk"; });
  ASSERT_NE(chunks, lines.end()) << lines;
  EXPECT_EQ((*chunks)["bytes_in"], 300'000);
  auto const& limits = report["limits"];
  auto const limit = std::ranges::find_if(limits, is_devices);
  ASSERT_NE(limit, limits.end()) << limits;
  EXPECT_EQ((*limit)["limit_bytes"], 1 << 20);

  auto const refused = run_cli(
      words_of("run data.bin --kernel histogram --device sim --chunk 64KiB --memory-limit 32KiB"), surroundings);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(nlohmann::json::parse(folder.read("report.json"))["statistics"]["total_allocations"], 0);
}

TEST(Limits, OfTheEnvironmentBoundTheCommandLine) {
  Sandbox const folder;
  folder.write("data.bin", std::string(4'000'000, 'x'));
  auto const outcome =
      run_cli(words_of("run data.bin --kernel histogram --device sim --chunk 512KiB --memory-limit 8MiB --json"),
              {.directory = folder.path(), .environment = {{"UNIMEM_LIMITS", "sim:0=1MiB"}}});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  auto const json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["chunks"], 8);
  EXPECT_LE(json["peak_device_bytes"], 1 << 20);
}

TEST(StandardOutput, ThatCannotBeWrittenIsFailedWork) {
  auto const full = run_cli({"version"}, {.standard_output = "/dev/full"});
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_THAT(full.err, HasSubstr("standard output: cannot be written: No space left on device"));

  auto const closed = run_cli({"devices"}, {.standard_output_closed = true});
  EXPECT_EQ(closed.exit_code, 1);
  EXPECT_THAT(closed.err, HasSubstr("standard output: cannot be written"));
}

TEST(StandardOutput, WhenClosedIsNoFileOfTheRun) {
  Sandbox const folder;
  folder.write("data.bin", "four");
  auto const outcome = run_cli(words_of("run data.bin --kernel affine --output out.bin"),
                               {.directory = folder.path(), .standard_output_closed = true});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(folder.read("data.bin"), "four");
  EXPECT_EQ(folder.read("out.bin"), "four");
}

TEST(StandardOutput, CarriesNothingButTheJson) {
  Sandbox const folder;
  folder.write("data.bin", "some data");
  auto const outcome = run_cli(words_of("run data.bin --kernel histogram --json"),
                               {.directory = folder.path(), .environment = {{"UNIMEM_LOG_LEVEL", "debug"}}});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out.find('\n'), outcome.out.size() - 1);
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["bytes"], 9);
}

}  // namespace
}  // namespace unimem
