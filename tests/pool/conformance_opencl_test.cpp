#include <unimem/device/discovery.hpp>

#include "pool/no_such_memory.hpp"
#include "pool/pool_conformance.hpp"
#include "pool/pool_home.hpp"

// Device memory that has no address, each block an object of the driver's; and memory that is the host's as well, by
// one address, where the driver has fine-grained shared virtual memory. Locked memory is the cpu device's.

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(
    OpenCl, PoolConformance,
    ::testing::Values(PoolHome{"opencl", []() -> Device& { return device("opencl:0"); }, Location::device, 64 * MiB},
                      PoolHome{"opencl_unified", []() -> Device& { return device("opencl:0,zero_copy=1"); },
                               Location::unified, 64 * MiB, PoolBacking::allocations, nullptr, true}),
    [](auto const& home) { return home.param.name; });

INSTANTIATE_TEST_SUITE_P(
    OpenCl, PoolsWhereThereIsNoSuchMemory,
    ::testing::Values(Nowhere{"host", []() -> Device& { return device("opencl:0"); }, Location::host},
                      Nowhere{"pinned", []() -> Device& { return device("opencl:0"); }, Location::pinned},
                      Nowhere{"unified", []() -> Device& { return device("opencl:0,zero_copy=0"); },
                              Location::unified}),
    [](auto const& nowhere) { return nowhere.param.name; });

}  // namespace
}  // namespace unimem
