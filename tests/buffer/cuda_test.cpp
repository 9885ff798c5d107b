#include "buffer/cuda_fixture.hpp"

#include "buffer/buffer_pool_conformance.hpp"
#include "buffer/driver_conformance.hpp"
#include "core/sizes.hpp"
#include "device/cuda/cuda_device.hpp"
#include "device/cuda/driver.hpp"

#include <thread>

// Buffers on GPUs: what holds on every driver, and what only CUDA has.

namespace unimem::testing {
namespace {

using ::testing::Each;

INSTANTIATE_TEST_SUITE_P(Cuda, OnADriver,
                         ::testing::Values(DriverCase{"first", first_gpu()}, DriverCase{"second", second_gpu()}),
                         driver_case_name);

INSTANTIATE_TEST_SUITE_P(Cuda, BufferPoolConformance,
                         ::testing::Values(PoolingHome{"cuda", []() -> Device& { return device(first_gpu()); },
                                                       Location::device}),
                         pooling_home_name);

using detail::cuda::Context;
using detail::cuda::Result;
using detail::cuda::Stream;

detail::cuda::Driver const& driver() {
  static auto const& loaded = *new detail::cuda::LoadedDriver(detail::cuda::load_driver());
  return loaded.driver;
}

class CudaBuffers : public OnTwoGpus {};

TEST_F(CudaBuffers, WritesReachTheOtherSideInOneCall) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  UnifiedBuffer<std::uint32_t> buffer(1000, on(first));
  buffer.copy_from(counting(1000));
  auto const up = calls("cuMemcpyHtoDAsync"), down = calls("cuMemcpyDtoHAsync");
  add(first.default_queue(), buffer.slice(0), 5);
  add(first.default_queue(), buffer.slice(0), 5);
  EXPECT_EQ(buffer.to_vector(), counting(1000, 10));
  EXPECT_EQ(std::as_const(buffer).at(999), 1009U);
  EXPECT_EQ(calls("cuMemcpyHtoDAsync") - up, 1U);
  EXPECT_EQ(calls("cuMemcpyDtoHAsync") - down, 1U);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{4000, 1, 4000, 1}));
}

TEST_F(CudaBuffers, GpusThatReachEachOtherCopyDirectly) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  auto buffer = synchronized(first, 1000);
  add(first.default_queue(), buffer.slice(0), 7);
  auto const up = calls("cuMemcpyHtoDAsync"), down = calls("cuMemcpyDtoHAsync");
  buffer.sync_to_device(second);
  EXPECT_EQ(calls("cuMemcpyPeerAsync"), 1U);
  EXPECT_EQ(calls("cuMemcpyHtoDAsync"), up);
  EXPECT_EQ(calls("cuMemcpyDtoHAsync"), down);
  EXPECT_TRUE(buffer.valid_on(first));
  EXPECT_TRUE(buffer.valid_on(second));
  EXPECT_FALSE(buffer.valid_on_host());
  EXPECT_EQ(buffer.statistics().device_to_device_bytes, 4000U);
  EXPECT_EQ(device_words(buffer, second), counting(1000, 7));
  // And the way back, of a part.
  add(second.default_queue(), buffer.slice(100, 50), 1000);
  auto expected = counting(1000, 7);
  for (std::size_t i = 100; i < 150; ++i) expected[i] += 1000;
  EXPECT_EQ(device_words(buffer, first), expected);
  EXPECT_EQ(buffer.statistics().device_to_device_bytes, 4200U);
  EXPECT_EQ(buffer.to_vector(), expected);
}

TEST_F(CudaBuffers, ARefusalOfOneGpuSparesTheOther) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  UnifiedBuffer<std::uint32_t> buffer(100, on(first));
  buffer.copy_from(counting(100));
  standin_control().fail_on(1, "cuMemcpyHtoDAsync", 1, detail::cuda::Result::not_permitted, standin::FaultKind::once);
  buffer.sync_to_device(first);
  EXPECT_EQ(device_words(buffer, first), counting(100));
  buffer.copy_from(counting(100, 5));
  EXPECT_THROW(buffer.sync_to_device(second), DeviceError);
  buffer.sync_to_device(first);
  EXPECT_EQ(device_words(buffer, first), counting(100, 5));
  EXPECT_FALSE(buffer.valid_on(second));
  buffer.sync_to_device(second);
  EXPECT_EQ(device_words(buffer, second), counting(100, 5));
}

