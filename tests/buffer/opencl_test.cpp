#include "buffer/buffer_pool_conformance.hpp"
#include "buffer/driver_conformance.hpp"

namespace unimem::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(OpenCl, OnADriver, ::testing::Values(DriverCase{"opencl", "opencl:0", false}),
                         driver_case_name);

INSTANTIATE_TEST_SUITE_P(
    OpenCl, BufferPoolConformance,
    ::testing::Values(PoolingHome{"opencl", []() -> Device& { return device("opencl:0,zero_copy=0"); },
                                  Location::device},
                      PoolingHome{"opencl_unified", []() -> Device& { return device("opencl:0,zero_copy=1"); },
                                  Location::unified, true}),
    pooling_home_name);

}  // namespace
}  // namespace unimem::testing
