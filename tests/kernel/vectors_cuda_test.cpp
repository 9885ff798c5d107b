#include "device/standin_watch.hpp"
#include "kernel/vectors_conformance.hpp"

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, Vectors, ::testing::Values(std::string(first_gpu())));

}  // namespace
}  // namespace unimem
