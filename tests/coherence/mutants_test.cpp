#include "mutants.hpp"

#include "coherence/random_operations.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <exception>
#include <iostream>
#include <optional>
#include <string>

namespace unimem::detail {

Mutant active_mutant = Mutant::none;

}  // namespace unimem::detail

namespace unimem::testing {
namespace {

using detail::Mutant;

constexpr std::size_t limit = 100'000;  ///< operations within which a fault must be noticed
constexpr unsigned seed = 2026;

struct Finding {
  std::size_t operation = 0;
  std::string what;
};

/// The first difference that the model finds while `mutant` is switched on.
std::optional<Finding> first_finding(Mutant mutant) {
  detail::active_mutant = mutant;
  RandomOperations run(seed);
  std::optional<Finding> finding;
  for (std::size_t operation = 1; operation <= limit && !finding; ++operation) {
    try {
      run.step();
    } catch (std::exception const& violation) {
      finding = {operation, violation.what()};
    }
  }
  detail::active_mutant = Mutant::none;
  return finding;
}

class CoherenceMutant : public ::testing::TestWithParam<detail::MutantText> {};

TEST_P(CoherenceMutant, IsNoticedByTheShadowModel) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  auto const finding = first_finding(GetParam().mutant);
  ASSERT_TRUE(finding.has_value()) << "a fault that " << GetParam().fault << " went unnoticed for " << limit
                                   << " operations";
  std::cout << GetParam().name << ": operation " << finding->operation << ", " << finding->what << '\n';
  RecordProperty("operations", std::to_string(finding->operation));
}

INSTANTIATE_TEST_SUITE_P(Faults, CoherenceMutant, ::testing::ValuesIn(detail::all_mutants),
                         [](auto const& fault) { return std::string(fault.param.name); });

TEST(CoherenceMutants, WithoutAFaultNothingIsNoticed) {
  auto const finding = first_finding(Mutant::none);
  EXPECT_FALSE(finding.has_value()) << "seed " << seed << ", operation " << finding->operation << ": " << finding->what;
}

}  // namespace
}  // namespace unimem::testing
