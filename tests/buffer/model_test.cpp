#include "buffer/model.hpp"

#include <unimem/core/environment.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <iostream>
#include <string>

namespace unimem::testing {
namespace {

/// Operations per seed, unless UNIMEM_TEST_OPERATIONS asks for another number.
std::size_t operations() {
  auto const wanted = environment("UNIMEM_TEST_OPERATIONS");
  return wanted ? std::stoull(*wanted) : 4'000;
}

class BufferModelRun : public ::testing::TestWithParam<unsigned> {};

TEST_P(BufferModelRun, EveryByteIsWhatTheWorkThatSucceededLeft) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  auto const began = std::chrono::steady_clock::now();
  Model model({.seed = GetParam()});
  try {
    for (std::size_t operation = 0; operation < operations(); ++operation) model.step();
    model.finish();
  } catch (Discrepancy const& difference) {
    FAIL() << difference.what();
  }
  std::chrono::duration<double> const took = std::chrono::steady_clock::now() - began;
  std::cout << "seed " << GetParam() << ": " << static_cast<double>(operations()) / took.count()
            << " operations per second\n";

  // A run in which these never happened would prove little.
  for (auto const& [what, times] : model.tally()) RecordProperty(what, std::to_string(times));
  if (operations() < 4'000) return;
  for (auto const* const what : {"launch", "copy", "resize", "map", "evicted", "failed later", "threw", "lost"}) {
    auto const found = model.tally().find(what);
    EXPECT_TRUE(found != model.tally().end() && found->second > 0) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, BufferModelRun, ::testing::Values(1U, 2U, 3U, 2026U, 2027U));

}  // namespace
}  // namespace unimem::testing
