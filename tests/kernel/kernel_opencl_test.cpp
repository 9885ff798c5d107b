#include "kernel/source_conformance.hpp"

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(OpenCl, SourceKernels, ::testing::Values(SourceCase{"opencl", "opencl:0", R"(
    __kernel void twice(__global const float* in, __global float* out, ulong count) {
      size_t i = get_global_id(0);
      if (i < count) out[i] = 2 * in[i];
    })"}),
                         source_case_name);

}  // namespace
}  // namespace unimem
