#include "kernel/eviction_model.hpp"

#include <unimem/core/detail/environment.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <tuple>

namespace unimem::testing {
namespace {

/// Operations per case, unless UNIMEM_TEST_OPERATIONS asks for another number: fewer where each takes twenty times as
/// long and but one thread makes them.
std::size_t operations() {
  constexpr std::size_t by_itself = 400;
  auto const wanted = environment("UNIMEM_TEST_OPERATIONS");
  return wanted ? std::stoull(*wanted) : by_itself;
}

void run(EvictionModel::Options const& options) {
  EvictionModel model(options);
  try {
    for (std::size_t i = 0; i < operations(); ++i) model.step();
    model.finish();
  } catch (std::logic_error const& difference) {
    FAIL() << difference.what();
  }
  for (auto const& [what, times] : model.tally()) ::testing::Test::RecordProperty(what, std::to_string(times));
  // A run in which nobody had to go would prove little.
  auto const statistics = model.statistics();
  ::testing::Test::RecordProperty("reclaims", std::to_string(statistics.reclaims));
  if (options.oversubscription >= 2) {
    EXPECT_GT(statistics.reclaims, operations() / 20);
  }
  EXPECT_EQ(statistics.failed_reclaims, 0U);
  EXPECT_EQ(model.refused_too_much(), "");
}

class EvictionModelRun : public ::testing::TestWithParam<std::tuple<unsigned, double, PoolBacking>> {};

TEST_P(EvictionModelRun, KeepsEveryByteAndLimit) {
  auto const [seed, oversubscription, backing] = GetParam();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  auto& one = make_sim({.memory_bytes = std::size_t{64} << 20});
  auto& other = make_sim({.memory_bytes = std::size_t{64} << 20});
  // Pages are whole: of a megabyte the ends of a few blocks would be much.
  auto const limit = std::size_t{backing == PoolBacking::pages ? 4U : 1U} << 20;
  run({.seed = seed,
       .devices = {&one, &other},
       .limit = limit,
       .oversubscription = oversubscription,
       .backing = backing});
}

INSTANTIATE_TEST_SUITE_P(Cases, EvictionModelRun,
                         ::testing::Combine(::testing::Values(1U, 2026U), ::testing::Values(0.25, 1.0, 2.0, 4.0),
                                            ::testing::Values(PoolBacking::allocations, PoolBacking::pages)));

}  // namespace
}  // namespace unimem::testing
