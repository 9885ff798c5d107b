#include "kernel/graph_conformance.hpp"

#include <unimem/device/cuda.hpp>

#include "device/cuda/driver.hpp"
#include "device/standin_watch.hpp"

#include <cstdlib>

// Graphs of the CUDA driver, on the stand-in.

namespace unimem {
namespace {

using detail::cuda::CaptureMode;
using detail::cuda::CaptureStatus;
using detail::cuda::Graph;
using detail::cuda::Result;
using detail::cuda::Stream;
using standin::FaultKind;

/// One of them is lost.
bool const has_enough_gpus = [] {
  setenv("UNIMEM_CUDA_STANDIN_DEVICES", "3", 1);
  return true;
}();

INSTANTIATE_TEST_SUITE_P(Cuda, Graphs,
                         ::testing::Values(GraphCase{"first", "cuda:0"}, GraphCase{"pooled", "cuda:1,allocator=async"}),
                         graph_case_name);

detail::cuda::Driver const& driver() {
  static auto const& loaded = *new detail::cuda::LoadedDriver(detail::cuda::load_driver());
  return loaded.driver;
}

class CudaGraphs : public ::testing::Test {
 protected:
  using Words = std::vector<std::uint32_t>;
  static constexpr std::size_t count = 100;

  CudaGraphs() { EXPECT_TRUE(has_enough_gpus); }

  [[nodiscard]] UnifiedBuffer<std::uint32_t> synchronized(Device& home, std::uint32_t value) {
    BufferOptions options;
    options.manager = &manager;
    options.device = &home;
    UnifiedBuffer<std::uint32_t> buffer(count, options);
    buffer.copy_from(Words(count, value));
    buffer.sync_to_device();
    return buffer;
  }
  void affine(Queue& on_queue, UnifiedBuffer<std::uint32_t>& x, std::uint32_t factor, std::uint32_t amount) {
    launch(on_queue, kernel, Range{count}, readwrite(x), factor, amount);
  }
  [[nodiscard]] static std::size_t graphs_and_executables() {
    auto const live = standin_control().live();
    return live.graphs + live.executables;
  }