TEST_F(CudaBuffers, GpusWithoutPeerAccessCopyThroughHostChunks) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  standin_control().set_peer(0, 1, false);
  standin_control().set_peer(1, 0, false);
  auto const count = 10 * MiB / 4 + 3;  // two and a half chunks and a tail
  auto buffer = synchronized(first, count);
  add(first.default_queue(), buffer.slice(0), 7);
  auto const up = calls("cuMemcpyHtoDAsync"), down = calls("cuMemcpyDtoHAsync");
  buffer.sync_to_device(second);
  EXPECT_EQ(calls("cuMemcpyPeerAsync"), 0U);
  EXPECT_EQ(calls("cuMemcpyHtoDAsync") - up, 3U);
  EXPECT_EQ(calls("cuMemcpyDtoHAsync") - down, 3U);
  EXPECT_FALSE(buffer.valid_on_host()) << "it only passed through";
  EXPECT_EQ(buffer.statistics().device_to_device_bytes, count * 4) << "one migration, whatever way it went";
  EXPECT_TRUE(device_words(buffer, second) == counting(count, 7));
  EXPECT_TRUE(buffer.to_vector() == counting(count, 7));
}

TEST_F(CudaBuffers, LaterWorkOnEitherGpuAwaitsTheCopy) {
  for (bool const directly : {true, false}) {
    SCOPED_TRACE(directly ? "directly" : "through the host");
    if (on_hardware && !directly) break;  // which way it goes, the hardware decides
    if (!on_hardware) {
      standin_control().set_peer(0, 1, directly);
      standin_control().set_peer(1, 0, directly);
    }
    auto buffer = synchronized(first, 1000);
    buffer.release_host();
    auto here = first.create_queue(), there = second.create_queue();
    std::optional<Gate> gate{first.default_queue()}, gate_there{second.default_queue()};
    auto const arrived = buffer.prefetch(second);
    auto const used = add(there, buffer.slice(0), 1);
    auto const overwritten = set(here, buffer.slice(0, 10), 3);
    EXPECT_FALSE(arrived.ready());
    EXPECT_FALSE(used.ready());
    EXPECT_FALSE(overwritten.ready());
    gate.reset();
    gate_there.reset();
    auto expected = counting(1000, 1);
    std::fill_n(expected.begin(), 10, 3U);
    EXPECT_EQ(buffer.to_vector(), expected);
    EXPECT_EQ(device_words(buffer, second), expected);
    EXPECT_EQ(device_words(buffer, first), expected);
  }
}

TEST_F(CudaBuffers, SharedBuffersOrderWorkAcrossQueues) {
  auto a = synchronized(first), b = synchronized(first);
  std::array queues{first.create_queue(), first.create_queue()};
  std::optional<Gate> gate{queues[0]};
  auto const one = add(queues[0], a.slice(0), 10);
  auto const copied = copy_async(a, b);
  auto const two = affine(queues[1], b.slice(0), 2, 0);
  for (auto const& event : {one, copied, two}) EXPECT_FALSE(event.ready());
  gate.reset();
  EXPECT_EQ(a.to_vector(), counting(100, 10));
  auto expected = counting(100, 10);
  for (auto& value : expected) value *= 2;
  EXPECT_EQ(b.to_vector(), expected);
  for (auto const& event : {one, copied, two}) EXPECT_TRUE(event.ready());
}

