#include "mutants.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <string_view>

// The tests of several processes once more, for each fault of mutants.txt in processes of their own, in which one of
// them has to fail.

namespace unimem {
namespace {

/// The first test that fails with the fault; empty if none does.
std::string first_failure(std::string_view fault) {
  auto const program = std::filesystem::read_symlink("/proc/self/exe").string();
  auto const command = fmt::format(
      "UNIMEM_TEST_MUTANT={} UNIMEM_TEST_OPERATIONS=600 timeout --signal=KILL {} '{}' "
      "--gtest_filter=-*Mutants*:*ForWantOf* "
      "--gtest_fail_fast --gtest_output= 2>&1",
      fault, fault == "none" ? 120 : 20, program);
  auto* const run = ::popen(command.c_str(), "r");
  std::string failed, running;
  std::array<char, 512> text{};
  while (std::fgets(text.data(), text.size(), run) != nullptr) {
    std::string const line = text.data();
    if (line.starts_with("[ RUN")) running = line;
    if (line.starts_with("[  FAILED  ]") && failed.empty()) failed = line;
  }
  if (::pclose(run) == 0) return "";
  return failed.empty() ? running + "did not end" : failed;
}

/// With a fault a test may wait for ever: its process ends six seconds after the test has begun.
class EndOfPatience : public ::testing::EmptyTestEventListener {
 public:
  void OnTestStart(::testing::TestInfo const& /*test*/) override { ::alarm(6); }
};

[[maybe_unused]] bool const patience_ends = [] {
  auto const* const fault = std::getenv("UNIMEM_TEST_MUTANT");
  if (fault == nullptr || std::string_view(fault) == "none") return false;
  ::testing::UnitTest::GetInstance()->listeners().Append(new EndOfPatience);
  return true;
}();

class ProcessesMutants : public ::testing::TestWithParam<detail::MutantText> {};

TEST_P(ProcessesMutants, AreNoticed) {
  auto const failed = first_failure(GetParam().name);
  ASSERT_NE(failed, "") << "a fault that " << GetParam().fault << " went unnoticed";
  std::cout << GetParam().name << ": " << failed;
}

INSTANTIATE_TEST_SUITE_P(Faults, ProcessesMutants, ::testing::ValuesIn(detail::all_mutants),
                         [](auto const& fault) { return std::string(fault.param.name); });

TEST(NoMutants, NothingFails) {
  EXPECT_EQ(first_failure("none"), "");
}

}  // namespace
}  // namespace unimem
