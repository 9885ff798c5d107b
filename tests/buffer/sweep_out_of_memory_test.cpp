#include "buffer/sweep.hpp"
#include "core/failing_allocations.hpp"

#include <atomic>
#include <new>

// The sweep of sweep_test.cpp over the host's own memory: whichever allocation of an operation fails, the buffers are
// as they were or as asked for, every side has the same of them, and nothing is left under way or behind.

namespace unimem::testing {
namespace {

class OutOfMemorySweep : public ::testing::TestWithParam<Operation> {
 protected:
  /// Runs the operation with its n-th allocation in this thread failing. Returns whether there was one.
  bool attempt(Operation const& operation, Start start, std::size_t n) {
    bool reached = false;
    {
      Stage stage(first, second, start);
      bool failed = false;
      fail_allocation(n);
      try {
        operation.call(stage);
      } catch (BufferNotAllocated const&) {
        EXPECT_EQ(start, Start::empty);
      } catch (Error const&) {
        failed = true;
      } catch (std::bad_alloc const&) {
        failed = true;
      }
      reached = !allocation_is_to_fail();
      fail_allocation(0);
      // Who waits carries out work himself: then it is the work that has failed.
      for (auto const event : stage.events) failed = event.wait_for_error() != nullptr || failed;
      for (auto* const on : {&first, &second}) on->synchronize();
      expect_in_order(stage, operation, start, failed, on_device,
                      [this](UnifiedBuffer<std::uint32_t>& buffer, Words const& seen) {
                        for (auto* const on : {&first, &second}) {
                          EXPECT_EQ(on_device(buffer, *on), seen) << "the sides disagree";
                        }
                      });
      expect_given_back(stage);
    }
    EXPECT_EQ(first.memory_info().free_bytes, first.memory_info().total_bytes) << "a leak on the device";
    EXPECT_EQ(second.memory_info().free_bytes, second.memory_info().total_bytes) << "a leak on the device";
    return reached;
  }

  /// What a device has of a buffer, where what it holds counts as current.
  static Words on_device(UnifiedBuffer<std::uint32_t>& buffer, Device& on) {
    auto const lease = buffer.device_view(on);
    return {lease.data(), lease.data() + lease.size()};
  }

  Device& first = make_sim({.memory_bytes = Stage::device_bytes, .peer = false});
  Device& second = make_sim({.memory_bytes = Stage::device_bytes, .peer = false});
};

TEST_P(OutOfMemorySweep, WhicheverAllocationFailsNothingIsHalfDone) {
  std::size_t tries = 0;
  for (auto const start : small_starts) {
    bool reached = true;
    for (std::size_t n = 1; reached; ++n, ++tries) {
      ASSERT_LT(n, 2000U) << "it never passes";
      SCOPED_TRACE(::testing::Message() << GetParam().name << ", start " << static_cast<int>(start) << ", allocation "
                                        << n << " fails");
      reached = attempt(GetParam(), start, n);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(tries, small_starts.size()) << "some have failed";
  RecordProperty("tries", std::to_string(tries));
}

INSTANTIATE_TEST_SUITE_P(Operations, OutOfMemorySweep, ::testing::ValuesIn(operations()),
                         [](auto const& operation) { return std::string(operation.param.name); });

using WorkOutOfMemory = BufferTest;

TEST_F(WorkOutOfMemory, IsSubmittedAndOnRecordOrNotSubmitted) {
  auto& queue = sim.default_queue();
  bool reached = true;
  std::size_t refused = 0;
  for (std::size_t n = 1; reached; ++n) {
    ASSERT_LT(n, 2000U) << "it never passes";
    SCOPED_TRACE(::testing::Message() << "allocation " << n << " fails");
    auto y = synchronized();
    std::atomic<bool> ran = false;
    bool thrown = false;
    // Two windows of one buffer: what is recorded of the one must leave room for the other.
    std::array const operands{Operand{&y.core(), {0, 200}, Intent::write},
                              Operand{&y.core(), {200, 400}, Intent::read_write}};
    fail_allocation(n);
    try {
      run(queue, operands, [&ran](std::span<const HostArgument> arguments) {
        ran = true;
        for (auto const& argument : arguments) std::fill_n(static_cast<std::uint32_t*>(argument.data), 50, 7U);
      });
    } catch (std::bad_alloc const&) {
      thrown = true;
    }
    reached = !allocation_is_to_fail();
    fail_allocation(0);
    queue.synchronize();
    EXPECT_NE(ran, thrown) << "work that was refused has run, or work that was taken has not";
    EXPECT_EQ(y.state(), thrown ? BufferState::synchronized : BufferState::device_dirty);
    auto const expected = thrown ? counting(100) : std::vector<std::uint32_t>(100, 7U);
    EXPECT_EQ(y.to_vector(), expected);
    EXPECT_EQ(device_bytes(y, sim), expected);
    y.core().validate();
    refused += thrown ? 1 : 0;
    if (HasFailure()) return;
  }
  EXPECT_GT(refused, 5U);
}

}  // namespace
}  // namespace unimem::testing
