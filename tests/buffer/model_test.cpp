#include "buffer/model.hpp"

#include <unimem/core/detail/environment.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <string>

namespace unimem::testing {
namespace {

/// Operations per seed, unless UNIMEM_TEST_OPERATIONS asks for another number.
std::size_t operations() {
  auto const wanted = environment("UNIMEM_TEST_OPERATIONS");
  return wanted ? std::stoull(*wanted) : 400;
}

struct Run {
  unsigned seed;
  bool spills = false;
  std::size_t device_limit = 0;
};

void PrintTo(Run const& run, std::ostream* out) {
  *out << "seed " << run.seed << (run.spills ? " with files" : "") << (run.device_limit != 0 ? " in windows" : "");
}

class BufferModelRun : public ::testing::TestWithParam<Run> {
 protected:
  /// Runs in which these never happened would prove little. Of all seeds together: when work fails under one, and what
  /// is lost with it, is for the machine's threads to say.
  static void TearDownTestSuite() {
    if (done < 20'000) return;
    for (auto const* const what : {"launch", "copy", "resize", "map", "evicted", "spilled", "restored", "in a window",
                                   "failed later", "threw", "lost"}) {
      EXPECT_GT(happened[what], 0U) << what;
    }
  }

  static inline std::size_t done = 0;
  static inline std::map<std::string, std::uint64_t, std::less<>> happened;
};

TEST_P(BufferModelRun, EveryByteIsWhatSuccessfulWorkLeft) {
  auto const [seed, spills, device_limit] = GetParam();
  SCOPED_TRACE(::testing::PrintToString(GetParam()));
  auto const began = std::chrono::steady_clock::now();
  Model model({.seed = seed, .spills = spills, .device_limit = device_limit});
  try {
    for (std::size_t operation = 0; operation < operations(); ++operation) model.step();
    model.finish();
  } catch (Discrepancy const& difference) {
    FAIL() << difference.what();
  }
  std::chrono::duration<double> const took = std::chrono::steady_clock::now() - began;
  std::cout << "seed " << seed << ": " << static_cast<double>(operations()) / took.count()
            << " operations per second\n";

  done += operations();
  for (auto const& [what, times] : model.tally()) {
    RecordProperty(what, std::to_string(times));
    happened[what] += times;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, BufferModelRun,
                         ::testing::Values(Run{1}, Run{2}, Run{3}, Run{2026}, Run{2027}, Run{1, true}, Run{2, true},
                                           Run{2028, true}, Run{1, false, 1024}, Run{2, true, 1024},
                                           Run{2029, false, 2048}));

}  // namespace
}  // namespace unimem::testing
