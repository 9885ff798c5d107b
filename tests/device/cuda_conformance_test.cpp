#include <unimem/device/discovery.hpp>

#include "device/cuda_fixture.hpp"
#include "device/device_conformance.hpp"

#include <stdexcept>

// The suite that every backend passes, on the CUDA backend. Parts of it take all memory there is, to the byte: what
// hardware has is never free to the last one, so there the library's own limit is met.

namespace unimem {
namespace {

/// Work that begins and fails. A fault of the GPU itself would end the device with it.
Event fail(Queue& queue) {
  return queue.run_native([](void*) { throw std::runtime_error("as it was told to"); });
}

Device& whole_gpu(std::string const& options) {
  auto const limit = on_hardware ? std::string("memory=256MiB") : std::string();
  return device(first_gpu(limit.empty() || options.empty() ? limit + options : limit + "," + options));
}

INSTANTIATE_TEST_SUITE_P(
    Cuda, DeviceConformance,
    ::testing::Values(DeviceCase{"plain", []() -> Device& { return whole_gpu(""); }, fail},
                      DeviceCase{"small", []() -> Device& { return device(second_gpu("memory=220MiB")); }, fail},
                      DeviceCase{"pooled",
                                 []() -> Device& {
                                   return device(
                                       second_gpu(on_hardware ? "allocator=async,memory=250MiB" : "allocator=async"));
                                 },
                                 fail},
                      DeviceCase{"timed", []() -> Device& { return whole_gpu("profile=1"); }, fail}),
    case_name);

}  // namespace
}  // namespace unimem
