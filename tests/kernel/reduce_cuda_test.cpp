#include "device/standin_watch.hpp"
#include "kernel/reduce_conformance.hpp"

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, Reductions, ::testing::Values(std::string(first_gpu())));

}  // namespace
}  // namespace unimem
