#include "mutants.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <string_view>

// The tests beside this once more, for each fault of mutants.txt in a process of its own, in which one of them has to
// fail.

namespace unimem::detail {

/// That of the environment, where this is such a process.
Mutant active_mutant = [] {
  auto const* const wanted = std::getenv("UNIMEM_TEST_MUTANT");
  for (auto const& fault : all_mutants) {
    if (wanted != nullptr && fault.name == std::string_view(wanted)) return fault.mutant;
  }
  return Mutant::none;
}();

}  // namespace unimem::detail

namespace unimem {
namespace {

/// The first test that fails with the fault; empty if none does.
std::string first_failure(std::string_view fault) {
  auto const program = std::filesystem::read_symlink("/proc/self/exe").string();
  // Without those that take long and notice no more than others do, or than they do on another device.
  constexpr auto left_out = "*Mutants*:*Fuzz*:*CutOffAnywhere*:*FlippedBitInTheJournal*/cpu:*HeaderOfANpyOnce*/cpu";
  auto const command =
      fmt::format("UNIMEM_TEST_MUTANT={} timeout 60 '{}' --gtest_filter=-{} --gtest_fail_fast --gtest_output= 2>&1",
                  fault, program, left_out);
  auto* const run = ::popen(command.c_str(), "r");
  std::string line, failed, running;
  std::array<char, 512> text{};
  while (std::fgets(text.data(), text.size(), run) != nullptr) {
    line = text.data();
    if (line.starts_with("[ RUN")) running = line;
    if (line.starts_with("[  FAILED  ]") && failed.empty()) failed = line;
  }
  if (::pclose(run) == 0) return "";
  return failed.empty() ? running + "did not end" : failed;
}

class StreamMutants : public ::testing::TestWithParam<detail::MutantText> {};

TEST_P(StreamMutants, AreNoticed) {
  auto const failed = first_failure(GetParam().name);
  ASSERT_NE(failed, "") << "a fault that " << GetParam().fault << " went unnoticed";
  std::cout << GetParam().name << ": " << failed;
}

INSTANTIATE_TEST_SUITE_P(Faults, StreamMutants, ::testing::ValuesIn(detail::all_mutants),
                         [](auto const& fault) { return std::string(fault.param.name); });

TEST(NoMutants, NothingFails) {
  EXPECT_EQ(first_failure("none"), "");
}

}  // namespace
}  // namespace unimem