TEST_F(CudaBuffers, ASharedBufferOrdersQueuesOfBothGpus) {
  auto buffer = synchronized(first, 1000);
  std::array queues{first.create_queue(), second.create_queue(), first.create_queue(), second.create_queue()};
  if (!on_hardware) standin_control().set_latency(50, 50);
  for (std::uint32_t round = 0; round < 20; ++round) {
    for (std::uint32_t i = 0; i < 4; ++i) affine(queues[i], buffer.slice(0), i % 2 == 0 ? 3 : 1, i + 1);
  }
  auto expected = counting(1000);
  for (std::uint32_t round = 0; round < 20; ++round) {
    for (auto& value : expected) {
      for (std::uint32_t i = 0; i < 4; ++i) value = value * (i % 2 == 0 ? 3 : 1) + i + 1;
    }
  }
  EXPECT_EQ(buffer.to_vector(), expected);
}

TEST_F(CudaBuffers, DestroyingABufferDoesNotAwaitItsWork) {
  auto result = synchronized(first);
  auto queue = first.create_queue();
  std::optional<Gate> gate{queue};
  Event work;
  {
    auto source = synchronized(first);
    add(queue, source.slice(0), 1000);
    std::array const operands{Operand{&source.core(), {0, 400}, Intent::read},
                              Operand{&result.core(), {0, 400}, Intent::write}};
    work = use_on_device(queue, operands, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
      return queue.copy(memory[1], memory[0], 400, needs);
    });
  }
  EXPECT_FALSE(work.ready()) << "the buffer is gone and its work has not begun";
  std::vector<UnifiedBuffer<std::uint32_t>> intruders;
  for (int i = 0; i < 5; ++i) {
    intruders.emplace_back(100, on(first));
    set(first.default_queue(), intruders.back().slice(0), 666);
  }
  EXPECT_FALSE(work.ready());
  gate.reset();
  EXPECT_EQ(result.to_vector(), counting(100, 1000));
  for (auto& intruder : intruders) EXPECT_THAT(intruder.to_vector(), Each(666U));
}

TEST_F(CudaBuffers, QueuesGoBehindARecycledBlocksEarlierWork) {
  // There is room for one only, whatever a pool makes of it.
  constexpr std::size_t count = MiB, half = count / 2;
  manager->pool(first, Location::device).set_max_bytes(4 * count);
  std::array queues{first.create_queue(), first.create_queue(), first.create_queue()};
  std::optional<Gate> gate{queues[0]};
  DeviceMemory block;
  Event work;
  {
    UnifiedBuffer<std::uint32_t> earlier(count, on(first));
    work = set(queues[0], earlier.slice(0), 9);
    block = earlier.device_view(queues[0]).native();
  }
  UnifiedBuffer<std::uint32_t> recycled(count, on(first));
  // The pool makes this queue wait, which takes no ticket.
  auto const taken = set(queues[1], recycled.slice(0, half), 1);
  auto const beside = set(queues[2], recycled.slice(half), 2);
  for (auto const& event : {work, taken, beside}) EXPECT_FALSE(event.ready());
  {
    auto const lease = recycled.device_view(queues[2]);
    EXPECT_EQ(lease.native().object, block.object);
    EXPECT_EQ(lease.native().offset, block.offset);
  }
  gate.reset();
  std::vector<std::uint32_t> expected(count, 1);
  std::fill_n(expected.begin() + half, half, 2U);
  EXPECT_TRUE(recycled.to_vector() == expected);
}

