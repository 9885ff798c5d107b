#include "buffer/driver_conformance.hpp"

namespace unimem::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(OpenCl, OnADriver, ::testing::Values(DriverCase{"opencl", "opencl:0", false}),
                         driver_case_name);

}  // namespace
}  // namespace unimem::testing
