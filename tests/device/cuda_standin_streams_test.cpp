#include "device/cuda_standin_fixture.hpp"

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

// Streams, events and copies of the stand-in driver: what happens when, and what a host pointer is to a copy.

namespace unimem::standin {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

class CudaStandInStreams : public CudaStandIn {
 protected:
  void TearDown() override {
    control().hold(false);
    for (auto const stream : streams) ok(cu.cuStreamDestroy(stream));
    for (auto const event : events) ok(cu.cuEventDestroy(event));
    CudaStandIn::TearDown();
  }

  [[nodiscard]] Stream stream(unsigned flags = stream_non_blocking) {
    return streams.emplace_back(create_stream(flags));
  }
  [[nodiscard]] Event event() { return events.emplace_back(create_event()); }

  std::vector<Stream> streams;
  std::vector<Event> events;
};

TEST_F(CudaStandInStreams, CarryOutTheirWorkInOrder) {
  auto const queue = stream();
  auto const pointer = allocate(4);
  auto* const pinned = allocate_pinned(4);
  std::memset(pinned, 1, 4);
  control().hold(true);
  ok(cu.cuMemcpyHtoDAsync(pointer, pinned, 4, queue));
  ok(cu.cuMemsetD8Async(pointer, 2, 1, queue));
  ok(cu.cuMemcpyDtoHAsync(pinned, pointer, 4, queue));
  EXPECT_EQ(cu.cuStreamQuery(queue), Result::not_ready);
  EXPECT_EQ(control().live().pending, 3U);
  std::memset(pinned, 7, 4);  // pinned memory is read when the copy runs
  control().hold(false);
  ok(cu.cuStreamSynchronize(queue));
  EXPECT_EQ(cu.cuStreamQuery(queue), Result::success);
  EXPECT_EQ(pinned[0], std::byte{2});
  EXPECT_EQ(pinned[3], std::byte{7});
  ok(cu.cuMemFree(pointer));
  ok(cu.cuMemFreeHost(pinned));
}

TEST_F(CudaStandInStreams, ReadPageableMemoryBeforeTheCallReturns) {
  auto const queue = stream();
  auto const pointer = allocate(4);
  std::vector<unsigned char> memory(4, 1);
  control().hold(true);
  ok(cu.cuMemcpyHtoDAsync(pointer, memory.data(), 4, queue));
  memory.assign(4, 9);
  control().hold(false);
  ok(cu.cuMemcpyDtoHAsync(memory.data(), pointer, 4, queue));  // and return with what they brought
  EXPECT_THAT(memory, Each(1));
  ok(cu.cuMemFree(pointer));
}

TEST_F(CudaStandInStreams, RefuseAHalfPinnedCopy) {
  auto const pointer = allocate(2000);
  std::vector<std::byte> memory(2000);
  ok(cu.cuMemHostRegister(memory.data() + 1000, 1000, 0));
  EXPECT_EQ(cu.cuMemcpyHtoDAsync(pointer, memory.data(), 2000, nullptr), Result::invalid_value);
  EXPECT_EQ(cu.cuMemcpyHtoDAsync(pointer, reinterpret_cast<void*>(pointer), 10, nullptr), Result::invalid_value);
  ok(cu.cuMemHostUnregister(memory.data() + 1000));
  ok(cu.cuMemFree(pointer));
}

TEST_F(CudaStandInStreams, NotePinnedMemoryThatGoesUnderACopy) {
  auto const queue = stream();
  auto const pointer = allocate(100);
  std::vector<std::byte> memory(100);
  ok(cu.cuMemHostRegister(memory.data(), memory.size(), 0));
  control().hold(true);
  ok(cu.cuMemcpyHtoDAsync(pointer, memory.data(), 100, queue));
  ok(cu.cuMemHostUnregister(memory.data()));
  control().hold(false);
  EXPECT_EQ(cu.cuStreamSynchronize(queue), Result::illegal_address);
  expected_violations = ElementsAre("cuMemHostUnregister of memory that cuMemcpyHtoDAsync still uses");
  EXPECT_EQ(cu.cuMemFree(pointer), Result::illegal_address);
  EXPECT_EQ(cu.cuStreamDestroy(streams.front()), Result::illegal_address);
  streams.clear();
}

TEST_F(CudaStandInStreams, CopyRectanglesOfEveryKind) {
  constexpr std::size_t pitch = 512;
  auto const pointer = allocate(4 * pitch);
  std::vector<unsigned char> source(60), target(60, 0);
  for (std::size_t at = 0; at < source.size(); ++at) source[at] = static_cast<unsigned char>(at);
  Copy2D up;
  up.source_host = source.data();
  up.source_x_bytes = 2;
  up.source_y = 1;
  up.source_pitch = 10;
  up.target_device = pointer;
  up.target_pitch = pitch;
  up.width_bytes = 3;
  up.height = 4;
  ok(cu.cuMemcpy2DAsync(&up, nullptr));
  auto const there = read(pointer, 4 * pitch);
  EXPECT_EQ((std::vector<unsigned char>{there.begin(), there.begin() + 4}),
            (std::vector<unsigned char>{12, 13, 14, 0xCD}));
  EXPECT_EQ(there[3 * pitch + 2], 44);
  Copy2D across = up;
  across.source_type = MemoryType::unified;
  across.source_device = pointer;
  across.source_x_bytes = across.source_y = 0;
  across.source_pitch = pitch;
  across.target_x_bytes = 10;
  ok(cu.cuMemcpy2DAsync(&across, nullptr));
  auto arbitrary = across;
  arbitrary.source_pitch = arbitrary.target_pitch = 20;
  EXPECT_EQ(cu.cuMemcpy2DAsync(&arbitrary, nullptr), Result::invalid_value) << "as the driver may";
  Copy2D down = across;
  down.source_x_bytes = 10;
  down.target_type = MemoryType::host;
  down.target_host = target.data();
  down.target_x_bytes = 0;
  down.target_y = 1;
  down.target_pitch = 10;
  ok(cu.cuMemcpy2DAsync(&down, nullptr));
  EXPECT_EQ(target[10], 12);
  EXPECT_EQ(target[42], 44);
  EXPECT_EQ(target[43], 0);
  down.target_pitch = 2;
  EXPECT_EQ(cu.cuMemcpy2DAsync(&down, nullptr), Result::invalid_value);
  ok(cu.cuMemFree(pointer));
}

TEST_F(CudaStandInStreams, FillWithPatternsThatLieWhereTheyMay) {
  auto const pointer = allocate(16);
  ok(cu.cuMemsetD16Async(pointer + 2, 0x0102, 2, nullptr));
  EXPECT_EQ(read(pointer, 8), (std::vector<unsigned char>{0xCD, 0xCD, 2, 1, 2, 1, 0xCD, 0xCD}));
  EXPECT_EQ(cu.cuMemsetD16Async(pointer + 1, 0, 1, nullptr), Result::invalid_value);
  EXPECT_EQ(cu.cuMemsetD32Async(pointer + 2, 0, 1, nullptr), Result::invalid_value);
  ok(cu.cuMemsetD32Async(pointer, 0, 0, nullptr));
  ok(cu.cuMemFree(pointer));
}

TEST_F(CudaStandInStreams, WaitForEventsOfEachOther) {
  auto const first = stream(), second = stream();
  auto const written = event();
  auto const pointer = allocate(4);
  control().hold_stream(first, true);
  ok(cu.cuMemsetD8Async(pointer, 1, 4, first));
  ok(cu.cuEventRecord(written, first));
  EXPECT_EQ(cu.cuEventQuery(written), Result::not_ready);
  ok(cu.cuStreamWaitEvent(second, written, 0));
  ok(cu.cuMemsetD8Async(pointer, 2, 1, second));
  EXPECT_EQ(cu.cuStreamQuery(second), Result::not_ready);
  control().hold_stream(first, false);
  ok(cu.cuStreamSynchronize(second));
  EXPECT_EQ(cu.cuEventQuery(written), Result::success);
  EXPECT_EQ(read(pointer, 4), (std::vector<unsigned char>{2, 1, 1, 1}));
  ok(cu.cuMemFree(pointer));
}

TEST_F(CudaStandInStreams, WaitForEventsOfOtherDevices) {
  auto const here = stream();
  auto const done = event();
  control().hold_stream(here, true);
  ok(cu.cuMemsetD8Async(allocate(4), 1, 4, here));
  ok(cu.cuEventRecord(done, here));
  Current const other{contexts[1]};
  auto const there = create_stream();
  ok(cu.cuStreamWaitEvent(there, done, 0));
  EXPECT_EQ(cu.cuStreamQuery(there), Result::not_ready);
  EXPECT_EQ(cu.cuEventRecord(done, there), Result::invalid_handle);  // an event belongs to its device
  control().hold_stream(here, false);
  ok(cu.cuStreamSynchronize(there));
  ok(cu.cuStreamDestroy(there));
  expected_violations =
      ElementsAre(HasSubstr("device 0 ended with 0 pending commands, 0 streams, 0 events, 0 modules, 1 allocation"));
}

TEST_F(CudaStandInStreams, TakeAnEventNeverRecordedForComplete) {
  auto const never = event();
  ok(cu.cuEventQuery(never));
  ok(cu.cuEventSynchronize(never));
  ok(cu.cuStreamWaitEvent(stream(), never, 0));
}

TEST_F(CudaStandInStreams, LetAnAwaitedEventGo) {
  auto const first = stream(), second = stream();
  Event const brief = create_event();
  auto const pointer = allocate(1);
  control().hold_stream(first, true);
  ok(cu.cuMemsetD8Async(pointer, 1, 1, first));
  ok(cu.cuEventRecord(brief, first));
  ok(cu.cuStreamWaitEvent(second, brief, 0));
  ok(cu.cuEventDestroy(brief));
  EXPECT_EQ(cu.cuEventQuery(brief), Result::invalid_handle);
  EXPECT_EQ(cu.cuStreamQuery(second), Result::not_ready);
  control().hold_stream(first, false);
  ok(cu.cuStreamSynchronize(second));
  ok(cu.cuMemFree(pointer));
}

TEST_F(CudaStandInStreams, FinishWhatADestroyedOneHad) {
  Stream const brief = create_stream();
  auto const done = event();
  auto const pointer = allocate(4);
  control().hold(true);
  ok(cu.cuMemsetD8Async(pointer, 1, 4, brief));
  ok(cu.cuEventRecord(done, brief));
  ok(cu.cuStreamDestroy(brief));
  EXPECT_EQ(cu.cuStreamQuery(brief), Result::invalid_handle);
  EXPECT_EQ(cu.cuStreamDestroy(nullptr), Result::invalid_handle);
  control().hold(false);
  ok(cu.cuEventSynchronize(done));
  EXPECT_THAT(read(pointer, 4), Each(1));
  ok(cu.cuMemFree(pointer));
}

TEST_F(CudaStandInStreams, SynchronizeWithTheLegacyDefaultStream) {
  auto const blocking = stream(0), free = stream(stream_non_blocking);
  auto const pointer = allocate(8);
  control().hold_stream(blocking, true);
  ok(cu.cuMemsetD8Async(pointer, 1, 1, blocking));
  ok(cu.cuMemsetD8Async(pointer + 1, 1, 1, nullptr));
  EXPECT_EQ(cu.cuStreamQuery(nullptr), Result::not_ready);
  ok(cu.cuMemsetD8Async(pointer + 2, 1, 1, free));
  ok(cu.cuStreamSynchronize(free));  // which does not care
  auto const later = stream(0);
  ok(cu.cuMemsetD8Async(pointer + 3, 1, 1, later));  // behind the legacy stream, which is behind the held one
  EXPECT_EQ(cu.cuStreamQuery(later), Result::not_ready);
  control().hold_stream(blocking, false);
  ok(cu.cuStreamSynchronize(later));
  ok(cu.cuStreamQuery(nullptr));
  ok(cu.cuMemFree(pointer));
}

TEST_F(CudaStandInStreams, GiveEachThreadADefaultStream) {
  auto* const own = reinterpret_cast<Stream>(2);
  auto const pointer = allocate(8);
  control().hold(true);
  ok(cu.cuMemsetD8Async(pointer, 1, 8, own));
  EXPECT_EQ(cu.cuStreamQuery(own), Result::not_ready);
  std::thread([&] {
    Current const here{contexts[0]};
    EXPECT_EQ(cu.cuStreamQuery(own), Result::success);
  }).join();
  control().hold(false);
  ok(cu.cuStreamSynchronize(nullptr));
  ok(cu.cuStreamQuery(own));
  ok(cu.cuMemFree(pointer));
}

TEST_F(CudaStandInStreams, WaitForAWordOfTheHost) {
  auto const queue = stream();
  auto* const word = new (allocate_pinned(4)) std::atomic<std::uint32_t>{0};
  auto const at = reinterpret_cast<DevicePointer>(word);
  auto const pointer = allocate(4);
  EXPECT_EQ(cu.cuStreamWaitValue32(queue, at + 2, 5, wait_value_at_least), Result::invalid_value);
  EXPECT_EQ(cu.cuStreamWaitValue32(queue, pointer, 5, wait_value_at_least), Result::invalid_value);
  ok(cu.cuStreamWaitValue32(queue, at, 5, wait_value_at_least));
  ok(cu.cuMemsetD8Async(pointer, 1, 4, queue));
  *word = 4;
  EXPECT_EQ(cu.cuStreamQuery(queue), Result::not_ready);
  *word = 6;
  ok(cu.cuStreamSynchronize(queue));
  EXPECT_THAT(read(pointer, 4), Each(1));
  ok(cu.cuMemFree(pointer));
  ok(cu.cuMemFreeHost(word));
}

TEST_F(CudaStandInStreams, StandBehindAWordInAHardwareQueueThatTheyShare) {
  auto const waits = stream(), behind = stream();
  auto* const word = new (allocate_pinned(4)) std::atomic<std::uint32_t>{0};
  auto const pointer = allocate(8);
  control().share_hardware(1);
  ok(cu.cuMemsetD8Async(pointer, 1, 4, behind));  // ahead of the word
  ok(cu.cuStreamWaitValue32(waits, reinterpret_cast<DevicePointer>(word), 1, wait_value_at_least));
  ok(cu.cuStreamSynchronize(behind));
  ok(cu.cuMemsetD8Async(pointer + 4, 2, 4, behind));
  for (int looks = 0; looks < 20; ++looks) {
    EXPECT_EQ(cu.cuStreamQuery(behind), Result::not_ready);
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  *word = 1;
  ok(cu.cuStreamSynchronize(behind));
  ok(cu.cuStreamSynchronize(waits));
  *word = 0;
  control().share_hardware(0);
  ok(cu.cuStreamWaitValue32(waits, reinterpret_cast<DevicePointer>(word), 1, wait_value_at_least));
  ok(cu.cuMemsetD8Async(pointer + 4, 3, 4, behind));
  ok(cu.cuStreamSynchronize(behind));  // by a queue of its own
  *word = 1;
  ok(cu.cuStreamSynchronize(waits));
  EXPECT_THAT(read(pointer, 8), ElementsAre(1, 1, 1, 1, 3, 3, 3, 3));
  ok(cu.cuMemFree(pointer));
  ok(cu.cuMemFreeHost(word));
}

TEST_F(CudaStandInStreams, AreWaitedForByCallsThatMayWhereTheyShareHardware) {
  auto const waits = stream();
  auto* const word = new (allocate_pinned(4)) std::atomic<std::uint32_t>{0};
  auto* const pinned = allocate_pinned(4);
  std::vector<std::byte> registered(4096);
  ok(cu.cuMemHostRegister(registered.data(), registered.size(), 0));
  auto const pointer = allocate(4);
  Module unloaded = nullptr;
  auto const image = kernel_image();
  ok(cu.cuModuleLoadData(&unloaded, image.data()));
  std::vector<std::function<void()>> const all{
      [&] { ok(cu.cuMemFree(pointer)); },
      [&] { ok(cu.cuMemFreeHost(pinned)); },
      [&] { ok(cu.cuMemHostUnregister(registered.data())); },
      [&] { ok(cu.cuModuleUnload(unloaded)); },
      [&] { ok(cu.cuModuleLoadData(&unloaded, image.data())); },
  };
  control().share_hardware(8);
  for (auto const& call : all) {
    *word = 0;
    ok(cu.cuStreamWaitValue32(waits, reinterpret_cast<DevicePointer>(word), 1, wait_value_at_least));
    std::atomic<bool> returned = false;
    std::jthread const calls{[&] {
      Current const current{contexts[0]};
      call();
      EXPECT_EQ(*word, 1U);
      returned = true;
    }};
    std::this_thread::sleep_for(std::chrono::milliseconds{10});
    EXPECT_FALSE(returned);
    *word = 1;
  }
  ok(cu.cuModuleUnload(unloaded));
  ok(cu.cuStreamSynchronize(waits));
  ok(cu.cuMemFreeHost(word));
}

TEST_F(CudaStandInStreams, MeasureTheTimeBetweenEvents) {
  auto const queue = stream();
  Event begin = nullptr, end = nullptr;
  for (auto* const each : {&begin, &end}) {
    ok(cu.cuEventCreate(each, 0));
    events.push_back(*each);
  }
  auto const untimed = event();
  auto const pointer = allocate(1);
  auto* const word = new (allocate_pinned(4)) std::atomic<std::uint32_t>{0};
  float milliseconds = -1;
  EXPECT_EQ(cu.cuEventElapsedTime(&milliseconds, begin, end), Result::invalid_handle);  // never recorded
  control().set_latency(5'000, 0);
  for (auto const each : {begin, untimed}) ok(cu.cuEventRecord(each, queue));
  ok(cu.cuMemsetD8Async(pointer, 1, 1, queue));
  ok(cu.cuStreamWaitValue32(queue, reinterpret_cast<DevicePointer>(word), 1, wait_value_at_least));
  ok(cu.cuEventRecord(end, queue));
  EXPECT_EQ(cu.cuEventElapsedTime(&milliseconds, begin, end), Result::not_ready);
  *word = 1;
  ok(cu.cuStreamSynchronize(queue));
  ok(cu.cuEventElapsedTime(&milliseconds, begin, end));
  EXPECT_GE(milliseconds, 5.0F);
  EXPECT_EQ(cu.cuEventElapsedTime(&milliseconds, untimed, end), Result::invalid_handle);
  ok(cu.cuMemFree(pointer));
  ok(cu.cuMemFreeHost(word));
}

TEST_F(CudaStandInStreams, RefuseToWriteReadOnlyMemory) {
  auto const pointer = allocate(10);
  std::vector<unsigned char> memory(10, 3);
  ok(cu.cuMemHostRegister(memory.data(), memory.size(), host_register_read_only));
  ok(cu.cuMemcpyHtoDAsync(pointer, memory.data(), 10, nullptr));
  EXPECT_THAT(read(pointer, 10), Each(3));
  ok(cu.cuMemcpyDtoHAsync(memory.data(), pointer, 10, nullptr));
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), Result::illegal_address);
  EXPECT_EQ(cu.cuMemHostUnregister(memory.data()), Result::illegal_address);
  EXPECT_EQ(cu.cuMemFree(pointer), Result::illegal_address);
}

TEST_F(CudaStandInStreams, NoteWorkThatGoesToAnotherDevicesStream) {
  auto const queue = stream();
  auto const pointer = allocate(4);
  Context context = nullptr;
  {
    Current const other{contexts[1]};
    ok(cu.cuStreamGetCtx(queue, &context));
    EXPECT_EQ(context, contexts[0]);
    ok(cu.cuMemsetD8Async(pointer, 1, 4, queue));
    ok(cu.cuStreamSynchronize(queue));
  }
  expected_violations = ElementsAre("cuMemsetD8Async on a stream of device 0 while device 1 is current");
  ok(cu.cuMemFree(pointer));
}

TEST_F(CudaStandInStreams, NoteCopiesThatOverlap) {
  auto const pointer = allocate(10);
  ok(cu.cuMemcpyDtoDAsync(pointer, pointer + 4, 5, nullptr));
  ok(cu.cuStreamSynchronize(nullptr));
  expected_violations = ElementsAre("cuMemcpyDtoDAsync between bytes that overlap");
  ok(cu.cuMemFree(pointer));
}

}  // namespace
}  // namespace unimem::standin
