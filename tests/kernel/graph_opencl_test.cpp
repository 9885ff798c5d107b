#include "kernel/graph_conformance.hpp"

// Graphs under OpenCL, whose launches are one piece of work of one call each.

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(OpenCl, Graphs, ::testing::Values(GraphCase{"opencl", "opencl:0"}), graph_case_name);

}  // namespace
}  // namespace unimem
