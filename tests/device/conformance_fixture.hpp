#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/device.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace unimem {

/// A device to run the suite on, and what the suite cannot do through the interface.
struct DeviceCase {
  std::string name;  ///< letters, digits and underscores

  /// The device; asked for by every test, so a static or registered one.
  std::function<Device&()> device;

  /// Submits work that fails, and returns its event. Empty where a failure cannot be had on purpose.
  std::function<Event(Queue&)> fail;
};

inline std::ostream& operator<<(std::ostream& out, DeviceCase const& device) {
  return out << device.name;
}

/// The last argument of INSTANTIATE_TEST_SUITE_P.
inline std::string case_name(::testing::TestParamInfo<DeviceCase> const& info) {
  return info.param.name;
}

/// Device memory that is released when it goes out of scope. Work on it must have ended by then.
class Allocated {
 public:
  Allocated(Device& device, std::size_t bytes, Location location = Location::device)
      : device_(&device), location_(location), memory_(device.allocate(bytes, location)) {}
  Allocated(Allocated&& other) noexcept
      : device_(other.device_), location_(other.location_), memory_(std::exchange(other.memory_, {})) {}
  Allocated& operator=(Allocated&&) = delete;
  ~Allocated() {
    if (!memory_.empty()) device_->release(memory_, location_);
  }

  [[nodiscard]] DeviceMemory memory() const noexcept { return memory_; }
  [[nodiscard]] DeviceMemory window(std::size_t from, std::size_t count) const noexcept {
    return memory_.window(from, count);
  }

 private:
  Device* device_;
  Location location_;
  DeviceMemory memory_;
};

using Bytes = std::vector<std::byte>;

/// Sizes to try, one after the other.
using Sizes = std::initializer_list<std::size_t>;

/// Bytes that look like no others: reproducible from their seed.
[[nodiscard]] inline Bytes noise(std::size_t count, unsigned seed) {
  Bytes bytes(count);
  std::minstd_rand random{seed + 1};
  for (auto& byte : bytes) byte = static_cast<std::byte>(random() >> 8);
  return bytes;
}

[[nodiscard]] inline Bytes downloaded(Device& device, DeviceMemory memory) {
  Bytes bytes(memory.bytes);
  device.default_queue().download(bytes.data(), memory, memory.bytes).wait();
  return bytes;
}

[[nodiscard]] inline Bytes repeated(std::size_t count, unsigned char value) {
  return Bytes(count, std::byte{value});
}

/// What `failure` says, or empty for none.
[[nodiscard]] inline std::string message_of(std::exception_ptr const& failure) {
  if (!failure) return {};
  try {
    std::rethrow_exception(failure);
  } catch (std::exception const& error) {
    return error.what();
  }
}

class DeviceConformance : public ::testing::TestWithParam<DeviceCase> {
 protected:
  [[nodiscard]] static Device& device() { return GetParam().device(); }

  /// All of `memory`, read through a queue of its own.
  [[nodiscard]] static Bytes read(DeviceMemory memory) {
    Bytes bytes(memory.bytes);
    auto queue = device().create_queue();
    queue.download(bytes.data(), memory, memory.bytes).wait();
    return bytes;
  }

  static void write(DeviceMemory memory, Bytes const& bytes) {
    auto queue = device().create_queue();
    queue.upload(memory, bytes.data(), bytes.size()).wait();
  }
};

/// A kernel argument for memory, and for a scalar as the kernel's own type.
[[nodiscard]] inline KernelArgument memory_argument(DeviceMemory memory, bool writes = true) {
  KernelArgument argument;
  argument.memory = memory;
  argument.writes = writes;
  return argument;
}

template <class T>
[[nodiscard]] KernelArgument scalar_argument(T value) {
  KernelArgument argument;
  argument.kind = KernelArgument::Kind::scalar;
  auto const bytes = std::as_bytes(std::span{&value, 1});
  std::copy(bytes.begin(), bytes.end(), argument.scalar.begin());
  argument.scalar_bytes = sizeof value;
  return argument;
}

/// x[i] += amount over 32-bit words, in the portable source form and in the host form.
[[nodiscard]] inline ProgramSource add_kernel() {
  return {"add",
          R"(UNIMEM_KERNEL add(UNIMEM_BUFFER(unimem_u32, x), unimem_u32 amount) {
               UNIMEM_DATA(unimem_u32, x)[UNIMEM_ITEM_X] += amount;
             })",
          [](Range, std::size_t begin, std::size_t end, std::span<const HostArgument> arguments) {
            auto* const x = static_cast<std::uint32_t*>(arguments[0].data);
            auto const amount = *static_cast<std::uint32_t const*>(arguments[1].data);
            for (auto i = begin; i < end; ++i) x[i] += amount;
          }};
}

}  // namespace unimem
