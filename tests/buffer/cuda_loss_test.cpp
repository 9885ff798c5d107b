#include "buffer/cuda_fixture.hpp"
#include "buffer/sweep.hpp"

#include <set>
#include <string_view>
#include <thread>

// A GPU that is lost in the middle of an operation, at every call of it that reaches the driver. A lost GPU stays lost,
// so each try takes another: the stand-in has plenty.

namespace unimem::testing {
namespace {

using detail::cuda::Result;
using standin::FaultKind;

bool const has_many_gpus = [] {
  setenv("UNIMEM_CUDA_STANDIN_DEVICES", "600", 1);
  setenv("UNIMEM_CUDA_STANDIN_CAPACITY", "16777216", 1);
  return true;
}();

/// One that nobody has used, and so nobody has lost.
Device* fresh_gpu() {
  static int next = 0;
  auto& gpu = device("cuda:" + std::to_string(next++));
  static_cast<void>(gpu.default_queue());
  static_cast<void>(gpu.pages());  // asks about each of hundreds of neighbours
  return &gpu;
}

/// Whether a GPU is lost, which it may not have been told yet: calls are, once nothing is running any more.
bool is_lost(Device& gpu) {
  gpu.synchronize();
  while (standin_control().live().pending != 0) std::this_thread::yield();
  try {
    static_cast<void>(gpu.memory_info());
  } catch (DeviceError const&) {
    EXPECT_TRUE(gpu.is_lost());
  }
  return gpu.is_lost();
}

/// Whether an operation leaves something on a GPU alone that the host had before.
bool leaves_on_device(std::string_view operation) {
  std::set<std::string_view> const all{"device",
                                       "device_of_another",
                                       "device_by_queue",
                                       "device_overwrite",
                                       "mark_device_dirty",
                                       "launch",
                                       "free_with_work_in_flight",
                                       "reset_with_work_in_flight",
                                       "discard_with_work_in_flight",
                                       "copy",
                                       "copy_of_overlapping_slices",
                                       "copy_of_a_block",
                                       "fill",
                                       "fill_of_a_part",
                                       "release_host"};
  return all.contains(operation);
}

class CudaDeviceLoss : public ::testing::TestWithParam<Operation> {
 protected:
  CudaDeviceLoss() { EXPECT_TRUE(has_many_gpus); }

  /// Runs the operation between two GPUs, of which one is lost at the n-th call. Returns whether it came to that.
  bool attempt(Operation const& operation, Start start, std::size_t nth) {
    bool reached = false;
    {
      Stage stage(*gpus[0], *gpus[1], start);
      auto const calls = standin_control().calls(nullptr);
      standin_control().fail(nullptr, nth, Result::illegal_address, FaultKind::sticky);
      bool failed = false;
      try {
        operation.call(stage);
      } catch (BufferNotAllocated const&) {
        EXPECT_EQ(start, Start::empty);
      } catch (DataLost const&) {
        failed = true;
      } catch (DeviceError const& error) {
        // The stand-in has no context to lose while none is current, and says so.
        EXPECT_THAT(error.code_name, ::testing::AnyOf("CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_INVALID_CONTEXT"))
            << error.what();
        EXPECT_EQ(error.backend, "cuda");
        failed = true;
      }
      for (auto const event : stage.events) failed = event.wait_for_error() != nullptr || failed;
      reached = standin_control().calls(nullptr) - calls >= nth;
      standin_control().reset();
      working = {&sim};
      for (auto* const gpu : gpus) {
        if (!is_lost(*gpu)) working.push_back(gpu);
      }
      EXPECT_GE(working.size(), 2U) << "one at most is lost";
      look(stage, operation, start, failed);
      stage.a.reset();
      stage.b.reset();
      for (auto* const gpu : gpus) gpu->synchronize();
      EXPECT_EQ(stage.manager.statistics().active_bytes, 0U) << "a leak";
    }
    for (auto*& gpu : gpus) {
      if (gpu->is_lost()) gpu = fresh_gpu();
    }
    return reached;
  }

