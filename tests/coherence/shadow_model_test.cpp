#include "coherence/random_operations.hpp"
#include "random_cases.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace unimem::testing {
namespace {

using ::testing::Gt;
using ::testing::Pair;

/// Operations carried out: 60,000, unless UNIMEM_TEST_OPERATIONS asks for a long run, of four times as many.
std::size_t operations() {
  auto const* const wanted = std::getenv("UNIMEM_TEST_OPERATIONS");
  return 4 * (wanted != nullptr ? std::stoull(wanted) : 15'000);
}

TEST(ShadowModelRun, FindsNoDifferenceInRandomOperations) {
  ShadowModel::Tally tally;
  expect_in_random_cases(operations() / operations_per_run, [&] { (*any_run()).carry_out(tally); });

  // A run in which these never happened would prove little.
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
                                 "storage gone in part",
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

}  // namespace
}  // namespace unimem::testing
