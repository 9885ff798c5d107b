#include "device/device_conformance.hpp"
#include "device/opencl_faulty_api.hpp"
#include "device/opencl_fixture.hpp"
#include "device/opencl_user_event.hpp"

#include <gmock/gmock.h>

#include <thread>

namespace unimem {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

/// Devices live as long as the process: kept where leak checkers see an owner, and never destroyed.
Device& kept(std::unique_ptr<Device> device) {
  static auto& all = *new std::vector<std::unique_ptr<Device>>;
  all.push_back(std::move(device));
  return *all.back();
}

bool can_share() {
  auto const& hardware = detail::opencl::installation().hardware;
  return !hardware.empty() && hardware.front().fine_grain_memory;
}

Device& shared_device() {
  static Device& device = kept(detail::open_opencl_device(0, "zero_copy=1"));
  return device;
}

Device& faulty_device() {
  static Device& device = kept(FaultyOpenCl::instance().open("opencl:0,faulty"));
  return device;
}

/// Work that the driver accepts and reports as failed when it ends.
Event fail(Queue& queue) {
  static auto& program = *new std::shared_ptr<Program const>(compile(faulty_device(), "nothing", "UNIMEM_KERNEL nothing() {}"));
  FaultyOpenCl::instance().faults.fail_next_run = CL_OUT_OF_RESOURCES;
  return queue.run(program, {1}, {});
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

TEST_F(OpenCl, DevicesOnTheSameHardwareShareItsMemory) {
  auto const other = detail::open_opencl_device(0, "zero_copy=0");
  EXPECT_EQ(other->id(), "opencl:0,zero_copy=0");
  auto const before = device().memory_info().free_bytes;
  auto const memory = other->allocate(1000, Location::device);
  EXPECT_EQ(device().memory_info().free_bytes, before - 1000);
  other->release(memory, Location::device);
  EXPECT_EQ(device().memory_info().free_bytes, before);
}

TEST_F(OpenCl, TheDriversLargestAllocationIsALimitOfItsOwn) {
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
  for (auto const* const options : {"zero_copy=2", "zero_copy", "speed=1", "zero_copy=1,zero_copy=0", ","}) {
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

/// Queues held back by an event that the test completes: what is asynchronous can be seen without sleeping.
class OpenClAsynchrony : public OpenClTest {
 protected:
  void SetUp() override {
    OpenClTest::SetUp();
    if (IsSkipped()) return;
    if (works_in_the_submitting_thread(device())) GTEST_SKIP() << device().info().name << " works in the submitting thread";
  }
};

TEST_F(OpenClAsynchrony, EveryOperationReturnsBeforeItsWorkIsDone) {
  auto const a = take(device(), 4096), b = take(device(), 4096);
  auto const program = compile(device(), "nothing", "UNIMEM_KERNEL nothing() {}");
  auto const source = noise(4096, 1);
  Bytes result(4096);
  auto queue = device().create_queue();
  auto const before = device().transfers();
  {
    UserEvent const gate{queue};
    auto const upload = queue.upload(a, source.data(), 4096);
    auto const copy = queue.copy(b, a, 4096);
    auto const fill = queue.fill(a, repeated(4, 1));
    auto const odd_fill = queue.fill(a.window(1, 8), repeated(4, 2));
    auto const run = queue.run(program, {1}, {});
    auto const download = queue.download(result.data(), b, 4096);
    for (auto const& event : {upload, copy, fill, odd_fill, run, download}) EXPECT_FALSE(event.ready());
    EXPECT_EQ(queue.completed(), 0U);
    EXPECT_EQ(result, Bytes(4096));
    EXPECT_EQ(device().transfers().host_to_device_bytes, before.host_to_device_bytes) << "nothing has moved yet";
  }
  queue.synchronize();
  EXPECT_EQ(result, source);
  EXPECT_EQ(queue.completed(), 6U);
  EXPECT_EQ(device().transfers().host_to_device_bytes, before.host_to_device_bytes + 4096);
}

TEST_F(OpenClAsynchrony, AQueueThatWaitsForAnotherDoesNotBlockItsUser) {
  auto const memory = take(device(), 4096);
  auto const source = noise(4096, 2);
  Bytes result(4096);
  auto writer = device().create_queue(), reader = device().create_queue();
  Event done;
  {
    UserEvent const gate{writer};
    reader.wait(writer.upload(memory, source.data(), 4096));
    done = reader.download(result.data(), memory, 4096);
    EXPECT_FALSE(done.ready());
    EXPECT_EQ(result, Bytes(4096));
  }
  done.wait();
  EXPECT_EQ(result, source);
}

TEST_F(OpenClAsynchrony, AWaitingThreadReturnsWhenTheWorkIsDone) {
  auto const memory = take(device(), 64);
  auto const source = noise(64, 3);
  auto queue = device().create_queue();
  std::vector<std::thread> waiters;
  {
    UserEvent const gate{queue};
    auto const event = queue.upload(memory, source.data(), 64);
    for (int i = 0; i < 3; ++i) waiters.emplace_back([event] { event.wait(); });
    EXPECT_FALSE(event.ready());
  }
  for (auto& waiter : waiters) waiter.join();
  EXPECT_EQ(queue.completed(), 1U);
}

TEST_F(OpenClAsynchrony, AnotherDevicesWorkIsWaitedForBeforeTheQueueGoesOn) {
  static Device& other = kept(detail::open_opencl_device(0, "zero_copy=0"));
  auto const memory = take(device(), 4096), far = take(other, 4096);
  auto const source = noise(4096, 4);
  Bytes between(4096), result(4096);
  auto queue = device().create_queue(), far_queue = other.create_queue();
  far_queue.upload(far, source.data(), 4096);
  auto const fetched = far_queue.download(between.data(), far, 4096);
  queue.wait(fetched);
  EXPECT_TRUE(fetched.ready());
  queue.upload(memory, between.data(), 4096);
  queue.download(result.data(), memory, 4096).wait();
  EXPECT_EQ(result, source);
}

/// A driver that refuses, and one whose work fails later.
class OpenClFaultsTest : public OpenClTest {
 protected:
  void TearDown() override {
    if (!found_opencl().devices.empty()) faults() = {};
    OpenClTest::TearDown();
  }
  static OpenClFaults& faults() { return FaultyOpenCl::instance().faults; }
};

TEST_F(OpenClFaultsTest, WhatTheDriverRefusesAtOnceIsThrownAndTakesNoTicket) {
  auto const memory = take(faulty_device(), 64);
  auto const source = noise(64, 1);
  auto queue = faulty_device().create_queue();
  queue.upload(memory, source.data(), 64).wait();
  auto const before = queue.record();
  faults().refuse_upload = CL_OUT_OF_RESOURCES;
  try {
    queue.upload(memory, source.data(), 64);
    FAIL() << "a refused upload was accepted";
  } catch (DeviceError const& error) {
    EXPECT_EQ(error.backend, "opencl");
    EXPECT_EQ(error.call, "clEnqueueWriteBuffer");
    EXPECT_EQ(error.code, CL_OUT_OF_RESOURCES);
    EXPECT_EQ(error.code_name, "CL_OUT_OF_RESOURCES");
  }
  EXPECT_EQ(queue.record(), before);
  faults() = {};
  Bytes result(64);
  queue.download(result.data(), memory, 64).wait();
  EXPECT_EQ(result, source);
}

TEST_F(OpenClFaultsTest, AFillRefusedHalfWayLeavesTheQueueUsable) {
  auto const memory = take(faulty_device(), 64);
  auto queue = faulty_device().create_queue();
  queue.fill(memory, repeated(1, 0)).wait();
  auto const pattern = noise(8, 1);
  faults().refuse_fill = CL_MEM_OBJECT_ALLOCATION_FAILURE;
  EXPECT_THROW(queue.fill(memory.window(3, 24), pattern), DeviceError);
  EXPECT_EQ(queue.record().ticket(), 1U);
  faults() = {};
  queue.fill(memory.window(3, 24), pattern).wait();
  Bytes result(64), expected(64);
  for (std::size_t i = 0; i < 24; ++i) expected[3 + i] = pattern[i % 8];
  queue.download(result.data(), memory, 64).wait();
  EXPECT_EQ(result, expected);
}

TEST_F(OpenClFaultsTest, MemoryTheDriverDoesNotHaveIsNotBooked) {
  auto const before = faulty_device().memory_info().free_bytes;
  faults().refuse_buffer = CL_MEM_OBJECT_ALLOCATION_FAILURE;
  try {
    static_cast<void>(faulty_device().allocate(1000, Location::device));
    FAIL() << "memory was handed out that the driver refused";
  } catch (OutOfMemory const& error) {
    EXPECT_EQ(error.requested(), 1000U);
    EXPECT_THAT(error.facts().reason, HasSubstr("CL_MEM_OBJECT_ALLOCATION_FAILURE"));
  }
  faults().refuse_buffer = CL_OUT_OF_HOST_MEMORY;
  EXPECT_THROW(static_cast<void>(faulty_device().allocate(1000, Location::device)), DeviceError)
      << "out of the host's memory is not out of the device's";
  EXPECT_EQ(faulty_device().memory_info().free_bytes, before);
}

TEST_F(OpenClFaultsTest, ADriverWithoutContextsOrQueuesSaysSo) {
  faults().refuse_context = CL_DEVICE_NOT_AVAILABLE;
  try {
    static_cast<void>(FaultyOpenCl::instance().open("opencl:0,contextless"));
    FAIL() << "a device was made without a context";
  } catch (DeviceError const& error) {
    EXPECT_EQ(error.call, "clCreateContext");
    EXPECT_EQ(error.code_name, "CL_DEVICE_NOT_AVAILABLE");
  }
  faults() = {.refuse_queue = CL_OUT_OF_RESOURCES};
  EXPECT_THROW(static_cast<void>(faulty_device().create_queue()), DeviceError);
}

TEST_F(OpenClFaultsTest, ALaterFailureNamesItsCallAndItsCode) {
  auto queue = faulty_device().create_queue();
  auto const failed = fail(queue);
  try {
    failed.wait();
    FAIL() << "failed work ended well";
  } catch (DeviceError const& error) {
    EXPECT_EQ(error.call, "clEnqueueNDRangeKernel");
    EXPECT_EQ(error.code, CL_OUT_OF_RESOURCES);
  }
}

TEST_F(OpenClFaultsTest, AWaitForWorkThatFailsReportsThatWorksFailure) {
  if (works_in_the_submitting_thread(faulty_device())) GTEST_SKIP() << "the work has always failed before anybody can wait for it";
  auto const memory = take(faulty_device(), 64);
  auto const source = noise(64, 1);
  auto failing = faulty_device().create_queue(), waiting = faulty_device().create_queue();
  Event wait;
  {
    UserEvent const gate{failing};
    waiting.wait(fail(failing));
    wait = waiting.record();
    EXPECT_EQ(wait.ticket(), 1U);
  }
  try {
    wait.wait();
    FAIL() << "the wait ended well though what it waited for failed";
  } catch (DeviceError const& error) {
    EXPECT_EQ(error.call, "clEnqueueNDRangeKernel");
    EXPECT_EQ(error.code, CL_OUT_OF_RESOURCES);
  }
  EXPECT_EQ(waiting.upload(memory, source.data(), 64).wait_for_error(), nullptr) << "later work runs all the same";
}

TEST_F(OpenClFaultsTest, AWaitForAnotherDevicesFailureReportsItToo) {
  if (works_in_the_submitting_thread(faulty_device())) GTEST_SKIP() << "the work has always failed before anybody can wait for it";
  auto failing = faulty_device().create_queue(), waiting = device().create_queue();
  Event wait;
  {
    UserEvent gate{failing};
    auto const failed = fail(failing);
    std::thread opener{[&] { gate.open(); }};
    waiting.wait(failed);  // blocks here until the other device's work has ended
    opener.join();
    EXPECT_TRUE(failed.ready());
    wait = waiting.record();
  }
  if (wait == Event{}) GTEST_SKIP() << "the work had failed before the wait";
  EXPECT_THROW(wait.wait(), DeviceError);
}

TEST_F(OpenClFaultsTest, ADriverThatCannotTellHowWorkStandsDoesNotHangItsWaiters) {
  auto const memory = take(faulty_device(), 64);
  auto const source = noise(64, 1);
  auto queue = faulty_device().create_queue();
  faults().refuse_event_info = CL_INVALID_EVENT;
  auto const event = queue.upload(memory, source.data(), 64);
  try {
    event.wait();
    FAIL() << "nobody knows that this ended well";
  } catch (DeviceError const& error) {
    EXPECT_EQ(error.call, "clGetEventInfo");
    EXPECT_EQ(error.code_name, "CL_INVALID_EVENT");
  }
}

TEST_F(OpenClFaultsTest, KernelsRunWhereTheDriverTellsNothingOfTheirParameters) {
  faults().hide_parameters = true;
  auto const program = compile(faulty_device(), "set", R"(
    UNIMEM_KERNEL set(UNIMEM_BUFFER(unimem_u32, x), unimem_u32 value) {
      UNIMEM_DATA(unimem_u32, x)[UNIMEM_ITEM_X] = value;
    })");
  faults() = {};
  auto const memory = take(faulty_device(), 12);
  auto& queue = faulty_device().default_queue();
  queue.run(program, {3}, std::vector{argument(memory), scalar(7U)});
  std::vector<unsigned> result(3);
  queue.download(result.data(), memory, 12).wait();
  EXPECT_THAT(result, Each(7U));
}

}  // namespace
}  // namespace unimem
