#include "device/cuda_standin_fixture.hpp"

#include <thread>

// Stream capture and graphs of the stand-in driver.

namespace unimem::standin {
namespace {

using testing::Each;
using testing::ElementsAre;

class CudaStandInCapture : public CudaStandIn {
 protected:
  void SetUp() override {
    CudaStandIn::SetUp();
    stream = create_stream();
    other = create_stream();
    event = create_event();
    joined = create_event();
    memory = allocate(100);
    ok(cu.cuMemsetD8Async(memory, 0, 100, stream));
    ok(cu.cuStreamSynchronize(stream));
  }

  void TearDown() override {
    for (auto const each : {stream, other}) ok(cu.cuStreamDestroy(each));
    for (auto const each : {event, joined}) ok(cu.cuEventDestroy(each));
    ok(cu.cuMemFree(memory));
    CudaStandIn::TearDown();
  }

  void begin(CaptureMode mode = CaptureMode::thread_local_only) const { ok(cu.cuStreamBeginCapture(stream, mode)); }

  [[nodiscard]] Result end() const {
    Graph graph = nullptr;
    auto const result = cu.cuStreamEndCapture(stream, &graph);
    if (graph != nullptr) ok(cu.cuGraphDestroy(graph));
    return result;
  }

  [[nodiscard]] CaptureStatus status(Stream of) const {
    CaptureStatus status{};
    ok(cu.cuStreamIsCapturing(of, &status));
    return status;
  }

