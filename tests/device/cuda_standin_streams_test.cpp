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
