#include <unimem/device/discovery.hpp>

#include "device/cuda_fixture.hpp"
#include "pool/no_such_memory.hpp"
#include "pool/pool_conformance.hpp"
#include "pool/pool_home.hpp"

// Every kind of memory that CUDA has, by its stand-in: pages of 2 MiB, allocations, page-locked and managed memory.

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Cuda, PoolConformance,
    ::testing::Values(
        PoolHome{"cuda_plain", []() -> Device& { return device(first_gpu("allocator=plain")); }, Location::device,
                 16 * MiB},
        PoolHome{"cuda_async", []() -> Device& { return device(first_gpu("allocator=async")); }, Location::device,
                 16 * MiB},
        PoolHome{"cuda_pages", []() -> Device& { return device(first_gpu("allocator=pages")); }, Location::device,
                 64 * MiB, PoolBacking::pages},
        PoolHome{"cuda_pinned", []() -> Device& { return device(first_gpu()); }, Location::pinned, 16 * MiB},
        // Managed memory that host and GPU use at the same time, which the stand-in has and not all hardware.
        PoolHome{"cuda_unified", []() -> Device& { return device(first_gpu()); }, Location::unified, 16 * MiB,
                 PoolBacking::automatic, nullptr, on_hardware}),
    [](auto const& home) { return home.param.name; });

INSTANTIATE_TEST_SUITE_P(Cuda, PoolsWhereThereIsNoSuchMemory,
                         ::testing::Values(Nowhere{"host", []() -> Device& { return device(first_gpu()); },
                                                   Location::host}),
                         [](auto const& nowhere) { return nowhere.param.name; });

}  // namespace
}  // namespace unimem
