#include "kernel/graph_conformance.hpp"

// Graphs under OpenCL, whose launches are submitted one by one.

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(OpenCl, Graphs, ::testing::Values(GraphCase{"opencl", "opencl:0"}), graph_case_name);

}  // namespace
}  // namespace unimem
