#include "coherence/random_operations.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

namespace unimem::testing {
namespace {

using ::testing::Gt;
using ::testing::Pair;

/// Operations per seed: 60,000 in all, unless UNIMEM_TEST_OPERATIONS asks for a long run.
std::size_t operations() {
  auto const* const wanted = std::getenv("UNIMEM_TEST_OPERATIONS");
  return wanted != nullptr ? std::stoull(wanted) : 15'000;
}

class ShadowModelRun : public ::testing::TestWithParam<unsigned> {};

TEST_P(ShadowModelRun, FindsNoDifferenceInRandomOperations) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  RandomOperations run(GetParam());
  for (std::size_t operation = 0; operation < operations(); ++operation) {
    try {
      run.step();
    } catch (std::exception const& violation) {
      FAIL() << "operation " << operation << ": " << violation.what();
    }
  }

  // A run in which these never happened would prove little.
  auto const tally = run.tally();
  for (auto const& [what, times] : tally) RecordProperty(std::string(what), std::to_string(times));
  for (auto const* const what : {"reads",
                                 "writes",
                                 "reads and writes",
                                 "marks",
                                 "marks in parts",
                                 "marks that overrule",
                                 "marks that bring bytes in",
                                 "conflicts",
                                 "copies",
                                 "copies across a gap",
                                 "fences",
                                 "adoptions",
                                 "adoptions taken back",
                                 "failures",
                                 "releases that save",
                                 "bytes lost",
                                 "lost bytes not read",
                                 "discards",
                                 "uninitialized",
                                 "host_only",
                                 "device_only",
                                 "synchronized",
                                 "host_dirty",
                                 "device_dirty",
                                 "mixed"}) {
    EXPECT_THAT(tally, ::testing::Contains(Pair(std::string_view(what), Gt(10U))));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ShadowModelRun, ::testing::Values(1U, 2U, 3U, 2026U));

}  // namespace
}  // namespace unimem::testing
