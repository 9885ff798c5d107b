#include "buffer/sweep.hpp"

namespace unimem::testing {
namespace {

class FaultSweep : public ::testing::TestWithParam<Operation> {
 protected:
  /// Runs the operation once with that fault. Returns whether anything failed.
  void attempt(Operation const& operation, Start start, bool may_lose, SimOptions const& faults, bool on_second,
               bool& failed) {
    failed = false;
    {
      Stage stage(first, second, start);
      bool const has_data = start != Start::empty;
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

      auto const before_a = stage.in_a, before_b = stage.in_b;
      operation.result(stage);
      auto const check = [&](UnifiedBuffer<std::uint32_t>& buffer, Words const& before, Words const& after) {
        auto const seen = read_back(buffer, failed);
        if (!seen) {
          EXPECT_TRUE(failed && may_lose) << buffer.name() << " lost what was not at stake";
        } else if (has_data) {
          bool const as_it_was = std::equal(seen->begin(), seen->end(), before.begin(), before.end());
          bool const as_it_is = std::equal(seen->begin(), seen->end(), after.begin(), after.end());
          EXPECT_TRUE(as_it_is || (failed && as_it_was)) << buffer.name() << " is neither as it was nor as asked for";
        }
        buffer.core().validate();
        // And it goes on working, on both devices.
        auto const anew = Stage::words_from(77);
        Words const fitting(anew.begin(), anew.begin() + static_cast<std::ptrdiff_t>(buffer.size()));
        buffer.copy_from(fitting);
        for (auto* const on : {&first, &second}) {
          auto const lease = buffer.device(*on);
          EXPECT_EQ(Words(lease.data(), lease.data() + lease.size()), fitting);
        }
        EXPECT_EQ(buffer.to_vector(), fitting);
      };
      check(*stage.a, before_a, stage.in_a);
      if (stage.b->state() != BufferState::uninitialized) check(*stage.b, before_b, stage.in_b);
      stage.a.reset();
      stage.b.reset();
      first.synchronize();
      second.synchronize();
      EXPECT_EQ(stage.manager.statistics().active_bytes, 0U) << "a leak";
      EXPECT_EQ(stage.manager.statistics().active_allocations, 0U) << "a leak";
    }
    EXPECT_EQ(first.memory_info().free_bytes, first.memory_info().total_bytes) << "a leak on the device";
    EXPECT_EQ(second.memory_info().free_bytes, second.memory_info().total_bytes) << "a leak on the device";
  }

  Device& first = make_sim({.memory_bytes = std::size_t{1} << 20, .peer = false});
  Device& second = make_sim({.memory_bytes = std::size_t{1} << 20, .peer = false});
};

/// For every device call an operation makes on either device, from every starting state: that call failing, or the
/// device being lost from then on.
TEST_P(FaultSweep, WhicheverCallFailsNothingElseDoes) {
  std::size_t tries = 0;
  for (auto const start : starts) {
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
          // What a failed command was writing over may be gone where the one good copy stood.
          bool const sole_copy = start != Start::on_host && start != Start::on_host_and_first;
          attempt(GetParam(), start, sole_copy, faults, on_second, failed);
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
