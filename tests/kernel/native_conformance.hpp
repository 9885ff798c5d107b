#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/kernel/native.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <ostream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace unimem {

/// A device with queues of a driver's own, and the one thing that the suite puts into them behind the library's back.
struct NativeCase {
  std::string name;    ///< letters, digits and underscores
  std::string device;  ///< as `device()` takes it
  bool has_addresses = true;
  /// Sets every byte of `memory` in the driver's queue, asynchronously, by the driver's own call.
  std::function<void(void* queue, DeviceMemory memory, unsigned char value)> set;
};

inline std::ostream& operator<<(std::ostream& out, NativeCase const& device) {
  return out << device.name;
}

/// The last argument of INSTANTIATE_TEST_SUITE_P.
inline std::string native_case_name(::testing::TestParamInfo<NativeCase> const& info) {
  return info.param.name;
}

/// What `with_native` promises on every device whose queues are a driver's. The counts are those of a discrete device.
class NativeWork : public ::testing::TestWithParam<NativeCase> {
 protected:
  [[nodiscard]] UnifiedBuffer<std::uint32_t> counting(std::size_t count) {
    BufferOptions options;
    options.manager = &manager;
    options.device = &on;
    UnifiedBuffer<std::uint32_t> buffer(count, options);
    buffer.copy_from(values(count));
    return buffer;
  }
  [[nodiscard]] static std::vector<std::uint32_t> values(std::size_t count) {
    std::vector<std::uint32_t> result(count);
    std::iota(result.begin(), result.end(), 0U);
    return result;
  }

  /// What the device holds, read behind the buffer's back.
  [[nodiscard]] std::vector<std::uint32_t> on_device(UnifiedBuffer<std::uint32_t>& buffer) {
    auto const lease = buffer.device_view(on);
    std::vector<std::uint32_t> result(buffer.size());
    on.create_queue().download(result.data(), lease.native(), buffer.size_bytes()).wait();
    return result;
  }

  static void set(void* native, DeviceMemory memory, unsigned char value) { GetParam().set(native, memory, value); }

  static constexpr std::uint32_t ones = 0x01010101, sevens = 0x07070707;

  Device& on = device(GetParam().device);
  Queue queue = on.create_queue();
  MemoryManager manager;
};

TEST_P(NativeWork, IsTheQueuesWork) {
  auto x = counting(1000);
  auto const event = with_native(
      queue, [](void* native, DeviceMemory memory) { set(native, memory.window(0, 400), 1); }, readwrite(x));
  EXPECT_EQ(event.queue_id(), queue.id());
  EXPECT_EQ(x.state(), BufferState::device_dirty);
  auto expected = values(1000);
  std::fill_n(expected.begin(), 100, ones);
  EXPECT_EQ(x.to_vector(), expected);
  EXPECT_EQ(on_device(x), expected);
  EXPECT_EQ(x.statistics().host_to_device_bytes, 4000U);
  EXPECT_EQ(x.statistics().device_to_host_bytes, 4000U);
}

TEST_P(NativeWork, CopiesOnlyWhatIsRead) {
  auto x = counting(1000), y = counting(1000);
  with_native(
      queue,
      [](void* native, DeviceMemory whole, DeviceMemory window) {
        EXPECT_EQ(whole.bytes, 4000U);
        EXPECT_EQ(window.bytes, 40U);
        set(native, whole, 7);
        set(native, window, 1);
      },
      write(x), readwrite(y, 20, 10));
  EXPECT_THAT(x.to_vector(), ::testing::Each(sevens));
  auto expected = values(1000);
  std::fill_n(expected.begin() + 20, 10, ones);
  EXPECT_EQ(y.to_vector(), expected);
  EXPECT_EQ(x.statistics().host_to_device_bytes, 0U);
  EXPECT_EQ(y.statistics().host_to_device_bytes, 40U);
  EXPECT_EQ(y.statistics().device_to_host_bytes, 40U);
}

TEST_P(NativeWork, ReadOperandsStaySynchronized) {
  auto x = counting(100), y = counting(100);
  bool called = false;
  with_native(
      queue,
      [&](void* native, DeviceMemory from, DeviceMemory to) {
        called = from.bytes == 400;
        set(native, to, 1);
      },
      read(x), write(y))
      .wait();
  EXPECT_TRUE(called) << "at once, on the calling thread";
  EXPECT_EQ(x.state(), BufferState::synchronized);
  EXPECT_EQ(x.to_vector(), values(100));
  EXPECT_THAT(y.to_vector(), ::testing::Each(ones));
}

TEST_P(NativeWork, IsOrderedAmongLaunches) {
  auto const add = Kernel("add").source(R"(UNIMEM_KERNEL add(UNIMEM_BUFFER(unimem_u32, x), unimem_u32 amount) {
    UNIMEM_DATA(unimem_u32, x)[UNIMEM_ITEM_X] += amount; })");
  auto x = counting(1000);
  auto other = on.create_queue();
  for (unsigned round = 1; round <= 20; ++round) {
    launch(other, add, Range{1000}, readwrite(x), round);
    with_native(queue, [](void* native, DeviceMemory memory) { set(native, memory.window(0, 2000), 1); }, readwrite(x));
    launch(other, add, Range{1000}, readwrite(x), round);
  }
  auto expected = values(1000);
  for (std::size_t i = 0; i < 1000; ++i) expected[i] = i < 500 ? ones + 20 : expected[i] + 20 * 21;
  EXPECT_EQ(x.to_vector(), expected);
}

