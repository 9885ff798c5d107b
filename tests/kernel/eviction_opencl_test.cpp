#include "kernel/eviction_model.hpp"

#include <unimem/core/detail/environment.hpp>
#include <unimem/device/discovery.hpp>

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace unimem::testing {
namespace {

/// PoCL gives more than there is, so that the limit is ours alone to keep; and in its buffers nothing is where the
/// host could see it.
TEST(EvictionOnOpenCl, KeepsEveryByteAndLimit) {
  auto const wanted = environment("UNIMEM_TEST_OPERATIONS");
  auto const operations = wanted ? std::stoull(*wanted) : 100;
  for (auto const oversubscription : {0.25, 2.0, 4.0}) {
    EvictionModel model({.seed = 11,
                         .devices = {&device("opencl:0,zero_copy=0"), &device("opencl:0,zero_copy=0")},
                         .oversubscription = oversubscription});
    try {
      for (std::size_t i = 0; i < operations; ++i) model.step();
      model.finish();
    } catch (std::logic_error const& difference) {
      FAIL() << difference.what();
    }
    EXPECT_EQ(model.refused_too_much(), "");
    if (oversubscription >= 2) {
      EXPECT_GT(model.statistics().reclaims, operations / 20);
    }
  }
}

}  // namespace
}  // namespace unimem::testing