  Stream stream = nullptr, other = nullptr;
  Event event = nullptr, joined = nullptr;
  DevicePointer memory = 0;
};

TEST_F(CudaStandInCapture, ForbidsWhatAThreadsModeDoesNotAllow) {
  // CUDA Driver API, cuThreadExchangeStreamCaptureMode.
  struct Case {
    CaptureMode capture, own;
    bool same_thread, allowed;
  };
  using enum CaptureMode;
  for (auto const [mode, own, same_thread, allowed] : {
           Case{global, global, true, false},
           {global, global, false, false},
           {global, thread_local_only, true, false},
           {global, thread_local_only, false, true},
           {global, relaxed, true, true},
           {global, relaxed, false, true},
           {thread_local_only, global, true, false},
           {thread_local_only, global, false, true},
           {thread_local_only, thread_local_only, true, false},
           {thread_local_only, relaxed, true, true},
           {relaxed, global, true, true},
           {relaxed, global, false, true},
       }) {
    begin(mode);
    auto const ask = [&] {
      auto before = own;
      ok(cu.cuThreadExchangeStreamCaptureMode(&before));
      EXPECT_EQ(before, global) << "what a thread begins with";
      EXPECT_EQ(cu.cuStreamQuery(other), allowed ? Result::success : Result::stream_capture_unsupported);
      ok(cu.cuThreadExchangeStreamCaptureMode(&before));
      EXPECT_EQ(before, own);
    };
    if (same_thread) {
      ask();
    } else {
      std::jthread([&] {
        ok(cu.cuCtxPushCurrent(contexts[0]));
        ask();
        ok(cu.cuCtxPopCurrent(nullptr));
      }).join();
    }
    EXPECT_EQ(end(), allowed ? Result::success : Result::stream_capture_invalidated)
        << static_cast<int>(mode) << ' ' << static_cast<int>(own) << ' ' << same_thread;
  }
  auto wrong = static_cast<CaptureMode>(3);
  EXPECT_EQ(cu.cuThreadExchangeStreamCaptureMode(&wrong), Result::invalid_value);
}

TEST_F(CudaStandInCapture, MakesAReusableGraph) {
  auto* const pinned = allocate_pinned(1);
  begin();
  EXPECT_EQ(status(stream), CaptureStatus::active);
  EXPECT_EQ(status(other), CaptureStatus::none);
  ok(cu.cuMemcpyHtoDAsync(memory, pinned, 1, stream));
  ok(cu.cuMemcpyDtoDAsync(memory + 1, memory, 1, stream));
  Graph graph = nullptr;
  ok(cu.cuStreamEndCapture(stream, &graph));
  EXPECT_EQ(status(stream), CaptureStatus::none);
  EXPECT_THAT(read(memory, 2), Each(0));  // nothing has run
  GraphExec executable = nullptr;
  ok(cu.cuGraphInstantiateWithFlags(&executable, graph, 0));
  ok(cu.cuGraphDestroy(graph));
  for (unsigned char round = 1; round < 4; ++round) {
    pinned[0] = std::byte{round};
    ok(cu.cuGraphLaunch(executable, other));
    ok(cu.cuStreamSynchronize(other));
    EXPECT_THAT(read(memory, 2), Each(round));
  }
  EXPECT_EQ(control().live().executables, 1U);
  ok(cu.cuGraphExecDestroy(executable));
  EXPECT_EQ(cu.cuGraphLaunch(executable, stream), Result::invalid_value);
  ok(cu.cuMemFreeHost(pinned));
}

TEST_F(CudaStandInCapture, FollowsAForkThatJoinsAgain) {
  begin();
  ok(cu.cuMemsetD8Async(memory, 1, 1, stream));
  ok(cu.cuEventRecord(event, stream));
  ok(cu.cuStreamWaitEvent(other, event, 0));
  EXPECT_EQ(status(other), CaptureStatus::active);
  ok(cu.cuMemcpyDtoDAsync(memory + 1, memory, 1, other));
  ok(cu.cuEventRecord(joined, other));
  ok(cu.cuStreamWaitEvent(stream, joined, 0));
  ok(cu.cuMemcpyDtoDAsync(memory + 2, memory + 1, 1, stream));
  Graph graph = nullptr;
  GraphExec executable = nullptr;
  ok(cu.cuStreamEndCapture(stream, &graph));
  ok(cu.cuGraphInstantiateWithFlags(&executable, graph, 0));
  ok(cu.cuGraphLaunch(executable, stream));
  ok(cu.cuStreamSynchronize(stream));
  EXPECT_THAT(read(memory, 3), Each(1));
  ok(cu.cuGraphExecDestroy(executable));
  ok(cu.cuGraphDestroy(graph));
}

TEST_F(CudaStandInCapture, RefusesAForkThatDoesNotJoin) {
  begin();
  ok(cu.cuEventRecord(event, stream));
  ok(cu.cuStreamWaitEvent(other, event, 0));
  ok(cu.cuMemsetD8Async(memory, 1, 1, other));
  EXPECT_EQ(end(), Result::stream_capture_unjoined);
  EXPECT_EQ(status(other), CaptureStatus::none);
}

TEST_F(CudaStandInCapture, EndsOnlyWhereItBegan) {
  begin();
  ok(cu.cuEventRecord(event, stream));
  ok(cu.cuStreamWaitEvent(other, event, 0));
  Graph graph = nullptr;
  EXPECT_EQ(cu.cuStreamEndCapture(other, &graph), Result::stream_capture_unmatched);
  EXPECT_EQ(end(), Result::stream_capture_invalidated);
  EXPECT_EQ(cu.cuStreamEndCapture(stream, &graph), Result::invalid_value);
  begin();
  std::thread([&] {
    Current const here{contexts[0]};
    EXPECT_EQ(end(), Result::stream_capture_wrong_thread);
  }).join();
  EXPECT_EQ(end(), Result::success);
}

TEST_F(CudaStandInCapture, IsInvalidatedByAWaitOfTheHost) {
  begin();
  EXPECT_EQ(cu.cuStreamSynchronize(stream), Result::stream_capture_unsupported);
  EXPECT_EQ(status(stream), CaptureStatus::invalidated);
  EXPECT_EQ(cu.cuMemsetD8Async(memory, 1, 1, stream), Result::stream_capture_invalidated);
  EXPECT_EQ(end(), Result::stream_capture_invalidated);
  begin();
  EXPECT_EQ(cu.cuStreamQuery(stream), Result::stream_capture_unsupported);
  EXPECT_EQ(end(), Result::stream_capture_invalidated);
  begin();
  ok(cu.cuEventRecord(event, stream));
  EXPECT_EQ(cu.cuEventQuery(event), Result::captured_event);
  EXPECT_EQ(end(), Result::stream_capture_invalidated);
  begin();
  ok(cu.cuEventRecord(event, stream));
  EXPECT_EQ(cu.cuEventSynchronize(event), Result::captured_event);
  EXPECT_EQ(end(), Result::stream_capture_invalidated);
}

TEST_F(CudaStandInCapture, ForbidsAllocationsUnlessItIsRelaxed) {
  DevicePointer pointer = 0;
  begin(CaptureMode::relaxed);
  ok(cu.cuMemAlloc(&pointer, 1));
  ok(cu.cuMemFree(pointer));
  EXPECT_EQ(end(), Result::success);
  begin(CaptureMode::thread_local_only);
  std::thread([&] {
    Current const here{contexts[0]};
    ok(cu.cuMemAlloc(&pointer, 1));
    ok(cu.cuMemFree(pointer));
  }).join();
  EXPECT_EQ(cu.cuMemAlloc(&pointer, 1), Result::stream_capture_unsupported);
  EXPECT_EQ(end(), Result::stream_capture_invalidated);
  begin(CaptureMode::global);
  std::thread([&] {
    Current const here{contexts[0]};
    EXPECT_EQ(cu.cuMemAlloc(&pointer, 1), Result::stream_capture_unsupported);
  }).join();
  EXPECT_EQ(end(), Result::stream_capture_invalidated);
}

TEST_F(CudaStandInCapture, KeepsToItself) {
  begin();
  ok(cu.cuEventRecord(event, other));  // outside
  EXPECT_EQ(cu.cuStreamWaitEvent(stream, event, 0), Result::stream_capture_isolation);
  EXPECT_EQ(end(), Result::stream_capture_invalidated);
  EXPECT_EQ(cu.cuStreamBeginCapture(nullptr, CaptureMode::relaxed), Result::stream_capture_unsupported);
  Stream const blocking = create_stream(0);
  ok(cu.cuStreamBeginCapture(blocking, CaptureMode::relaxed));
  EXPECT_EQ(cu.cuMemsetD8Async(memory, 1, 1, nullptr), Result::stream_capture_implicit);
  Graph graph = nullptr;
  EXPECT_EQ(cu.cuStreamEndCapture(blocking, &graph), Result::stream_capture_invalidated);
  ok(cu.cuStreamDestroy(blocking));
  ok(cu.cuStreamSynchronize(other));
}

TEST_F(CudaStandInCapture, NotesAStreamDestroyedUnderIt) {
  Stream const brief = create_stream();
  ok(cu.cuStreamBeginCapture(brief, CaptureMode::global));
  ok(cu.cuStreamDestroy(brief));
  expected_violations = ElementsAre("cuStreamDestroy of a stream that is being captured");
  DevicePointer pointer = 0;
  ok(cu.cuMemAlloc(&pointer, 1));  // nothing is captured any more
  ok(cu.cuMemFree(pointer));
}

}  // namespace
}  // namespace unimem::standin