  void look(Stage& stage, Operation const& operation, Start start, bool& failed) {
    auto const before_a = stage.in_a, before_b = stage.in_b;
    operation.result(stage);
    bool const host_had_it = start == Start::on_host || start == Start::on_host_and_first;
    auto const at = [&](UnifiedBuffer<std::uint32_t>& buffer, Words const& was, Words const& is, bool counts) {
      auto const seen = read_back(buffer, failed);
      if (!seen) {
        EXPECT_TRUE(!host_had_it || leaves_on_device(operation.name)) << buffer.name() << " was on the host";
      } else if (counts) {
        EXPECT_TRUE(is_in_order(*seen, was, is, true, operation.by_rows))
            << buffer.name() << " is neither as it was nor as asked for";
      }
      buffer.core().validate();
      // Everything else goes on with it: the GPU that is left, the host, a simulated device.
      auto const anew = Stage::words_from(77);
      Words const fitting(anew.begin(), anew.begin() + static_cast<std::ptrdiff_t>(buffer.size()));
      buffer.copy_from(fitting);
      for (auto* const other : working) {
        auto const lease = buffer.device_view(*other);
        Words there(buffer.size());
        other->default_queue().download(there.data(), lease.native(), buffer.size_bytes()).wait();
        EXPECT_EQ(there, fitting);
      }
      EXPECT_EQ(buffer.to_vector(), fitting);
    };
    bool const has_data = start != Start::empty;
    at(*stage.a, before_a, stage.in_a, has_data && !operation.drops_a);
    if (stage.b->state() != BufferState::uninitialized) at(*stage.b, before_b, stage.in_b, has_data);
  }

  std::array<Device*, 2> gpus{fresh_gpu(), fresh_gpu()};
  std::vector<Device*> working;
  Device& sim = make_sim({.memory_bytes = std::size_t{1} << 20});
};

TEST_P(CudaDeviceLoss, OnlyTheGpusSoleBytesAreLost) {
  for (auto const start : starts) {
    bool reached = true;
    for (std::size_t n = 1; reached; ++n) {
      ASSERT_LT(n, 200U) << "it never passes";
      SCOPED_TRACE(::testing::Message() << GetParam().name << ", start " << static_cast<int>(start) << ", call " << n);
      reached = attempt(GetParam(), start, n);
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Operations, CudaDeviceLoss, ::testing::ValuesIn(operations()),
                         [](auto const& operation) { return std::string(operation.param.name); });

TEST(CudaLoss, WhatALostGpuHadPinnedIsReleasedByAnother) {
  ASSERT_TRUE(has_many_gpus);
  auto& first = *fresh_gpu();
  auto& cpu = device("cpu");
  constexpr std::size_t bytes = 100'000;
  auto const before = cpu.allocate(bytes, Location::pinned);  // through the first
  auto& second = *fresh_gpu();
  auto const registered = standin_control().live().registered;
  standin_control().lose(0, Result::illegal_address);
  ASSERT_TRUE(is_lost(first));
  cpu.release(before, Location::pinned);
  EXPECT_EQ(standin_control().live().registered, registered - 1);
  auto const after = cpu.allocate(bytes, Location::pinned);
  EXPECT_EQ(standin_control().live().registered, registered) << "and what comes then is pinned for the others";
  auto const there = second.allocate(bytes, Location::device);
  auto queue = second.create_queue();
  auto* const words = reinterpret_cast<unsigned char*>(after.object);
  std::fill_n(words, bytes, 9);
  queue.upload(there, words, bytes).wait();
  std::vector<unsigned char> back(bytes);
  queue.download(back.data(), there, bytes).wait();
  EXPECT_EQ(back, std::vector<unsigned char>(bytes, 9));
  second.release(there, Location::device);
  cpu.release(after, Location::pinned);
}

}  // namespace
}  // namespace unimem::testing
