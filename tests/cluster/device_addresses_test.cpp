#include "cluster/counted_calls.hpp"
#include "cluster/ranks.hpp"

#include <unimem/core/error.hpp>

#include <algorithm>

// An MPI that says that it takes CUDA's addresses is given them: on the stand-in driver, whose device memory the host
// can read.

extern "C" int MPIX_Query_cuda_support(void) {
  return 1;
}

namespace unimem::testing {
namespace {

class DeviceAddresses : public RanksTest {
 protected:
  static constexpr std::size_t count = 3'000'000;  // more than a piece

  void SetUp() override {
    if (!has_partner()) GTEST_SKIP() << "there is no rank to talk to";
  }
  /// On the device alone, with nothing to be counted but the way there.
  static UnifiedBuffer<std::uint32_t> on_device(std::vector<std::uint32_t> const& numbers) {
    UnifiedBuffer<std::uint32_t> buffer(numbers.size(), {.device = &device("cuda:0")});
    buffer.copy_from(numbers);
    buffer.sync_to_device();
    buffer.release_host();
    EXPECT_EQ(buffer.state(), BufferState::device_only);
    return buffer;
  }
};

TEST_F(DeviceAddresses, BytesGoFromDeviceToDevice) {
  if (is_first()) {
    auto x = on_device(numbers_of(rank(), count));
    reset_counted_calls();
    mpi::send(read(x), partner(), tag);
    mpi::send(read(x, 10, 20), partner(), tag);
    EXPECT_EQ(counted_calls().sends, 2U) << "in no pieces";
    EXPECT_EQ(x.statistics().device_to_host_bytes, 0U);
    EXPECT_EQ(x.state(), BufferState::device_only);
  } else {
    auto y = on_device(std::vector<std::uint32_t>(count, 7));
    mpi::receive(write(y), partner(), tag);
    EXPECT_EQ(y.state(), BufferState::device_dirty);
    EXPECT_EQ(y.statistics().device_to_host_bytes, 0U);
    auto expected = numbers_of(partner(), count);
    EXPECT_EQ(y.to_vector(), expected);
    auto const moved = y.statistics();
    EXPECT_EQ(moved.device_to_host_bytes, y.size_bytes()) << "to be looked at here";
    auto part = y.slice(100, 20);
    mpi::receive(write(part), partner(), tag);
    std::copy_n(expected.begin() + 10, 20, expected.begin() + 100);
    EXPECT_EQ(y.to_vector(), expected);
  }
}

TEST_F(DeviceAddresses, BytesGoFromDeviceToDeviceBehindTheCallersBack) {
  if (is_first()) {
    auto x = on_device(numbers_of(rank(), count));
    mpi::isend(read(x), partner(), tag).wait();
    EXPECT_EQ(x.statistics().device_to_host_bytes, 0U);
    EXPECT_EQ(x.state(), BufferState::device_only);
    mpi::isend(read(x, 0, 10), partner(), tag).wait();
  } else {
    auto y = on_device(std::vector<std::uint32_t>(count, 7));
    mpi::ireceive(write(y), partner(), tag);
    y.slice(5, 10).fill(1);  // on the device, behind what is received
    auto expected = numbers_of(partner(), count);
    std::fill_n(expected.begin() + 5, 10, 1U);
    EXPECT_EQ(y.statistics().device_to_host_bytes, 0U);
    EXPECT_EQ(y.to_vector(), expected);
    y.fill(3);
    y.release_host();
    auto const received = mpi::ireceive(write(y), partner(), tag);
    EXPECT_THROW(received.wait(), SizeMismatch);
    EXPECT_THROW(static_cast<void>(y.to_vector()), SizeMismatch);
    EXPECT_EQ(y.to_vector(), std::vector<std::uint32_t>(count, 3));
  }
}

TEST_F(DeviceAddresses, WhatTheHostHasIsSentFromThere) {
  if (is_first()) {
    UnifiedBuffer<std::uint32_t> x(count, {.device = &device("cuda:0")});
    x.copy_from(numbers_of(rank(), count));
    x.sync_to_device();
    auto const before = x.statistics();
    mpi::send(read(x), partner(), tag);
    EXPECT_EQ(x.statistics().traffic_since(before), Traffic{});
  } else {
    UnifiedBuffer<std::uint32_t> y(count, {.device = &device("cuda:0")});
    mpi::receive(write(y), partner(), tag);
    EXPECT_EQ(y.to_vector(), numbers_of(partner(), count));
    EXPECT_EQ(y.statistics().traffic(), Traffic{});
  }
}

}  // namespace
}  // namespace unimem::testing
