#include "core/sanitizers.hpp"
#include "device/opencl_fixture.hpp"
#include "device/opencl_recorded_runs.hpp"
#include "device/opencl_user_event.hpp"

#include <gmock/gmock.h>

#include <cstdint>
#include <cstdlib>
#include <optional>

namespace unimem {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Where ThreadSanitizer looks on, nothing is made to fail: PoCL then takes its own locks in an order that it reports.
constexpr bool may_fail_work = !detail::under_thread_sanitizer;

Device& recorded_device() {
  static Device& device = kept(RecordedOpenCl::instance().open("opencl:0,recorded"));
  return device;
}

Device& second_recorded_device() {
  static Device& device = kept(RecordedOpenCl::instance().open("opencl:0,recorded too"));
  return device;
}

/// What runs of one kernel wait for (PoclRunOrder), seen in the calls that the driver gets. Queues are held back by
/// events that the test completes. Runs of fewer than 256 items go one by one, in groups of one.
class OpenClRunOrder : public OpenClTest {
 protected:
  void SetUp() override {
    OpenClTest::SetUp();
    if (IsSkipped()) return;
    if (!detail::opencl::installation().hardware.front().is_pocl) GTEST_SKIP() << "the driver is not PoCL";
    recorded().runs.clear();
  }
  void TearDown() override {
    recorded().on_wait = nullptr;
    recorded().refuses_runs = false;
    OpenClTest::TearDown();
  }

  static RecordedOpenCl& recorded() { return RecordedOpenCl::instance(); }

  /// A kernel that no other test has: adds 1 to the words of its range.
  [[nodiscard]] static std::shared_ptr<Program const> kernel(std::string const& variant = "",
                                                             Device& owner = recorded_device()) {
    auto const* const test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    return compile(owner, "touch",
                   "// " + std::string(test) + variant +
                       "\nUNIMEM_KERNEL touch(UNIMEM_BUFFER(unimem_u32, x)) {"
                       "  UNIMEM_DATA(unimem_u32, x)[UNIMEM_ITEM_X] += 1; }");
  }

  /// 1024 words of zeros.
  [[nodiscard]] DeviceMemory words(Device& owner = recorded_device()) {
    std::vector<std::uint32_t> const zeros(1024, 0);
    auto const memory = take(owner, zeros.size() * 4);
    owner.default_queue().upload(memory, zeros.data(), memory.bytes).wait();
    return memory;
  }

  static Event run(Queue& queue, std::shared_ptr<Program const> const& program, std::size_t items,
                   DeviceMemory memory) {
    return queue.run(program, {items}, std::vector{argument(memory)});
  }