TEST_F(CudaBuffers, AWorkingSetLargerThanTheGpuRuns) {
  auto& small = device(first_gpu("memory=1MiB"));
  std::vector<UnifiedBuffer<std::uint32_t>> buffers;
  for (std::uint32_t i = 0; i < 8; ++i) {
    buffers.emplace_back(60'000, on(small));
    buffers.back().fill(i);
  }
  for (std::uint32_t round = 0; round < 3; ++round) {
    for (auto& buffer : buffers) {
      add(small.default_queue(), buffer.slice(0, 10), 100);
      auto const info = small.memory_info();
      EXPECT_LE(info.total_bytes - info.free_bytes, MiB);
    }
  }
  EXPECT_GT(manager->statistics().reclaims, 0U);
  for (std::uint32_t i = 0; i < 8; ++i) {
    auto expected = std::vector<std::uint32_t>(60'000, i);
    std::fill_n(expected.begin(), 10, i + 300);
    EXPECT_EQ(buffers[i].to_vector(), expected);
  }
  UnifiedBuffer<std::uint32_t> large(300'000, on(small));
  large.fill(1);
  EXPECT_THROW(std::ignore = large.device(), OutOfMemory);
  EXPECT_THAT(large.to_vector(), Each(1U));
  buffers.clear();
  small.synchronize();
}

TEST_F(CudaBuffers, MemoryOfOtherProcessesLeadsToEviction) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  // The GPU itself says that it is full; the library's own limit is far off.
  standin_control().set_used_by_others(0, 255 * MiB);
  std::vector<UnifiedBuffer<std::uint32_t>> buffers;
  for (std::uint32_t i = 0; i < 4; ++i) {
    buffers.emplace_back(100'000, on(first));
    set(first.default_queue(), buffers.back().slice(0), i);
  }
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_THAT(buffers[i].to_vector(), Each(i));
  EXPECT_GT(manager->statistics().reclaims, 0U);
}

TEST_F(CudaBuffers, SlicesKeepTheirOffsetsBetweenGpus) {
  auto const count = 3 * MiB / 4;
  auto source = synchronized(first, count);
  UnifiedBuffer<std::uint32_t> target(count, on(second));
  target.copy_from(counting(count, 5'000'000));
  target.sync_to_device();
  source.release_host();
  target.release_host();
  copy(source.slice(11, count / 2 + 5), target.slice(777, count / 2 + 5));
  auto expected = counting(count, 5'000'000);
  std::iota(expected.begin() + 777, expected.begin() + 777 + static_cast<std::ptrdiff_t>(count / 2 + 5), 11U);
  EXPECT_TRUE(device_words(target, second) == expected);
  EXPECT_TRUE(target.to_vector() == expected);
  affine(second.default_queue(), target.slice(3, 5), 0, 42);
  std::fill_n(expected.begin() + 3, 5, 42U);
  EXPECT_TRUE(target.to_vector() == expected);
  EXPECT_TRUE(source.to_vector() == counting(count));
}

TEST_F(CudaBuffers, FillsOfEveryElementSizeAreExact) {
  auto const check = [&]<class T>(std::type_identity<T>, T value) {
    UnifiedBuffer<T> buffer(1000, on(first));
    buffer.fill(T{1});
    buffer.sync_to_device();
    auto part = buffer.slice(13, 700);
    part.fill(value);
    std::vector<T> expected(1000, T{1});
    std::fill_n(expected.begin() + 13, 700, value);
    EXPECT_EQ(buffer.to_vector(), expected) << sizeof(T);
    EXPECT_EQ(buffer.statistics().host_to_device_copies, 1U);
  };
  check(std::type_identity<std::uint8_t>{}, std::uint8_t{9});
  check(std::type_identity<std::uint16_t>{}, std::uint16_t{0x1234});
  check(std::type_identity<std::uint32_t>{}, 0x12345678U);
  check(std::type_identity<std::uint64_t>{}, std::uint64_t{0x123456789abcdef0});
  check(std::type_identity<double>{}, 2.5);
}

TEST_F(CudaBuffers, EveryCallLeavesTheCallersContextCurrent) {
  // As a program does that uses CUDA itself, on the other GPU if there is one.
  auto const other = has_two_gpus() ? 1 : 0;
  Context own = nullptr;
  ASSERT_EQ(driver().cuDevicePrimaryCtxRetain(&own, other), Result::success);
  ASSERT_EQ(driver().cuCtxPushCurrent(own), Result::success);
  auto const untouched = [&](char const* what) {
    Context current = nullptr;
    EXPECT_EQ(driver().cuCtxGetCurrent(&current), Result::success);
    EXPECT_EQ(current, own) << what;
    if (!on_hardware) {
      EXPECT_EQ(standin_control().stack_depth(), 1U) << what;
    }
  };
  {
    auto options = on(first);
    options.pinned = true;
    UnifiedBuffer<std::uint32_t> buffer(1000, options);
    buffer.copy_from(counting(1000));
    untouched("making and filling");
    std::ignore = buffer.prefetch(first);
    untouched("prefetch");
    add(first.default_queue(), buffer.slice(0), 1);
    untouched("a kernel");
    std::ignore = buffer.to_vector();
    untouched("reading");
    buffer.sync_to_device(second);
    add(second.default_queue(), buffer.slice(0), 1);
    untouched("the thread's own GPU");
    std::ignore = device_words(buffer, first);
    untouched("a copy between GPUs");
    auto copied = buffer.clone();
    copy(copied.slice(0, 10), buffer.slice(10, 10));
    untouched("copies");
    buffer.fill(std::uint32_t{7});
    buffer.resize(500);
    buffer.release_device();
    buffer.release_host();
    untouched("fill, resize, release");
    UnifiedBuffer<std::uint32_t> larger_than_any(first.info().total_bytes / 4 + 1, on(first));
    EXPECT_THROW(std::ignore = larger_than_any.device_overwrite(), OutOfMemory);
    untouched("a refusal");
    auto queue = first.create_queue();
    queue.wait(second.default_queue().record());
    queue.synchronize();
    untouched("queues");
    std::ignore = first.memory_info();
    std::ignore = first.link_cost();
    untouched("questions");
  }
  manager->cleanup();
  untouched("the end");
  ASSERT_EQ(driver().cuCtxPopCurrent(nullptr), Result::success);
  ASSERT_EQ(driver().cuDevicePrimaryCtxRelease(other), Result::success);
}

/// Two threads copy between the same two buffers, in opposite directions and always on bytes of their own.
TEST_F(CudaBuffers, OppositeCopiesFromTwoThreadsDoNotDeadlock) {
  auto a = synchronized(first, 1000), b = synchronized(second, 1000);
  add(second.default_queue(), b.slice(0), 5000);
  a.release_host();
  auto const a_front = a.slice(0, 500), a_back = a.slice(500), b_front = b.slice(0, 500), b_back = b.slice(500);
  {
    std::jthread const forwards([&] {
      for (int i = 0; i < 100; ++i) copy(a_front, b_front);
    });
    std::jthread const backwards([&] {
      for (int i = 0; i < 100; ++i) copy(b_back, a_back);
    });
  }
  auto expected_a = counting(1000), expected_b = counting(1000, 5000);
  std::copy_n(expected_a.begin(), 500, expected_b.begin());
  std::copy_n(expected_b.begin() + 500, 500, expected_a.begin() + 500);
  EXPECT_EQ(a.to_vector(), expected_a);
  EXPECT_EQ(b.to_vector(), expected_b);
  EXPECT_EQ(device_words(a, first), expected_a);
  EXPECT_EQ(device_words(b, second), expected_b);
}

TEST_F(CudaBuffers, TravelBetweenGpusSimulatedDevicesAndCpu) {
  auto& sim = make_sim({.memory_bytes = MiB});
  auto& cpu = device("cpu");
  auto buffer = synchronized(first, 1000);
  auto expected = counting(1000);
  for (int round = 0; round < 3; ++round) {
    add(first.default_queue(), buffer.slice(0), 1);
    {
      auto const lease = buffer.device(sim);
      for (std::size_t i = 0; i < 1000; ++i) lease.data()[i] *= 3;
    }
    add(second.default_queue(), buffer.slice(0, 500), 7);
    {
      auto const lease = buffer.device(cpu);
      lease.data()[0] += 1;
    }
    for (std::size_t i = 0; i < 1000; ++i) expected[i] = (expected[i] + 1) * 3 + (i < 500 ? 7 : 0) + (i == 0 ? 1 : 0);
  }
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_words(buffer, first), expected);
}

}  // namespace
}  // namespace unimem::testing
