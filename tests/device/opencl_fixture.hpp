#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/device.hpp>

#include "device/backends.hpp"
#include "device/gate.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace unimem {

/// What the OpenCL of this machine has: looked for once per program.
inline detail::FoundDevices const& found_opencl() {
  static auto const found = detail::find_opencl_devices();
  return found;
}

/// Devices live as long as the process: kept where leak checkers see an owner, and never destroyed.
inline Device& kept(std::unique_ptr<Device> device) {
  static auto& all = *new std::vector<std::unique_ptr<Device>>;
  all.push_back(std::move(device));
  return *all.back();
}

/// A test on opencl:0, skipped with the reason where there is none. Memory taken through it is given back at the end.
class OpenClTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (found_opencl().devices.empty()) GTEST_SKIP() << found_opencl().reason;
  }
  void TearDown() override {
    for (auto const& [owner, memory] : taken_) owner->release(memory, Location::device);
  }

  [[nodiscard]] static Device& device() { return *found_opencl().devices.front(); }

  /// Memory of `owner` that this test gives back.
  [[nodiscard]] DeviceMemory take(Device& owner, std::size_t bytes) {
    auto const memory = owner.allocate(bytes, Location::device);
    taken_.emplace_back(&owner, memory);
    return memory;
  }

  /// Device memory that holds these values.
  template <class T>
  [[nodiscard]] DeviceMemory memory_of(std::vector<T> const& values) {
    auto const memory = take(device(), values.size() * sizeof(T));
    device().default_queue().upload(memory, values.data(), memory.bytes).wait();
    return memory;
  }

  /// What device memory holds now, after the default queue's work.
  template <class T>
  [[nodiscard]] static std::vector<T> values_in(DeviceMemory memory) {
    std::vector<T> values(memory.bytes / sizeof(T));
    device().default_queue().download(values.data(), memory, memory.bytes).wait();
    return values;
  }

 private:
  std::vector<std::pair<Device*, DeviceMemory>> taken_;
};

inline KernelArgument argument(DeviceMemory memory) {
  KernelArgument result;
  result.memory = memory;
  return result;
}

template <class T>
KernelArgument scalar(T value) {
  KernelArgument result;
  result.kind = KernelArgument::Kind::scalar;
  std::memcpy(result.scalar.data(), &value, sizeof value);
  result.scalar_bytes = sizeof value;
  return result;
}

inline std::shared_ptr<Program const> compile(Device& device, std::string name, std::string source) {
  return device.compile({std::move(name), std::move(source), {}});
}

}  // namespace unimem
