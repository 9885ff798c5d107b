#include <unimem/device/discovery.hpp>

#include "pool/adaptor_conformance.hpp"
#include "pool/adaptors.hpp"
#include "pool/pool_home.hpp"
#include "pool/resource_conformance.hpp"

#include <vector>

// Where memory has no address, and what adapts addresses says so; and where its address is the host's.

namespace unimem {
namespace {

std::vector<AdaptorHome> homes() {
  constexpr auto own = []() -> Device& { return device("opencl:0,zero_copy=0"); };
  constexpr auto shared = []() -> Device& { return device("opencl:0,zero_copy=1"); };
  return {
      {{"opencl", own, Location::device, 16 * MiB}, Reach::objects},
      {{"opencl_unified", shared, Location::unified, 16 * MiB, PoolBacking::automatic, nullptr, true}, Reach::host},
  };
}

INSTANTIATE_TEST_SUITE_P(OpenCl, AdaptorConformance, ::testing::ValuesIn(serving_adaptors(homes())), adaptor_case_name);
INSTANTIATE_TEST_SUITE_P(OpenCl, ResourceConformance, ::testing::ValuesIn(serving_resources(homes())),
                         adaptor_case_name);
INSTANTIATE_TEST_SUITE_P(OpenCl, AdaptorRefusals, ::testing::ValuesIn(refused_adaptors(homes())), adaptor_case_name);
INSTANTIATE_TEST_SUITE_P(OpenCl, ResourceClaims, ::testing::ValuesIn(homes()), adaptor_home_name);

}  // namespace
}  // namespace unimem
