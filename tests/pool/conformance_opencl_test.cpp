#include <unimem/device/discovery.hpp>

#include "pool/pool_conformance.hpp"

// Device memory that has no address, each block an object of the driver's.

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(OpenCl, PoolConformance,
                         ::testing::Values(PoolHome{"opencl", []() -> Device& { return device("opencl:0"); },
                                                    Location::device, 64 * MiB}),
                         [](auto const& home) { return home.param.name; });

}  // namespace
}  // namespace unimem
