#include "device/conformance_fixture.hpp"
#include "device/opencl_faulty_api.hpp"
#include "device/opencl_fixture.hpp"
#include "device/opencl_user_event.hpp"

#include <gmock/gmock.h>

#include <thread>

namespace unimem {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

/// A driver that refuses, and one whose work fails later.
class OpenClFaultsTest : public OpenClTest {
 protected:
  void TearDown() override {
    if (!found_opencl().devices.empty()) faults() = {};
    OpenClTest::TearDown();
  }
  static OpenClFaults& faults() { return FaultyOpenCl::instance().faults; }
};

TEST_F(OpenClFaultsTest, ImmediateRefusalsTakeNoTicket) {
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

TEST_F(OpenClFaultsTest, ARefusedFillLeavesTheQueueUsable) {
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

TEST_F(OpenClFaultsTest, RefusedMemoryIsNotCounted) {
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

TEST_F(OpenClFaultsTest, ALaterFailureNamesItsCall) {
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

TEST_F(OpenClFaultsTest, DependentWorkReportsTheFirstFailure) {
  if (works_in_the_submitting_thread(faulty_device()))
    GTEST_SKIP() << "the work has always failed before anybody can need it";
  auto const memory = take(faulty_device(), 64);
  auto const source = noise(64, 1);
  auto failing = faulty_device().create_queue(), needing = faulty_device().create_queue();
  auto elsewhere = device().create_queue();
  Event ordered, needs, needs_elsewhere;
  {
    UserEvent gate{failing};
    auto const failed = fail(failing);
    needing.wait(failed);
    ordered = needing.upload(memory, source.data(), 64);
    needs = needing.upload(memory, source.data(), 64, {{failed}});
    std::thread opener{[&] { gate.open(); }};
    needs_elsewhere = elsewhere.join({{failed, needs}});  // another driver's: blocks here until they have ended
    opener.join();
  }
  for (auto const event : {needs, needs_elsewhere}) {
    try {
      event.wait();
      FAIL() << "the work ended well though what it needed failed";
    } catch (DeviceError const& error) {
      EXPECT_EQ(error.call, "clEnqueueNDRangeKernel");
      EXPECT_EQ(error.code, CL_OUT_OF_RESOURCES);
    }
  }
  EXPECT_EQ(ordered.wait_for_error(), nullptr) << "what was only ordered behind it is not touched";
}

class OpenClCapturedRunsTest : public OpenClFaultsTest {
 protected:
  /// Three runs in a row, each of which counts one more, from 0.
  std::shared_ptr<CapturedRuns const> three(Queue& queue) {
    counter_ = take(faulty_device(), 64);
    queue.fill(counter_, repeated(1, 0)).wait();
    auto const program = compile(faulty_device(), "count",
                                 "UNIMEM_KERNEL count(UNIMEM_BUFFER(unimem_u8, x)) { ++*UNIMEM_DATA(unimem_u8, x); }");
    ProgramRun const run{program, {1}, {memory_argument(counter_)}};
    return queue.capture({run, run, run});
  }
  std::byte count(Queue& queue) const {
    std::byte result{};
    queue.download(&result, counter_, 1).wait();
    return result;
  }

 private:
  DeviceMemory counter_;
};

TEST_F(OpenClCapturedRunsTest, FailWithTheFirstOfThem) {
  auto queue = faulty_device().create_queue();
  auto const runs = three(queue);
  faults().fail_next_run = CL_OUT_OF_RESOURCES;
  auto const failed = queue.run(runs);
  EXPECT_THROW(failed.wait(), DeviceError);
  queue.run(runs).wait();
  EXPECT_EQ(count(queue), std::byte{6}) << "the others ran, and all do the next time";
}

TEST_F(OpenClCapturedRunsTest, FailWhereTheDriverRefusesALaterOne) {
  auto queue = faulty_device().create_queue();
  auto const runs = three(queue);
  faults() = {.refuse_run = CL_OUT_OF_RESOURCES, .runs_before_refusal = 2};
  auto const before = queue.record();
  auto const failed = queue.run(runs);
  faults() = {};
  EXPECT_EQ(failed.ticket(), before.ticket() + 1) << "one ticket for all";
  try {
    failed.wait();
    FAIL() << "refused work ended well";
  } catch (DeviceError const& error) {
    EXPECT_EQ(error.call, "clEnqueueNDRangeKernel");
    EXPECT_EQ(error.code, CL_OUT_OF_RESOURCES);
  }
  EXPECT_EQ(count(queue), std::byte{2});
}

TEST_F(OpenClCapturedRunsTest, TakeNoTicketWhereTheDriverRefusesTheFirst) {
  auto queue = faulty_device().create_queue();
  auto const runs = three(queue);
  auto const before = queue.record();
  faults() = {.refuse_run = CL_OUT_OF_RESOURCES};
  EXPECT_THROW(queue.run(runs), DeviceError);
  faults() = {};
  EXPECT_EQ(queue.record(), before);
  EXPECT_EQ(count(queue), std::byte{0});
}

TEST_F(OpenClFaultsTest, WorkOfUnknownStatusHasFailed) {
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
  // Reported as ended, so it has: its memory may be reused at once. (Sanitizers see it if not.)
}

TEST_F(OpenClFaultsTest, KernelsRunWithoutKnownParameters) {
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
