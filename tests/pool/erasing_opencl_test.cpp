#include <unimem/device/discovery.hpp>

#include "pool/erased_blocks.hpp"

// Device memory that has no address: what is to be zero, the driver overwrites.

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(OpenCl, ErasedBlocks,
                         ::testing::Values(ErasingHome{"opencl", []() -> Device& { return device("opencl:0"); },
                                                       Location::device}),
                         [](auto const& home) { return home.param.name; });

}  // namespace
}  // namespace unimem