  /// The words that were touched, and how often.
  static void expect_touched(DeviceMemory memory, std::size_t items, std::uint32_t times = 1,
                             Device& owner = recorded_device()) {
    std::vector<std::uint32_t> values(1024), expected(1024, 0);
    owner.default_queue().download(values.data(), memory, memory.bytes).wait();
    std::fill_n(expected.begin(), items, times);
    EXPECT_EQ(values, expected);
  }
};

TEST_F(OpenClRunOrder, EqualRunsDoNotWait) {
  auto const program = kernel();
  auto const x = words(), y = words();
  auto held = recorded_device().create_queue(), free = recorded_device().create_queue();
  {
    UserEvent const gate{held};
    auto const behind = run(held, program, 40, x);
    run(free, program, 40, y).wait();
    EXPECT_FALSE(behind.ready());
  }
  held.synchronize();
  EXPECT_THAT(recorded().awaited_by(1), IsEmpty());
  expect_touched(x, 40);
  expect_touched(y, 40);
}

TEST_F(OpenClRunOrder, ASmallerRunWaitsForTheFirst) {
  auto const program = kernel();
  auto const x = words(), y = words(), z = words();
  auto a = recorded_device().create_queue(), b = recorded_device().create_queue(), c = recorded_device().create_queue();
  {
    UserEvent const gate{a};
    run(a, program, 40, x);
    EXPECT_FALSE(run(b, program, 30, y).ready());
    run(c, program, 40, z).wait();
    EXPECT_FALSE(run(c, program, 20, z).ready());
  }
  for (auto* const queue : {&a, &b, &c}) queue->synchronize();
  EXPECT_THAT(recorded().awaited_by(1), ElementsAre(0));
  EXPECT_THAT(recorded().awaited_by(2), IsEmpty());
  EXPECT_THAT(recorded().awaited_by(3), ElementsAre(0));
  expect_touched(y, 30);
}

TEST_F(OpenClRunOrder, AfterTheFirstNoSmallerRunWaits) {
  auto const program = kernel();
  auto const x = words(), y = words();
  auto held = recorded_device().create_queue(), free = recorded_device().create_queue();
  run(held, program, 40, x).wait();
  {
    UserEvent const gate{held};
    run(held, program, 30, x);
    for (std::size_t const items : {20U, 40U, 1U}) run(free, program, items, y).wait();
  }
  held.synchronize();
  for (std::size_t i = 1; i < 5; ++i) EXPECT_THAT(recorded().awaited_by(i), IsEmpty()) << "run " << i;
}

TEST_F(OpenClRunOrder, AWiderRunWaitsForAllInFlight) {
  auto const program = kernel();
  auto const x = words(), y = words(), z = words(), w = words();
  auto a = recorded_device().create_queue(), b = recorded_device().create_queue(), c = recorded_device().create_queue(),
       d = recorded_device().create_queue();
  {
    UserEvent const first{a}, second{b};
    run(a, program, 10, x);
    run(b, program, 10, y);
    EXPECT_FALSE(run(c, program, 20, z).ready());
    EXPECT_FALSE(run(d, program, 20, w).ready());
    run(d, program, 5, w);
  }
  for (auto* const queue : {&a, &b, &c, &d}) queue->synchronize();
  EXPECT_THAT(recorded().awaited_by(1), IsEmpty());
  EXPECT_THAT(recorded().awaited_by(2), ElementsAre(0, 1));
  EXPECT_THAT(recorded().awaited_by(3), ElementsAre(0, 1));
  EXPECT_THAT(recorded().awaited_by(4), ElementsAre(2));
  expect_touched(z, 20);
}

TEST_F(OpenClRunOrder, ARunWithAnOffsetWaits) {
  auto const program = kernel();
  auto const x = words(), y = words();
  auto held = recorded_device().create_queue(), free = recorded_device().create_queue();
  {
    UserEvent const gate{held};
    run(held, program, 200, x);
    EXPECT_FALSE(run(free, program, 257, y).ready());  // a group of 256, then one item from 256 on
  }
  held.synchronize();
  free.synchronize();
  EXPECT_THAT(recorded().awaited_by(1), IsEmpty());
  EXPECT_THAT(recorded().awaited_by(2), ElementsAre(0));
  expect_touched(x, 200);
  expect_touched(y, 257);
}

TEST_F(OpenClRunOrder, RunsInOneQueueNeedNoOrder) {
  auto const program = kernel();
  auto const x = words();
  auto queue = recorded_device().create_queue();
  {
    UserEvent const gate{queue};
    for (std::size_t const items : {10U, 20U, 300U, 5U}) run(queue, program, items, x);
  }
  queue.synchronize();
  ASSERT_EQ(recorded().runs.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_THAT(recorded().awaited_by(i), IsEmpty()) << "run " << i;
}

TEST_F(OpenClRunOrder, OtherWorkIsNotHeldUp) {
  auto const program = kernel(), other = kernel(", another kernel");
  auto const x = words(), y = words(), z = words();
  auto held = recorded_device().create_queue(), free = recorded_device().create_queue();
  {
    UserEvent const gate{held};
    auto const behind = run(held, program, 10, x);
    run(free, other, 20, y).wait();
    run(free, program, 512, y).wait();  // in groups of 256
    free.copy(z, y, 4096).wait();
    EXPECT_FALSE(behind.ready());
  }
  held.synchronize();
  std::vector<std::uint32_t> values(1024), expected(1024, 0);
  free.download(values.data(), z, 4096).wait();
  std::fill_n(expected.begin(), 512, 1U);
  std::fill_n(expected.begin(), 20, 2U);
  EXPECT_EQ(values, expected);
}

TEST_F(OpenClRunOrder, ProgramsOfOneSourceShareTheOrder) {
  auto const program = kernel(), again = kernel();
  auto const x = words(), y = words();
  auto held = recorded_device().create_queue(), free = recorded_device().create_queue();
  {
    UserEvent const gate{held};
    run(held, program, 10, x);
    run(free, again, 20, y);
  }
  held.synchronize();
  free.synchronize();
  EXPECT_THAT(recorded().awaited_by(1), ElementsAre(0));
}

TEST_F(OpenClRunOrder, EndedRunsAreLetGo) {
  auto const staying = kernel();
  auto const x = words();
  {
    auto const going = kernel();
    auto queue = recorded_device().create_queue();
    for (std::size_t const items : {10U, 20U, 5U}) run(queue, going, items, x).wait();
    std::uint32_t word = 0;
    queue.download(&word, x, sizeof word).wait();  // the driver itself keeps the last event that used a buffer
    EXPECT_EQ(word, 3U);
  }
  for (auto const& one : recorded().runs) {
    cl_uint references = 0;
    ASSERT_EQ(detail::opencl::installation().hardware.front().api->clGetEventInfo(
                  one.event, CL_EVENT_REFERENCE_COUNT, sizeof references, &references, nullptr),
              CL_SUCCESS);
    EXPECT_EQ(references, 1U) << "of run " << &one - recorded().runs.data() << ": the record's own";
  }
}

TEST_F(OpenClRunOrder, TheHostWaitsForOtherContexts) {
  auto& here = recorded_device();
  auto& there = second_recorded_device();
  auto const program = kernel("", here), far = kernel("", there);
  auto const x = words(here), y = words(there);
  auto held = here.create_queue(), free = there.create_queue();
  std::optional<UserEvent> gate{held};
  auto const behind = run(held, program, 10, x);
  auto* const awaited = recorded().runs.at(0).event;
  std::vector<cl_event> waits;
  recorded().on_wait = [&](cl_event event) {
    waits.push_back(event);
    gate->open();
  };
  auto const wider = run(free, far, 20, y);
  ASSERT_FALSE(waits.empty());
  EXPECT_EQ(waits.front(), awaited);
  EXPECT_TRUE(behind.ready());
  recorded().on_wait = nullptr;
  wider.wait();
  EXPECT_THAT(recorded().runs.at(1).awaited, IsEmpty());
  expect_touched(x, 10, 1, here);
  expect_touched(y, 20, 1, there);
}

TEST_F(OpenClRunOrder, ARefusedRunLeavesNoTrace) {
  auto const program = kernel();
  auto const x = words(), y = words();
  auto held = recorded_device().create_queue(), free = recorded_device().create_queue(),
       third = recorded_device().create_queue();
  {
    UserEvent const gate{held};
    run(held, program, 10, x);
    recorded().refuses_runs = true;
    EXPECT_THROW(run(free, program, 20, y), DeviceError);
    recorded().refuses_runs = false;
    run(free, program, 10, y).wait();
    EXPECT_FALSE(run(third, program, 20, y).ready());
  }
  held.synchronize();
  third.synchronize();
  EXPECT_THAT(recorded().awaited_by(1), IsEmpty());
  EXPECT_THAT(recorded().awaited_by(2), ElementsAre(0));
  EXPECT_EQ(held.completed(), 1U);
}

TEST_F(OpenClRunOrder, AFailedFirstRunEndsItsGroup) {
  if (!may_fail_work) GTEST_SKIP() << "PoCL's own locks, under ThreadSanitizer";
  auto const program = kernel();
  auto const x = words(), y = words(), z = words();
  {
    auto failing = recorded_device().create_queue();
    UserEvent gate{failing};
    auto const failed = run(failing, program, 20, x);
    gate.fail();
    EXPECT_THROW(failed.wait(), DeviceError);
  }
  auto held = recorded_device().create_queue(), free = recorded_device().create_queue();
  {
    UserEvent const gate{held};
    run(held, program, 10, y);
    EXPECT_FALSE(run(free, program, 20, z).ready());  // the failed run brought nothing of its size to the front
  }
  held.synchronize();
  free.synchronize();
  EXPECT_THAT(recorded().awaited_by(1), IsEmpty());
  EXPECT_THAT(recorded().awaited_by(2), ElementsAre(1));
  expect_touched(x, 0);
  expect_touched(y, 10);
  expect_touched(z, 20);
}

TEST_F(OpenClRunOrder, ANegativeUserEventFailsOnlyWaitingRuns) {
  if (!may_fail_work) GTEST_SKIP() << "PoCL's own locks, under ThreadSanitizer";
  auto const program = kernel();
  auto const x = words(), y = words(), z = words();
  auto failing = recorded_device().create_queue(), waiting = recorded_device().create_queue(),
       beside = recorded_device().create_queue();
  UserEvent gate{failing};
  auto const failed = run(failing, program, 10, x);
  auto const same = run(beside, program, 10, z);
  same.wait();
  auto const wider = run(waiting, program, 20, y);
  gate.fail();
  EXPECT_THROW(failed.wait(), DeviceError);
  EXPECT_THROW(wider.wait(), DeviceError);
  expect_touched(y, 0);
  expect_touched(z, 10);
  run(beside, program, 20, z).wait();  // nothing sticks
  expect_touched(x, 0);
}

TEST_F(OpenClRunOrder, GroupsAreChosenHereAndDivideTheRange) {
  auto const program = compile(recorded_device(), "sizes", R"(
    __kernel void sizes(__global uint* out) {
      size_t const i = (get_global_id(2) * get_global_size(1) + get_global_id(1)) * get_global_size(0) + get_global_id(0);
      out[i] = (uint)(get_local_size(0) + 1000 * get_local_size(1) + 1000000 * get_local_size(2));
    })");
  struct Case {
    Range range;
    std::array<std::size_t, 3> group;
  };
  auto& queue = recorded_device().default_queue();
  for (auto const& [range, group] :
       {Case{{12, 10, 1}, {12, 10, 1}}, Case{{1000, 6, 4}, {250, 1, 1}}, Case{{7, 100, 3}, {7, 25, 1}},
        Case{{2, 3, 50}, {2, 3, 25}}, Case{{257, 2, 2}, {1, 2, 2}}, Case{{1000, 1, 1}, {250, 1, 1}}}) {
    auto const out = take(recorded_device(), range.items() * 4);
    queue.run(program, range, std::vector{argument(out)});
    std::vector<std::uint32_t> values(range.items());
    queue.download(values.data(), out, out.bytes).wait();
    EXPECT_EQ(recorded().runs.back().group, group);
    EXPECT_THAT(values, Each(group[0] + 1000 * group[1] + 1'000'000 * group[2]));
  }
}

}  // namespace
}  // namespace unimem
