#include "kernel/reduce_conformance.hpp"

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(OpenCl, Reductions, ::testing::Values("opencl:0"));

}  // namespace
}  // namespace unimem
