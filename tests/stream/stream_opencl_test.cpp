#include <unimem/core/error.hpp>

#include "stream/stream_conformance.hpp"

#include <string>
#include <vector>

namespace unimem {
namespace {

/// The first OpenCL device, if there is one, as it is and with the host's memory for its own, if it can.
std::vector<StreamCase> opencl_devices() {
  std::vector<StreamCase> cases;
  for (Device& found : devices()) {
    if (found.backend() != Backend::opencl) continue;
    cases.push_back({"opencl", [&found]() -> Device& { return found; }});
    try {
      auto& shared = device(std::string(found.id()) + ",zero_copy=1");
      cases.push_back({"opencl_shared", [&shared]() -> Device& { return shared; }});
    } catch (UnsupportedOperation const&) {  // NOLINT(bugprone-empty-catch): most discrete devices cannot
    }
    break;
  }
  return cases;
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
