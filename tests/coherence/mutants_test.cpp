#include "mutants.hpp"

#include "coherence/random_operations.hpp"
#include "random_cases.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <exception>
#include <iostream>
#include <optional>
#include <string>
#include <utility>

namespace unimem::detail {

Mutant active_mutant = Mutant::none;

}  // namespace unimem::detail

namespace unimem::testing {
namespace {

using detail::Mutant;

constexpr std::size_t limit = 100'000;  ///< operations within which a fault must be noticed
constexpr std::size_t readable = 8;     ///< operations that may be left of the run that shows it

struct Finding {
  std::size_t operations = 0;  ///< of the first run in which the model finds a difference
  RandomRun smallest;
  std::string what;
};

std::optional<Finding> find(Mutant mutant) {
  detail::active_mutant = mutant;
  std::optional<Finding> finding;
  auto const result = random_cases(limit / operations_per_run, [&] {
    auto run = *any_run();
    ShadowModel::Tally tally;
    try {
      run.carry_out(tally);
    } catch (std::exception const& violation) {
      auto const first = finding ? finding->operations : run.operations.size();
      finding = {first, std::move(run), violation.what()};
      throw;
    }
  });
  detail::active_mutant = Mutant::none;
  EXPECT_EQ(result.is<rc::detail::SuccessResult>(), !finding) << "RapidCheck gave up";
  return finding;
}

class CoherenceMutant : public ::testing::TestWithParam<detail::MutantText> {};

TEST_P(CoherenceMutant, IsNoticedByTheShadowModel) {
  auto const finding = find(GetParam().mutant);
  ASSERT_TRUE(finding.has_value()) << "a fault that " << GetParam().fault << " went unnoticed for " << limit
                                   << " operations";
  std::cout << GetParam().name << ": of " << finding->operations << " operations these, " << finding->what << ": "
            << finding->smallest << '\n';
  EXPECT_LE(finding->smallest.operations.size(), readable);
  RecordProperty("operations", std::to_string(finding->smallest.operations.size()));
}

INSTANTIATE_TEST_SUITE_P(Faults, CoherenceMutant, ::testing::ValuesIn(detail::all_mutants),
                         [](auto const& fault) { return std::string(fault.param.name); });

TEST(CoherenceMutants, WithoutAFaultNothingIsNoticed) {
  auto const finding = find(Mutant::none);
  EXPECT_FALSE(finding.has_value()) << finding->smallest << ": " << finding->what;
}

}  // namespace
}  // namespace unimem::testing
