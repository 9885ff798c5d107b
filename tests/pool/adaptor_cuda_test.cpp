#include <unimem/device/discovery.hpp>

#include "device/cuda_fixture.hpp"
#include "pool/adaptor_conformance.hpp"
#include "pool/adaptors.hpp"
#include "pool/pool_home.hpp"
#include "pool/resource_conformance.hpp"

#include <vector>

// On every kind of memory that CUDA has, by its stand-in. What a resource does with streams: cccl_test.cpp.

namespace unimem {
namespace {

std::vector<AdaptorHome> homes() {
  constexpr auto plain = []() -> Device& { return device(first_gpu("allocator=plain")); };
  constexpr auto async = []() -> Device& { return device(first_gpu("allocator=async")); };
  constexpr auto pages = []() -> Device& { return device(first_gpu("allocator=pages")); };
  constexpr auto gpu = []() -> Device& { return device(first_gpu()); };
  return {
      {{"cuda_plain", plain, Location::device, 16 * MiB}, Reach::addresses, true},
      {{"cuda_async", async, Location::device, 16 * MiB}, Reach::addresses, true},
      {{"cuda_pages", pages, Location::device, 64 * MiB}, Reach::addresses, true},
      {{"cuda_pinned", gpu, Location::pinned, 16 * MiB}, Reach::host, true},
      // Not all hardware has it.
      {{"cuda_unified", gpu, Location::unified, 16 * MiB, PoolBacking::automatic, nullptr, on_hardware},
       Reach::host,
       true},
  };
}

INSTANTIATE_TEST_SUITE_P(Cuda, AdaptorConformance, ::testing::ValuesIn(serving_adaptors(homes())), adaptor_case_name);
INSTANTIATE_TEST_SUITE_P(Cuda, ResourceConformance, ::testing::ValuesIn(serving_resources(homes())), adaptor_case_name);
INSTANTIATE_TEST_SUITE_P(Cuda, AdaptorRefusals, ::testing::ValuesIn(refused_adaptors(homes())), adaptor_case_name);
INSTANTIATE_TEST_SUITE_P(Cuda, ResourceClaims, ::testing::ValuesIn(homes()), adaptor_home_name);

}  // namespace
}  // namespace unimem
