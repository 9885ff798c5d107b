#include "stream/stream_conformance.hpp"

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(Devices, StreamConformance,
                         ::testing::Values(StreamCase{"opencl_0", []() -> Device& { return device("opencl:0"); }}),
                         stream_case_name);

}  // namespace
}  // namespace unimem
