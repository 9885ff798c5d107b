#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>

#include "pool/adaptor_conformance.hpp"
#include "pool/adaptors.hpp"
#include "pool/pool_home.hpp"
#include "pool/resource_conformance.hpp"

#include <vector>

// On the cpu device, whose memory is the host's wherever it is asked for, and on a discrete device, whose is not.

namespace unimem {
namespace {

std::vector<AdaptorHome> homes() {
  constexpr auto cpu = []() -> Device& { return device("cpu"); };
  constexpr auto sim = []() -> Device& { return make_sim({.memory_bytes = 128 * MiB}); };
  return {
      {{"cpu_host", cpu, Location::host, 16 * MiB}, Reach::ordinary},
      {{"cpu_device", cpu, Location::device, 16 * MiB}, Reach::ordinary},
      {{"cpu_pinned", cpu, Location::pinned, 256 * KiB}, Reach::host, true},
      {{"cpu_unified", cpu, Location::unified, 16 * MiB}, Reach::ordinary},
      {{"sim", sim, Location::device, 16 * MiB}, Reach::addresses},
  };
}

INSTANTIATE_TEST_SUITE_P(Homes, AdaptorConformance, ::testing::ValuesIn(serving_adaptors(homes())), adaptor_case_name);
INSTANTIATE_TEST_SUITE_P(Homes, ResourceConformance, ::testing::ValuesIn(serving_resources(homes())),
                         adaptor_case_name);
INSTANTIATE_TEST_SUITE_P(Homes, AdaptorRefusals, ::testing::ValuesIn(refused_adaptors(homes())), adaptor_case_name);
INSTANTIATE_TEST_SUITE_P(Homes, ResourceClaims, ::testing::ValuesIn(homes()), adaptor_home_name);

}  // namespace
}  // namespace unimem
