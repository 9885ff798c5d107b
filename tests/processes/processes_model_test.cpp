#include "processes/processes_model.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string>

// Random operations of several processes on buffers that they share, beside a table of what every byte must be.

namespace unimem::testing {
namespace {

std::size_t number_from(char const* variable, std::size_t otherwise) {
  auto const* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::stoul(text);
}

class ProcessesModelTest : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(ProcessesModelTest, EveryProcessSeesWhatTheOthersWrote) {
  // Each is asked of a process by a pipe: so many take two minutes.
  auto const operations = std::min<std::size_t>(number_from("UNIMEM_TEST_OPERATIONS", 1'500), 100'000);
  auto const seed = number_from("UNIMEM_TEST_SEED", 0) + GetParam();
  try {
    ProcessesModel model(seed);
    while (model.counts().operations < operations) model.step();
    model.check_all();
    auto const& counts = model.counts();
    RecordProperty("operations", std::to_string(counts.operations));
    fmt::print(
        "seed {}: {} operations, {} waited for another process, {} of what was lost, {} processes killed, {} "
        "opened again\n",
        seed, counts.operations, counts.blocked, counts.lost, counts.killed, counts.reopened);
    EXPECT_GT(counts.blocked, 0U);
    EXPECT_GT(counts.killed, 0U);
    EXPECT_GT(counts.lost, 0U);
    EXPECT_GT(counts.checked, 0U);
  } catch (std::exception const& error) {
    FAIL() << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ProcessesModelTest, ::testing::Range<std::uint64_t>(1, 5));

}  // namespace
}  // namespace unimem::testing
