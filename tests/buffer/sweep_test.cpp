#include "buffer/sweep.hpp"

namespace unimem::testing {
namespace {

class FaultSweep : public ::testing::TestWithParam<Operation> {
 protected:
  /// Runs the operation once with that fault. Returns whether anything failed.
  void attempt(Operation const& operation, Start start, SimOptions const& faults, bool on_second, bool& failed) {
    failed = false;
    {
      Stage stage(first, second, start);
      set_sim_faults(on_second ? second : first, faults);
      try {
        operation.call(stage);
      } catch (BufferNotAllocated const&) {
        EXPECT_EQ(start, Start::empty);
      } catch (Error const&) {
        failed = true;
      }
      for (auto const event : stage.events) failed = event.wait_for_error() != nullptr || failed;
      for (auto* const on : {&first, &second}) on->synchronize();
      set_sim_faults(first, {});
      set_sim_faults(second, {});

      auto const on_device = [](UnifiedBuffer<std::uint32_t>& buffer, Device& on) {
        auto const lease = buffer.device(on);
        return Words(lease.data(), lease.data() + lease.size());
      };
      expect_in_order(stage, operation, start, failed, on_device, [](auto&, auto const&) {});
      expect_given_back(stage);
    }
    EXPECT_EQ(first.memory_info().free_bytes, first.memory_info().total_bytes) << "a leak on the device";
    EXPECT_EQ(second.memory_info().free_bytes, second.memory_info().total_bytes) << "a leak on the device";
  }

  Device& first = make_sim({.memory_bytes = Stage::device_bytes, .peer = false});
  Device& second = make_sim({.memory_bytes = Stage::device_bytes, .peer = false});
};

/// For every device call an operation makes on either device, from every starting state: that call failing, or the
/// device being lost from then on.
TEST_P(FaultSweep, WhicheverCallFailsNothingElseDoes) {
  std::size_t tries = 0;
  for (auto const start : small_starts) {
    for (bool const lose : {false, true}) {
      for (bool const on_second : {false, true}) {
        bool failed = true;
        for (std::uint64_t n = 1; failed; ++n, ++tries) {
          ASSERT_LT(n, 50U) << "it never passes";
          SCOPED_TRACE(::testing::Message() << GetParam().name << ", start " << static_cast<int>(start) << ", "
                                            << (lose ? "lost after" : "failing") << " call " << n << " of the "
                                            << (on_second ? "second" : "first") << " device");
          SimOptions faults;
          (lose ? faults.lose_after : faults.fail_call) = n;
          attempt(GetParam(), start, faults, on_second, failed);
          if (HasFailure()) return;
        }
      }
    }
  }
  RecordProperty("tries", std::to_string(tries));
}

INSTANTIATE_TEST_SUITE_P(Operations, FaultSweep, ::testing::ValuesIn(operations()),
                         [](auto const& operation) { return std::string(operation.param.name); });

}  // namespace
}  // namespace unimem::testing
