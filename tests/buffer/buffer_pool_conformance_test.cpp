#include "buffer/buffer_pool_conformance.hpp"

// On the cpu device, where a buffer is in the host's memory alone, and on a discrete one. Drivers: opencl_test.cpp and
// cuda_test.cpp.

namespace unimem::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Homes, BufferPoolConformance,
    ::testing::Values(PoolingHome{"cpu", []() -> Device& { return device("cpu"); }, Location::host},
                      PoolingHome{"sim", []() -> Device& { return make_sim({.memory_bytes = std::size_t{64} << 20}); },
                                  Location::device}),
    pooling_home_name);

}  // namespace
}  // namespace unimem::testing
