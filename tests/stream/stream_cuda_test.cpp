#include "device/cuda_fixture.hpp"
#include "stream/known_answer_conformance.hpp"
#include "stream/stream_conformance.hpp"

// Every kernel of the library as CUDA's prelude makes it, on the CUDA backend.

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(Devices, StreamConformance,
                         ::testing::Values(StreamCase{"cuda", []() -> Device& { return device(first_gpu()); }}),
                         stream_case_name);
INSTANTIATE_TEST_SUITE_P(Devices, KnownAnswerConformance,
                         ::testing::Values(StreamCase{"cuda", []() -> Device& { return device(first_gpu()); }}),
                         stream_case_name);

}  // namespace
}  // namespace unimem
