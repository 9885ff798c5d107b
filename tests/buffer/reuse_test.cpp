#include "buffer/reuse.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace unimem::testing {
namespace {

TEST(Reuse, BlocksRecycledByTwoSlowQueuesKeepEveryPattern) {
  Reuse reuse;
  EXPECT_EQ(reuse.run(20), std::nullopt);
  auto const left = reuse.manager().statistics();
  EXPECT_EQ(left.active_bytes, 0U);
  std::uint64_t hits = 0;
  for (auto const& usage : left.pools) hits += usage.pool.pool_hits;
  EXPECT_GT(hits, 20U) << "blocks were recycled at all";
}

}  // namespace
}  // namespace unimem::testing
