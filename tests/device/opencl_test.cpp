#include "device/device_conformance.hpp"
#include "device/opencl_faulty_api.hpp"
#include "device/opencl_fixture.hpp"

#include <gmock/gmock.h>

#include <bit>
#include <chrono>
#include <string>

namespace unimem {
namespace {

using ::testing::HasSubstr;

bool can_share() {
  auto const& hardware = detail::opencl::installation().hardware;
  return !hardware.empty() && hardware.front().fine_grain_memory;
}

Device& shared_device() {
  static Device& device = kept(detail::open_opencl_device(0, "zero_copy=1"));
  return device;
}

/// The ways OpenCL can be used here: none, copied memory, a driver that fails, memory shared with the host.
std::vector<DeviceCase> cases() {
  std::vector<DeviceCase> all;
  if (found_opencl().devices.empty()) return all;
  all.push_back({"Copied", []() -> Device& { return *found_opencl().devices.front(); }, {}});
  all.push_back({"Faulty", faulty_device, fail});
  if (can_share()) all.push_back({"Shared", shared_device, {}});
  return all;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceConformance);
INSTANTIATE_TEST_SUITE_P(OpenCl, DeviceConformance, ::testing::ValuesIn(cases()), case_name);

using OpenCl = OpenClTest;

TEST_F(OpenCl, TheRowsOfARectangleAreOneCommand) {
  auto const a = take(device(), 200'000), b = take(device(), 200'000);
  auto queue = device().create_queue();
  auto const host = noise(200'000, 1);
  Bytes back(200'000);
  auto const block = rows(100, 300, {7, 1001, 0}, 900, 1800);
  auto tickets = queue.record().ticket();
  auto const commands_of = [&](Event event) { return event.ticket() - std::exchange(tickets, event.ticket()); };
  EXPECT_EQ(commands_of(queue.upload(a, host.data(), block)), 1U);
  EXPECT_EQ(commands_of(queue.copy(b, a, rows(100, 300, {0, 7, 0}, 300, 900))), 1U);
  EXPECT_EQ(commands_of(queue.download(back.data(), b, rows(100, 300, {1001, 0, 0}, 1800, 300))), 1U);
  queue.synchronize();
  EXPECT_EQ(back, after(Bytes(200'000), host, rows(100, 300, {1001, 1001, 0}, 1800, 1800)));
  EXPECT_EQ(commands_of(queue.upload(a, host.data(), scattered(10, 100, 200'000, 1))), 11U) << "and a mark behind them";
  queue.synchronize();  // it reads what ends here
}

TEST_F(OpenCl, DurationsAreKeptWithProfiling) {
  expect_durations(unimem::device("opencl:0,profile=1"));
}

TEST_F(OpenCl, TheFirstDeviceIsADiscreteCompiler) {
  EXPECT_EQ(device().id(), "opencl:0");
  EXPECT_EQ(device().backend(), Backend::opencl);
  EXPECT_TRUE(device().info().compiles_source);
  EXPECT_FALSE(device().info().runs_host_form);
  EXPECT_FALSE(device().info().is_gpu) << "neither PoCL's CPU nor a simulator is a GPU to prefer";
  EXPECT_FALSE(device().shares_storage_with_host()) << "a CPU's memory is copied unless asked otherwise";
  EXPECT_EQ(device().address(take(device(), 8)), nullptr);
  EXPECT_FALSE(device().info().driver.empty());
}

/// Into the report, for the table of docs/drivers.md (tools/driver_table.py).
TEST_F(OpenCl, WhatTheDriverHasIsRecorded) {
  auto const& found = detail::opencl::installation().hardware.front();
  auto const text = [&](cl_device_info name) {
    std::string result(std::size_t{16} << 10, '\0');
    std::size_t bytes = 0;
    EXPECT_EQ(found.api->clGetDeviceInfo(found.device, name, result.size(), result.data(), &bytes), CL_SUCCESS);
    return result.substr(0, bytes == 0 ? 0 : bytes - 1);
  };
  auto const extensions = " " + text(CL_DEVICE_EXTENSIONS) + " ";
  auto const has = [&](std::string const& name) { return extensions.find(" " + name + " ") != std::string::npos; };
  cl_bool images = 0;
  EXPECT_EQ(found.api->clGetDeviceInfo(found.device, CL_DEVICE_IMAGE_SUPPORT, sizeof images, &images, nullptr),
            CL_SUCCESS);
  auto const& info = device().info();
  EXPECT_EQ(info.doubles, has("cl_khr_fp64"));
  EXPECT_TRUE(std::has_single_bit(info.alignment)) << info.alignment;
  auto const yes_no = [](bool is) { return is ? "yes" : "no"; };
  auto const version = text(CL_DEVICE_VERSION);
  RecordProperty("driver", info.driver);
  RecordProperty("version", version.substr(0, version.find(' ', version.find(' ') + 1)));
  RecordProperty("doubles", yes_no(info.doubles));
  RecordProperty("atomics64", yes_no(has("cl_khr_int64_base_atomics")));
  RecordProperty("shared_memory", yes_no(found.fine_grain_memory));
  RecordProperty("images", yes_no(images != 0));
  RecordProperty("command_buffers", yes_no(has("cl_khr_command_buffer")));
  RecordProperty("alignment", std::to_string(info.alignment));
}

TEST_F(OpenCl, DevicesOnTheSameHardwareShareItsMemory) {
  auto const other = detail::open_opencl_device(0, "zero_copy=0");
  EXPECT_EQ(other->id(), "opencl:0,zero_copy=0");
  auto const before = device().memory_info().free_bytes;
  auto const memory = other->allocate(1000, Location::device);
  EXPECT_EQ(device().memory_info().free_bytes, before - 1000);
  other->release(memory, Location::device);
  EXPECT_EQ(device().memory_info().free_bytes, before);
}

TEST_F(OpenCl, TheLargestAllocationIsALimit) {
  auto const largest = device().info().max_allocation;
  if (largest == device().info().total_bytes) GTEST_SKIP() << "this driver allocates everything in one piece";
  try {
    static_cast<void>(device().allocate(largest + 1, Location::device));
    FAIL() << "more than the driver's largest allocation was handed out";
  } catch (OutOfMemory const& error) {
    EXPECT_EQ(error.requested(), largest + 1);
    EXPECT_EQ(error.limit(), largest);
    EXPECT_EQ(error.facts().where, "opencl:0 device");
    EXPECT_THAT(error.facts().reason, HasSubstr("largest allocation"));
  }
}

TEST_F(OpenCl, UnknownOptionsAndDevicesAreRefused) {
  for (auto const* const options :
       {"zero_copy=2", "zero_copy", "speed=1", "zero_copy=1,zero_copy=0", ",", "profile", "profile=2", "profile=1,",
        "profile=1,profile=1", "staging", "staging=1MiB,", "staging=1MiB,staging=2MiB"}) {
    EXPECT_THROW(static_cast<void>(detail::open_opencl_device(0, options)), InvalidArgument) << options;
  }
  auto const count = found_opencl().devices.size();
  try {
    static_cast<void>(detail::open_opencl_device(count, ""));
    FAIL() << "a device that is not there was opened";
  } catch (NotFound const& error) {
    EXPECT_EQ(error.available.size(), count);
    EXPECT_EQ(error.available.front(), "opencl:0");
  }
}

TEST_F(OpenCl, SharedMemoryIsTheHostsOwnOrRefused) {
  if (!can_share()) {
    try {
      static_cast<void>(detail::open_opencl_device(0, "zero_copy=1"));
      FAIL() << "memory was shared without fine-grained shared virtual memory";
    } catch (UnsupportedOperation const& error) {
      EXPECT_EQ(error.operation, "zero_copy=1");
      EXPECT_EQ(error.where, "opencl:0,zero_copy=1");
    }
    return;
  }
  auto& shared = shared_device();
  EXPECT_TRUE(shared.shares_storage_with_host());
  auto const moved = shared.transfers();
  auto const memory = take(shared, 5 * sizeof(float));
  auto* const values = static_cast<float*>(shared.address(memory));
  ASSERT_NE(values, nullptr);
  for (int i = 0; i < 5; ++i) values[i] = static_cast<float>(i);
  auto const program = compile(shared, "twice", R"(
    UNIMEM_KERNEL twice(UNIMEM_BUFFER(unimem_f32, x)) { UNIMEM_DATA(unimem_f32, x)[UNIMEM_ITEM_X] *= 2; })");
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 5; ++i) values[i] = static_cast<float>(i + round);
    shared.default_queue().run(program, {5}, std::vector{argument(memory)}).wait();
    for (int i = 0; i < 5; ++i) ASSERT_EQ(values[i], static_cast<float>(2 * (i + round)));
  }
  EXPECT_EQ(shared.transfers().host_to_device_bytes, moved.host_to_device_bytes);
  EXPECT_EQ(shared.transfers().device_to_host_bytes, moved.device_to_host_bytes);
}

TEST_F(OpenCl, CopyTimesAreKnownWithProfiling) {
  constexpr std::size_t bytes = 4 << 20;
  for (bool const asked : {false, true}) {
    auto const device = detail::open_opencl_device(0, asked ? "zero_copy=0,profile=1" : "profile=0");
    auto const memory = device->allocate(bytes, Location::device);
    Bytes host(bytes);
    std::chrono::nanoseconds whole{};
    {
      auto queue = device->create_queue();
      auto const begin = std::chrono::steady_clock::now();
      for (int round = 0; round < 4; ++round) {
        queue.upload(memory, host.data(), bytes);
        queue.download(host.data(), memory, bytes);
      }
      queue.copy(memory.window(0, bytes / 2), memory.window(bytes / 2, bytes / 2), bytes / 2);
      queue.synchronize();
      whole = std::chrono::steady_clock::now() - begin;
    }
    device->release(memory, Location::device);
    auto const moved = device->transfers();
    auto const all =
        moved.host_to_device_nanoseconds + moved.device_to_host_nanoseconds + moved.device_to_device_nanoseconds;
    bool const told = asked && !has_no_clock(*device);
    EXPECT_EQ(moved.untimed_copies, told ? 0U : 9U);
    if (!told) {
      EXPECT_EQ(all, 0U);
      continue;
    }
    EXPECT_GT(moved.host_to_device_nanoseconds, 0U);
    EXPECT_GT(moved.device_to_host_nanoseconds, 0U);
    EXPECT_GT(moved.device_to_device_nanoseconds, 0U);
    EXPECT_LE(all, static_cast<std::uint64_t>(whole.count()) * 101 / 100) << "two clocks need not agree to the last";
  }
}

TEST_F(OpenCl, TheLinkIsMeasuredOnce) {
  auto const moved = device().transfers();
  auto const cost = device().link_cost();
  EXPECT_GT(cost.latency_seconds, 0);
  EXPECT_LT(cost.latency_seconds, 0.1);
  EXPECT_GT(cost.bytes_per_second, 1e6);
  EXPECT_LT(cost.bytes_per_second, 1e13);
  EXPECT_EQ(device().link_cost().latency_seconds, cost.latency_seconds);
  EXPECT_EQ(device().link_cost().bytes_per_second, cost.bytes_per_second);
  EXPECT_EQ(device().transfers().host_to_device_copies, moved.host_to_device_copies);
}

}  // namespace
}  // namespace unimem
