#pragma once

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstddef>
#include <cstdlib>
#include <sstream>
#include <string>
#include <utility>

namespace unimem::testing {

/// Whether `property`, in which `*generator` is a value, holds in `cases` random cases: the same ones in every run,
/// unless RC_PARAMS has another `seed` or `max_success`. Of one that fails, RapidCheck looks for the smallest that
/// does.
template <typename Property>
[[nodiscard]] rc::detail::TestResult random_cases(std::size_t cases, Property&& property,
                                                  rc::detail::TestMetadata const& about = {}) {
  ::setenv("RC_PARAMS", "seed=2026", 0);  // or RapidCheck would choose one
  rc::detail::Configuration defaults;
  defaults.testParams.maxSuccess = static_cast<int>(cases);
  return rc::detail::checkTestable(std::forward<Property>(property), about,
                                   rc::detail::configFromString(std::getenv("RC_PARAMS"), defaults).testParams);
}

/// Fails the test with that smallest case. What of RC_PARAMS leads to it again is printed at the end of the program.
template <typename Property>
void expect_in_random_cases(std::size_t cases, Property&& property) {
  auto const& test = *::testing::UnitTest::GetInstance()->current_test_info();
  auto const name = std::string(test.test_suite_name()) + '/' + test.name();
  auto const result = random_cases(cases, std::forward<Property>(property), {name, name});
  std::ostringstream message;
  rc::detail::printResultMessage(result, message);
  EXPECT_TRUE(result.template is<rc::detail::SuccessResult>()) << message.str();
}

}  // namespace unimem::testing