  Device& on = device("cuda:0");
  MemoryManager manager;
  Queue queue = on.create_queue();
  Kernel kernel = Kernel("affine").source(R"(UNIMEM_KERNEL affine(UNIMEM_BUFFER(unimem_u32, x), unimem_u32 factor,
                                                                  unimem_u32 amount) {
      UNIMEM_GLOBAL unimem_u32* data = UNIMEM_DATA(unimem_u32, x);
      data[UNIMEM_ITEM_X] = data[UNIMEM_ITEM_X] * factor + amount; })");
};

TEST_F(CudaGraphs, AreSubmittedByOneCall) {
  auto x = synchronized(on, 1);
  auto const streams = standin_control().live().streams;
  {
    auto const graph = capture(queue, [&] {
      for (int i = 0; i < 5; ++i) affine(queue, x, 1, 1);
    });
    EXPECT_EQ(standin_control().live().streams, streams) << "captured in a stream of its own, which is gone";
    EXPECT_EQ(standin_control().live().graphs, 0U);
    EXPECT_EQ(standin_control().live().executables, 1U);
    auto const launches = standin_control().calls("cuLaunchKernel");
    for (int i = 0; i < 10; ++i) graph.launch(queue);
    EXPECT_EQ(standin_control().calls("cuGraphLaunch"), 10U);
    EXPECT_EQ(standin_control().calls("cuLaunchKernel"), launches);
    EXPECT_EQ(x.to_vector(), Words(count, 51));
  }
  EXPECT_EQ(graphs_and_executables(), 0U);
}

TEST_F(CudaGraphs, StandUntilTheirWorkIsDone) {
  auto x = synchronized(on, 1);
  standin_control().hold_stream(queue.native<Stream>(), true);
  {
    auto const graph = capture(queue, [&] { affine(queue, x, 3, 1); });
    graph.launch(queue);
    graph.launch(queue);
  }
  EXPECT_EQ(standin_control().live().executables, 1U);
  standin_control().hold_stream(queue.native<Stream>(), false);
  EXPECT_EQ(x.to_vector(), Words(count, 13));
  EXPECT_EQ(graphs_and_executables(), 0U);
}

TEST_F(CudaGraphs, AreCapturedAndLaunchedOnDefaultStreamsToo) {
  auto x = synchronized(on, 1);
  auto legacy = adopt_stream(on, nullptr);
  auto const graph = capture(legacy, [&] { affine(legacy, x, 2, 0); });
  graph.launch(legacy);
  graph.launch(queue);
  EXPECT_EQ(x.to_vector(), Words(count, 4));
}

TEST_F(CudaGraphs, ForeignCapturesGoOn) {
  auto x = synchronized(on, 1);
  auto const graph = capture(queue, [&] { affine(queue, x, 2, 0); });
  Stream const stream = queue.native<Stream>();
  auto maker = on.create_queue();
  auto const in_context = [&](auto const& call) { maker.run_native([&](void*) { call(); }).wait(); };
  in_context([&] { ASSERT_EQ(driver().cuStreamBeginCapture(stream, CaptureMode::relaxed), Result::success); });
  EXPECT_THROW(std::ignore = capture(queue, [&] { affine(queue, x, 2, 0); }), UnsupportedOperation);
  EXPECT_THROW(graph.launch(queue), UnsupportedOperation);
  in_context([&] {
    CaptureStatus status{};
    EXPECT_EQ(driver().cuStreamIsCapturing(stream, &status), Result::success);
    EXPECT_EQ(status, CaptureStatus::active) << "nothing has spoilt it";
    Graph theirs = nullptr;
    EXPECT_EQ(driver().cuStreamEndCapture(stream, &theirs), Result::success);
    EXPECT_EQ(driver().cuGraphDestroy(theirs), Result::success);
  });
  EXPECT_EQ(x.to_vector(), Words(count, 1));
  graph.launch(queue);
  EXPECT_EQ(x.to_vector(), Words(count, 2));
}

TEST_F(CudaGraphs, FailedCapturesLeaveNothing) {
  auto x = synchronized(on, 1);
  affine(queue, x, 1, 0);  // compiled
  x.synchronize();
  bool reached = true;
  for (std::size_t n = 1; reached; ++n) {
    ASSERT_LT(n, 100U) << "it never passes";
    SCOPED_TRACE(n);
    auto const streams = standin_control().live().streams;
    auto const calls = standin_control().calls(nullptr);
    standin_control().fail(nullptr, n, Result::not_permitted, FaultKind::once);
    try {
      auto const graph = capture(queue, [&] {
        affine(queue, x, 2, 0);
        affine(queue, x, 1, 1);
      });
      reached = standin_control().calls(nullptr) - calls >= n;
      standin_control().reset();
      graph.launch(queue);
      EXPECT_EQ(x.to_vector(), Words(count, 3));
      x.copy_from(Words(count, 1));
      x.sync_to_device();
    } catch (DeviceError const& error) {
      EXPECT_EQ(error.code_name, "CUDA_ERROR_NOT_PERMITTED");
      reached = standin_control().calls(nullptr) - calls >= n;
      standin_control().reset();
    }
    EXPECT_EQ(graphs_and_executables(), 0U);
    EXPECT_EQ(standin_control().live().streams, streams);
    EXPECT_EQ(x.to_vector(), Words(count, 1));
    EXPECT_EQ(x.state(), BufferState::synchronized);
    x.core().validate();
  }
}

TEST_F(CudaGraphs, FailedLaunchesLeaveAllOrNothing) {
  auto x = synchronized(on, 1), y = synchronized(on, 10);
  auto const graph = capture(queue, [&] {
    affine(queue, x, 2, 0);
    affine(queue, y, 1, 1);
  });
  bool reached = true;
  for (std::size_t n = 1; reached; ++n) {
    ASSERT_LT(n, 100U) << "it never passes";
    SCOPED_TRACE(n);
    auto const calls = standin_control().calls(nullptr);
    standin_control().fail(nullptr, n, Result::not_permitted, FaultKind::once);
    bool failed = false;
    try {
      failed = graph.launch(queue).wait_for_error() != nullptr;
    } catch (DeviceError const&) {
      failed = true;
    }
    reached = standin_control().calls(nullptr) - calls >= n;
    standin_control().reset();
    for (auto* const buffer : {&x, &y}) {
      try {
        std::ignore = buffer->host_view();
      } catch (DeviceError const&) {
        EXPECT_TRUE(failed);
      }
    }
    EXPECT_EQ(x.to_vector(), Words(count, failed ? 1 : 2));
    EXPECT_EQ(y.to_vector(), Words(count, failed ? 10 : 11));
    x.copy_from(Words(count, 1));
    y.copy_from(Words(count, 10));
    for (auto* const buffer : {&x, &y}) {
      buffer->sync_to_device();
      buffer->core().validate();
    }
  }
}

TEST_F(CudaGraphs, OnALostGpuFailAndEnd) {
  auto& gpu = device("cuda:2");
  auto x = synchronized(gpu, 1), y = synchronized(gpu, 2);
  auto on_gpu = gpu.create_queue();
  auto const graph = capture(on_gpu, [&] { affine(on_gpu, x, 2, 0); });
  standin_control().fail("cuGraphLaunch", 1, Result::illegal_address, FaultKind::late);
  EXPECT_THROW(graph.launch(on_gpu).wait(), DeviceError);
  EXPECT_TRUE(gpu.is_lost());
  EXPECT_THROW(std::ignore = x.host_view(), DeviceError);
  EXPECT_EQ(x.to_vector(), Words(count, 1)) << "the host's copy is the last good one";
  EXPECT_EQ(y.to_vector(), Words(count, 2));
  EXPECT_THROW(graph.launch(on_gpu), DeviceError);
  EXPECT_THROW(std::ignore = capture(on_gpu, [&] { affine(on_gpu, y, 2, 0); }), DeviceError);
}

TEST_F(CudaGraphs, AtProcessEndAreLeftToTheDriver) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto const scenario = [this] {
    static auto x = synchronized(on, 1);
    static auto const graph = std::make_unique<unimem::Graph const>(capture(queue, [&] { affine(queue, x, 2, 0); }));
    graph->launch(on.default_queue());
    std::exit(7);
  };
  EXPECT_EXIT(scenario(), ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace unimem
