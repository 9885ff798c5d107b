#include "device/temporary_folder.hpp"
#include "fuzz/target.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <filesystem>

namespace unimem::fuzz {
namespace {

constexpr std::array names{"allocation_log",
                           "buffer_ref",
                           "control_groups",
                           "disk_cache",
                           "included_text",
                           "journal",
                           "kernel_source",
                           "limits",
                           "manifest",
                           "npy",
                           "npz",
                           "safetensors",
                           "saved_state",
                           "sim_options",
                           "size"};

struct Count {
  std::size_t seeds = 0;
  std::size_t runs = 0;
  std::size_t taken = 0;  ///< of all runs
  std::size_t seeds_taken = 0;
};

class FuzzReplay : public ::testing::TestWithParam<char const*> {
 protected:
  /// Whether it took the input, and what it must not have done as a failure that shows the input.
  bool run(std::string_view input, std::string const& what) {
    ++count.runs;
    try {
      bool const took = target().run(input);
      count.taken += took ? 1 : 0;
      return took;
    } catch (std::exception const& error) {
      std::string shown;
      for (char const c : input.substr(0, 400)) {
        shown += c >= ' ' && c <= '~' && c != '\\' ? std::string(1, c)
                                                   : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
      }
      ADD_FAILURE() << what << ": " << error.what() << "\n  input: " << shown;
      return false;
    }
  }

  [[nodiscard]] Target const& target() const {
    auto const& all = targets();
    return *std::ranges::find(all, std::string_view(GetParam()),
                              [](Target const& one) { return std::string_view(one.name); });
  }

  Count count;
};

/// Each seed as it is, cut off at every length, and with every byte changed.
TEST_P(FuzzReplay, HoldsForEverySeed) {
  std::vector<std::filesystem::path> seeds;
  for (auto const& file : std::filesystem::directory_iterator(std::filesystem::path(UNIMEM_FUZZ_CORPUS) / GetParam())) {
    seeds.push_back(file.path());
  }
  std::ranges::sort(seeds);
  for (auto const& seed : seeds) {
    auto const name = seed.filename().string();
    auto const text = content_of(seed);
    ++count.seeds;
    count.seeds_taken += run(text, name) ? 1 : 0;
    if (text.size() > 1024) continue;
    for (std::size_t at = 0; at < text.size() && !HasFailure(); ++at) {
      run(std::string_view(text).substr(0, at), fmt::format("{} cut at {}", name, at));
      // One bit, another at each place: digits become others, letters change case, signs become letters.
      auto changed = text;
      changed[at] = static_cast<char>(changed[at] ^ (1 << at % 8));
      run(changed, fmt::format("{} with byte {} changed", name, at));
    }
  }
  RecordProperty("runs", static_cast<int>(count.runs));
  fmt::print("{}: {} seeds, {} of them taken; {} runs, {} of them taken\n", GetParam(), count.seeds, count.seeds_taken,
             count.runs, count.taken);
  EXPECT_GE(count.seeds, 12U) << "of " << GetParam();
  EXPECT_GE(count.seeds_taken, 4U) << "what is never taken is not checked";
  EXPECT_GE(count.seeds - count.seeds_taken, 4U) << "refusals are checked as well";
}

INSTANTIATE_TEST_SUITE_P(Each, FuzzReplay, ::testing::ValuesIn(names),
                         [](auto const& one) { return std::string(one.param); });

TEST(FuzzTargets, AreThoseThatAreReplayed) {
  std::vector<std::string_view> enlisted;
  for (auto const& target : targets()) enlisted.emplace_back(target.name);
  std::ranges::sort(enlisted);
  EXPECT_TRUE(std::ranges::equal(enlisted, names));
}

}  // namespace
}  // namespace unimem::fuzz
