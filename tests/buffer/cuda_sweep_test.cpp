#include "buffer/cuda_fixture.hpp"
#include "buffer/sweep.hpp"
#include "device/cuda/driver.hpp"

#include <set>
#include <string_view>

// The sweep of sweep_test.cpp over the driver's own calls: whichever of them is refused, nothing else suffers; and when
// a GPU is lost in one, only what it alone held is.

namespace unimem::testing {
namespace {

using detail::cuda::Result;
using standin::FaultKind;

/// What can be refused: every function of the table, but for those that only say how it stands.
std::vector<char const*> functions() {
  std::vector<char const*> names{
#define UNIMEM_NAME(function, version, ...) #function,
      UNIMEM_CUDA_FUNCTIONS(UNIMEM_NAME)
#undef UNIMEM_NAME
  };
  std::set<std::string_view> const tells{"cuGetErrorName", "cuGetErrorString", "cuCtxPopCurrent", "cuCtxGetCurrent"};
  std::erase_if(names, [&](auto const* name) { return tells.contains(name); });
  return names;
}

/// Refusals of these leave something with the driver that nobody can give back.
bool gives_back(std::string_view function) {
  std::set<std::string_view> const all{"cuMemFree",      "cuMemFreeHost",   "cuMemHostUnregister",
                                       "cuModuleUnload", "cuStreamDestroy", "cuCtxPushCurrent"};
  return all.contains(function);
}

/// Whether `error` says which call it was.
bool names(Error const& error, std::string_view function) {
  if (auto const* const device = dynamic_cast<DeviceError const*>(&error)) {
    return device->backend == "cuda" && device->call == function && !device->code_name.empty();
  }
  return std::string_view(error.what()).find(function) != std::string_view::npos;
}

class CudaFaultSweep : public ::testing::TestWithParam<Operation> {
 protected:
  CudaFaultSweep() {
    for (auto* const gpu : {&first, &second}) warm_up(*gpu);
  }

  /// How often an operation calls each function, when all is well.
  std::vector<char const*> called_by(Operation const& operation, Start start) {
    Stage stage(first, second, start);
    std::vector<std::size_t> before;
    auto const all = functions();
    for (auto const* const name : all) before.push_back(standin_control().calls(name));
    try {
      operation.call(stage);
    } catch (BufferNotAllocated const&) {
      EXPECT_EQ(start, Start::empty);
    }
    for (auto const event : stage.events) EXPECT_EQ(event.wait_for_error(), nullptr);
    std::vector<char const*> called;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (standin_control().calls(all[i]) != before[i]) called.push_back(all[i]);
    }
    return called;
  }

  /// Runs the operation with the n-th call of `function` refused. Returns whether it was called that often.
  bool attempt(Operation const& operation, Start start, char const* function, std::size_t nth, Result code) {
    auto const before = InUse::now();
    bool reached = false;
    {
      Stage stage(first, second, start);
      auto const calls = standin_control().calls(function);
      standin_control().fail(function, nth, code, FaultKind::once);
      bool failed = false;
      auto const told = [&](Error const& error) {
        failed = true;
        EXPECT_TRUE(names(error, function)) << error.what();
      };
      try {
        operation.call(stage);
      } catch (BufferNotAllocated const&) {
        EXPECT_EQ(start, Start::empty);
      } catch (Error const& error) {
        told(error);
      }
      for (auto const event : stage.events) failed = event.wait_for_error() != nullptr || failed;
      for (auto* const gpu : {&first, &second}) gpu->synchronize();
      reached = standin_control().calls(function) - calls >= nth;
      EXPECT_THAT(standin::violations(standin_control()), ::testing::IsEmpty());
      standin_control().reset();
      expect_in_order(stage, operation, start, failed, on_device, [](auto&, auto const&) {});
      expect_given_back(stage);
    }
    if (!gives_back(function)) {
      EXPECT_EQ(InUse::now(), before);
      for (auto* const gpu : {&first, &second})
        EXPECT_EQ(gpu->memory_info().free_bytes, gpu->memory_info().total_bytes);
    }
    EXPECT_FALSE(first.is_lost() || second.is_lost());
    EXPECT_EQ(standin_control().stack_depth(), 0U);
    return reached;
  }

  /// What a GPU has of a buffer, which it may have written.
  static Words on_device(UnifiedBuffer<std::uint32_t>& buffer, Device& gpu) {
    auto const lease = buffer.device(gpu);
    Words there(buffer.size());
    gpu.default_queue().download(there.data(), lease.native(), buffer.size_bytes()).wait();
    return there;
  }

  Device& first = device("cuda:0");
  Device& second = device("cuda:1");
};

TEST_P(CudaFaultSweep, WhicheverCallIsRefusedNothingElseSuffers) {
  std::size_t tries = 0;
  for (auto const start : starts) {
    for (auto const* const function : called_by(GetParam(), start)) {
      bool reached = true;
      for (std::size_t n = 1; reached; ++n, ++tries) {
        ASSERT_LT(n, 200U) << "it never passes";
        // Each call with each code, from one start or another.
        auto const code =
            (n + static_cast<std::size_t>(start)) % 2 == 0 ? Result::out_of_memory : Result::invalid_value;
        SCOPED_TRACE(::testing::Message() << GetParam().name << ", start " << static_cast<int>(start) << ", call " << n
                                          << " of " << function << " refused with " << static_cast<int>(code));
        reached = attempt(GetParam(), start, function, n, code);
        if (HasFailure()) return;
      }
    }
  }
  RecordProperty("tries", std::to_string(tries));
}

INSTANTIATE_TEST_SUITE_P(Operations, CudaFaultSweep, ::testing::ValuesIn(operations()),
                         [](auto const& operation) { return std::string(operation.param.name); });

}  // namespace
}  // namespace unimem::testing
