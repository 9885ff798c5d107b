#include <unimem/device/discovery.hpp>

#include "device/cuda_fixture.hpp"
#include "device/device_conformance.hpp"

#include <stdexcept>

// The suite that every backend passes, on the CUDA backend over the stand-in driver.

namespace unimem {
namespace {

/// Work that begins and fails. A fault of the GPU itself would end the device with it.
Event fail(Queue& queue) {
  return queue.run_native([](void*) { throw std::runtime_error("as it was told to"); });
}

INSTANTIATE_TEST_SUITE_P(
    Cuda, DeviceConformance,
    ::testing::Values(DeviceCase{"plain", []() -> Device& { return device("cuda:0"); }, fail},
                      DeviceCase{"small", []() -> Device& { return device("cuda:1,memory=220MiB"); }, fail},
                      DeviceCase{"pooled", []() -> Device& { return device("cuda:1,allocator=async"); }, fail},
                      DeviceCase{"timed", []() -> Device& { return device("cuda:0,profile=1"); }, fail}),
    case_name);

}  // namespace
}  // namespace unimem
