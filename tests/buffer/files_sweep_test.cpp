#include "buffer/sweep.hpp"
#include "file/failing_calls.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <new>
#include <string>
#include <string_view>
#include <vector>

// The sweep of sweep_test.cpp over calls to the system: whichever of them is refused that makes, reads, writes or syncs
// a file or maps memory, nothing is lost, and the operation can be done again.

namespace unimem::testing {
namespace {

/// Where a try starts from. The host has memory for four buffers, of which that many stand there for others: for more
/// than the rest something has to go to a file first.
struct Setting {
  Start start;
  std::size_t others;
};

constexpr std::array settings{Setting{Start::in_file, 0}, Setting{Start::in_file, 3}, Setting{Start::on_host, 2},
                              Setting{Start::on_first, 2}, Setting{Start::in_windows, 2}};

/// One try after the other.
class Refusing {
 public:
  /// Runs the operation again and again, each time with a later call failing, until there is none. Returns how often.
  std::size_t refuse_each(Operation const& operation) {
    std::size_t tries = 0;
    for (auto const& setting : settings) {
      bool reached = true;
      for (std::size_t n = 1; reached && !::testing::Test::HasFailure(); ++n, ++tries) {
        EXPECT_LT(n, 200U) << "it never passes";
        SCOPED_TRACE(::testing::Message() << operation.name << ", start " << static_cast<int>(setting.start) << ", "
                                          << setting.others << " others, call " << n << " is refused");
        reached = attempt(operation, setting, n);
      }
    }
    return tries;
  }

 private:
  /// Runs the operation with the n-th call failing. Returns whether there was one.
  bool attempt(Operation const& operation, Setting const& setting, std::size_t n) {
    bool reached = false, failed = false;
    Stage stage(first, second, setting.start, Stage::Spills::yes);
    stage.manager.set_limit(device("cpu"), Location::host, 4 * Stage::bytes);
    std::vector<Allocation> others;
    for (std::size_t i = 0; i < setting.others; ++i) {
      others.push_back(stage.manager.acquire(device("cpu"), Location::host, Stage::bytes));
    }
    stage.manager.cleanup();  // memory for what was evicted is mapped anew
    fail_call(n);
    try {
      operation.call(stage);
    } catch (Error const&) {
      failed = true;
    } catch (std::bad_alloc const&) {
      failed = true;
    }
    for (auto const event : stage.events) failed = event.wait_for_error() != nullptr || failed;
    for (auto* const on : {&first, &second}) on->synchronize();
    reached = !call_is_to_fail();
    fail_call(0);
    others.clear();
    stage.manager.set_limit(device("cpu"), Location::host, 64 * Stage::bytes);
    auto const on_device = [](UnifiedBuffer<std::uint32_t>& buffer, Device& on) {
      auto const lease = buffer.device_view(on);
      return Words(lease.data(), lease.data() + lease.size());
    };
    expect_in_order(stage, operation, setting.start, failed, on_device, [&](auto& buffer, Words const& seen) {
      for (auto* const on : {&first, &second}) EXPECT_EQ(on_device(buffer, *on), seen) << "the sides disagree";
    });
    expect_given_back(stage);
    EXPECT_EQ(stage.manager.statistics().spill_files, 0U) << "a file is left";
    return reached;
  }

  Device& first = make_sim({.memory_bytes = Stage::device_bytes, .peer = false});
  Device& second = make_sim({.memory_bytes = Stage::device_bytes, .peer = false});
};

class FilesSweep : public ::testing::TestWithParam<Operation> {};

TEST_P(FilesSweep, WhicheverCallIsRefusedNothingIsLost) {
  RecordProperty("tries", std::to_string(Refusing().refuse_each(GetParam())));
}

TEST(FilesSweepOfACopy, RefusesCallsOfEachKind) {
  auto const all = operations();
  auto const operation = std::ranges::find(all, std::string_view("clone"), &Operation::name);
  ASSERT_NE(operation, all.end());
  std::array<std::size_t, calls.size()> before{};
  std::ranges::transform(calls, before.begin(), refused);
  Refusing().refuse_each(*operation);
  for (auto const call : calls) {
    auto const i = static_cast<std::size_t>(call);
    EXPECT_GT(refused(call), before[i]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Operations, FilesSweep, ::testing::ValuesIn(operations()),
                         [](auto const& operation) { return std::string(operation.param.name); });

}  // namespace
}  // namespace unimem::testing
