#include "kernel/reduce_conformance.hpp"

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(Host, Reductions, ::testing::Values("cpu", "sim"));

}  // namespace
}  // namespace unimem
