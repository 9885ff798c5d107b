#include "kernel/vectors_conformance.hpp"

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(OpenCl, Vectors, ::testing::Values("opencl:0"));

}  // namespace
}  // namespace unimem
