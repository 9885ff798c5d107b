#include "stream/stream_conformance.hpp"

namespace unimem {
namespace {

using namespace std::chrono_literals;

Device& slow_sim() {
  SimOptions options;
  options.memory_bytes = std::size_t{16} << 20;
  options.latency = 200us;
  options.upload_bytes_per_second = 1e9;
  options.download_bytes_per_second = 1e9;
  return make_sim(options);
}

INSTANTIATE_TEST_SUITE_P(
    Devices, StreamConformance,
    ::testing::Values(StreamCase{"cpu", []() -> Device& { return device("cpu"); }},
                      StreamCase{"sim", []() -> Device& { return make_sim({.memory_bytes = std::size_t{64} << 20}); }},
                      StreamCase{"slow_sim", slow_sim}),
    stream_case_name);

}  // namespace
}  // namespace unimem