TEST_P(NativeWork, AThrowingCallableHasNotRun) {
  auto x = counting(100), y = counting(100);
  x.sync_to_device();
  try {
    with_native(
        queue,
        [](void* native, DeviceMemory first, DeviceMemory second) {
          set(native, first, 7);
          set(native, second.window(0, 40), 7);
          throw std::domain_error("no more of this");
        },
        readwrite(x), readwrite(y));
    FAIL() << "nothing was thrown";
  } catch (std::domain_error const& error) {
    EXPECT_STREQ(error.what(), "no more of this");
  }
  // It has been told, once; the last good copy is there.
  for (auto* const buffer : {&x, &y}) {
    EXPECT_EQ(buffer->to_vector(), values(100));
    EXPECT_EQ(on_device(*buffer), values(100));
    buffer->core().validate();
  }
  // And the queue goes on.
  with_native(queue, [](void* native, DeviceMemory memory) { set(native, memory, 1); }, write(x)).wait();
  EXPECT_THAT(x.to_vector(), ::testing::Each(ones));
}

TEST_P(NativeWork, RuinedSoleCopiesAreLost) {
  auto x = counting(100);
  x.sync_to_device();
  x.release_host();
  EXPECT_THROW(with_native(
                   queue,
                   [](void* native, DeviceMemory memory) {
                     set(native, memory, 7);
                     throw std::domain_error("half-way");
                   },
                   readwrite(x)),
               std::domain_error);
  EXPECT_THROW(std::ignore = x.host_view(), DataLost);
  x.fill(3);
  EXPECT_THAT(x.to_vector(), ::testing::Each(3U));
}

TEST_P(NativeWork, WrongOperandsAreRefused) {
  auto x = counting(100);
  auto const state = x.state();
  bool called = false;
  auto const refusal = [&](auto const& call) -> std::string {
    try {
      call();
    } catch (KernelError const& error) {
      return error.reason;
    }
    return {};
  };
  EXPECT_EQ(refusal([&] { with_native(queue, [&](void*, double*) { called = true; }, readwrite(x)); }),
            "argument 1 has elements of another type than the pointer it is taken by");
  EXPECT_EQ(refusal([&] { with_native(queue, [&](void*, std::uint32_t*) { called = true; }, read(x)); }),
            "argument 1 is passed as read, and taken by a pointer that may write: pass readwrite, or take a pointer to "
            "const");
  EXPECT_EQ(refusal([&] { with_native(queue, [&](void*, std::uint32_t const*) { called = true; }, write(x)); }),
            "argument 1 is passed as write, and taken by a pointer to const, which cannot");
  EXPECT_EQ(
      refusal([&] { run_native(queue, {}, std::vector{NativeParameter{}}, [&](auto, auto, auto) { called = true; }); }),
      "given 0 buffers, takes 1");
  EXPECT_FALSE(called);
  EXPECT_EQ(x.state(), state);
  EXPECT_EQ(x.statistics().host_to_device_copies, 0U);
}

TEST_P(NativeWork, PointersNeedMemoryWithAddresses) {
  auto x = counting(100);
  BufferOptions options;
  options.manager = &manager;
  options.device = &on;
  UnifiedBuffer<std::byte> bytes(400, options);
  bytes.fill(std::byte{2});
  auto const pointers = [&] {
    with_native(
        queue,
        [](void* native, std::uint32_t* element, void const* anything, float* of_bytes) {
          EXPECT_NE(element, nullptr);
          EXPECT_NE(anything, nullptr);
          EXPECT_NE(of_bytes, nullptr);
          set(native, {reinterpret_cast<std::uintptr_t>(element), 0, 40}, 1);
        },
        readwrite(x, 10, 10), read(x), readwrite(bytes));
  };
  if (!GetParam().has_addresses) {
    EXPECT_THROW(pointers(), UnsupportedOperation);
    EXPECT_EQ(x.to_vector(), values(100));
    return;
  }
  pointers();
  auto expected = values(100);
  std::fill_n(expected.begin() + 10, 10, ones);
  EXPECT_EQ(x.to_vector(), expected);
  EXPECT_THROW(with_native(queue, [](void*, double*) {}, readwrite(bytes, 4, 8)), KernelError) << "not aligned";
}

TEST_P(NativeWork, NothingIsCalledForAMovedFromQueue) {
  auto x = counting(10);
  auto taken = on.create_queue();
  auto const keeper = std::move(taken);
  bool called = false;
  EXPECT_THROW(with_native(taken, [&](void*, DeviceMemory) { called = true; }, readwrite(x)), InvalidArgument);
  EXPECT_FALSE(called);
  EXPECT_EQ(x.state(), BufferState::host_dirty);
}

}  // namespace unimem
