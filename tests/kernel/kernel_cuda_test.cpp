#include "device/standin_watch.hpp"
#include "kernel/source_conformance.hpp"

// The source form under CUDA.

namespace unimem {
namespace {

constexpr auto twice = R"(
    extern "C" __global__ void twice(float const* in, float* out, unsigned long count) {
      unsigned long const i = blockIdx.x * (unsigned long)blockDim.x + threadIdx.x;
      if (i < count) out[i] = 2 * in[i];
    })";

INSTANTIATE_TEST_SUITE_P(Cuda, SourceKernels,
                         ::testing::Values(SourceCase{"plain", first_gpu(), twice},
                                           SourceCase{"pooled", second_gpu("allocator=async"), twice}),
                         source_case_name);

}  // namespace
}  // namespace unimem
