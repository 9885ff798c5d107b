#include "device/standin_watch.hpp"
#include "kernel/options_conformance.hpp"

// Options of the source form under CUDA.

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, KernelOptions, ::testing::Values(std::string(first_gpu())));

}  // namespace
}  // namespace unimem
