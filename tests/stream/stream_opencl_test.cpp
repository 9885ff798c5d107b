#include "stream/stream_conformance.hpp"

namespace unimem {
namespace {

/// The first OpenCL device, if there is one.
std::vector<StreamCase> opencl_devices() {
  for (Device& found : devices()) {
    if (found.backend() == Backend::opencl) {
      return {{"opencl", [&found]() -> Device& { return found; }}};
    }
  }
  return {};
}

TEST(OpenClStreams, HaveADeviceToRunOn) {
  if (!opencl_devices().empty()) return;
  for (auto const& missing : unavailable_backends()) {
    if (missing.backend == Backend::opencl) GTEST_SKIP() << missing.reason;
  }
  FAIL() << "OpenCL is neither there nor missing";
}

INSTANTIATE_TEST_SUITE_P(Devices, StreamConformance, ::testing::ValuesIn(opencl_devices()), stream_case_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StreamConformance);

}  // namespace
}  // namespace unimem
