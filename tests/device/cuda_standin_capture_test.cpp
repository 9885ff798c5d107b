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
