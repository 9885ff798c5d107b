#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "device/coroutine_task.hpp"
#include "device/gate.hpp"

#include <array>
#include <latch>
#include <numeric>
#include <optional>
#include <thread>

namespace unimem::testing {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;

class Asynchrony : public BufferTest {
 protected:
  Queue first = sim.create_queue();
  Queue second = sim.create_queue();
};

TEST_F(Asynchrony, SyncToDeviceReturnsBeforeTheDataArrives) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  std::optional<Gate> gate{sim.default_queue()};
  auto const arrived = buffer.sync_to_device_async();
  EXPECT_FALSE(arrived.ready());
  EXPECT_EQ(sim.transfers().host_to_device_copies, 0U);
  EXPECT_EQ(buffer.host_view()[99], 99U) << "reading the host meanwhile waits for nothing";
  gate.reset();
  arrived.wait();
  EXPECT_EQ(moved(sim.transfers()), (Moved{400, 1, 0, 0}));
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400, 1, 0, 0}));
  EXPECT_EQ(device_bytes(buffer, sim), counting(100));
  EXPECT_TRUE(buffer.sync_to_device_async().ready()) << "nothing to do any more";
}

TEST_F(Asynchrony, SyncToHostReturnsBeforeTheDataArrives) {
  auto buffer = synchronized();
  std::optional<Gate> gate{first};
  add(first, buffer.slice(0), 1);
  auto const arrived = buffer.sync_to_host_async();
  auto const again = buffer.sync_to_host_async();
  EXPECT_FALSE(arrived.ready());
  EXPECT_FALSE(again.ready());
  gate.reset();
  EXPECT_EQ(buffer.to_vector(), counting(100, 1)) << "whoever looks waits for as much as needed";
  EXPECT_TRUE(arrived.ready());
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400, 1, 400, 1})) << "asked for three times, copied once";
  EXPECT_EQ(device_bytes(buffer, sim), counting(100, 1));
}

TEST_F(Asynchrony, PendingWorkOfEachRangeIsReportedExactly) {
  auto buffer = synchronized();
  auto& core = buffer.core();
  ByteRange const front{0, 40}, back{360, 400};
  EXPECT_TRUE(core.host_ready(Intent::read) && core.device_ready(sim));
  EXPECT_TRUE(core.work_on(front, Intent::write).empty() && core.work_under_way().empty());

  std::optional<Gate> gate{first};
  auto const changed = add(first, buffer.slice(0, 10), 1);
  EXPECT_FALSE(core.host_ready(Intent::read) || core.device_ready(sim));
  EXPECT_EQ(core.work_on(front, Intent::read), std::vector{changed});
  EXPECT_THAT(core.work_on(back, Intent::write), IsEmpty());
  auto const fetched = core.fetch(front);
  EXPECT_EQ(core.work_on(front, Intent::read).size(), 2U) << "the kernel, and the copy behind it";
  EXPECT_THAT(core.work_on(back, Intent::read), IsEmpty());
  EXPECT_FALSE(core.work_under_way().empty());
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400, 1, 40, 1})) << "asking starts nothing";
  gate.reset();
  fetched.wait();
  sim.synchronize();
  EXPECT_TRUE(core.work_on(front, Intent::write).empty() && core.work_under_way().empty());
  EXPECT_EQ(buffer.host_view()[9], 10U);
  EXPECT_TRUE(core.host_ready(Intent::read));
}

TEST_F(Asynchrony, AnUploadHoldsUpHostWritersOnly) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  std::optional<Gate> gate{sim.default_queue()};
  auto const sent = buffer.sync_to_device_async();
  auto& core = buffer.core();
  auto const for_writing = core.work_on({0, 400}, Intent::write);
  EXPECT_FALSE(for_writing.empty());
  EXPECT_TRUE(core.host_ready(Intent::read));
  EXPECT_FALSE(core.host_ready(Intent::write));
  gate.reset();
  sent.wait();
  for (auto const event : for_writing) EXPECT_TRUE(event.wait_for_error() == nullptr);
  EXPECT_THAT(core.work_on({0, 400}, Intent::write), IsEmpty());
}

TEST_F(Asynchrony, CloningReturnsAUsableBufferAtOnce) {
  auto buffer = synchronized();
  std::optional<Gate> gate{first};
  add(first, buffer.slice(0), 1);
  auto [twin, copied] = buffer.clone_async();
  auto const changed = add(second, twin.slice(0, 10), 100);
  EXPECT_FALSE(copied.ready());
  EXPECT_FALSE(changed.ready()) << "it needs what is on its way";
  EXPECT_EQ(moved(twin.statistics()), Moved{}) << "within the device";
  gate.reset();
  copied.wait();
  auto expected = counting(100, 1);
  EXPECT_EQ(buffer.to_vector(), expected);
  for (std::size_t i = 0; i < 10; ++i) expected[i] += 100;
  EXPECT_EQ(twin.to_vector(), expected);
  EXPECT_EQ(moved(twin.statistics()), (Moved{0, 0, 400, 1}));

  UnifiedBuffer<std::uint32_t> const fresh(100, on_sim());
  auto const [empty, nothing] = fresh.clone_async();
  EXPECT_TRUE(nothing.ready());
  EXPECT_FALSE(empty.is_allocated()) << "there is nothing to copy";
}

TEST_F(Asynchrony, SynchronizingReturnsAtOnceFromEveryState) {
  for (auto const wanted : {BufferState::host_only, BufferState::device_only, BufferState::synchronized,
                            BufferState::host_dirty, BufferState::device_dirty, BufferState::mixed}) {
    SCOPED_TRACE(to_string(wanted));
    UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
    std::vector<std::uint32_t> expected = counting(100);
    buffer.copy_from(expected);
    if (wanted != BufferState::host_dirty) buffer.sync_to_device();
    if (wanted == BufferState::host_only) buffer.release_device();
    if (wanted == BufferState::device_only) buffer.release_host();
    if (wanted == BufferState::device_dirty || wanted == BufferState::mixed) {
      set(first, buffer.slice(50, 50), 7);
      std::fill_n(expected.begin() + 50, 50, 7U);
    }
    if (wanted == BufferState::mixed) {
      std::ranges::fill(buffer.host(0, 10), 3U);
      std::fill_n(expected.begin(), 10, 3U);
    }
    ASSERT_EQ(buffer.state(), wanted);
    std::optional<Gate> gate{sim.default_queue()};
    auto const done = buffer.synchronize_async();
    EXPECT_EQ(done.ready(), wanted == BufferState::synchronized);
    gate.reset();
    done.wait();
    EXPECT_EQ(buffer.state(), BufferState::synchronized);
    auto const counts = moved(sim.transfers());
    EXPECT_EQ(buffer.to_vector(), expected);
    EXPECT_EQ(moved(sim.transfers()), counts) << "it is there already";
    EXPECT_EQ(device_bytes(buffer, sim), expected);
  }
  UnifiedBuffer<std::uint32_t> empty(100, on_sim());
  EXPECT_THROW(std::ignore = empty.synchronize_async(), BufferNotAllocated);
  EXPECT_THROW(std::ignore = empty.sync_to_host_async(), BufferNotAllocated);
  EXPECT_THROW(std::ignore = empty.sync_to_device_async(), BufferNotAllocated);
}

TEST_F(Asynchrony, CopyingOutReturnsBeforeTheDataArrives) {
  auto buffer = synchronized();
  std::vector<std::uint32_t> all_of_it(100), part(10);
  std::optional<Gate> gate{first};
  add(first, buffer.slice(0), 1);
  auto const whole = buffer.copy_to_async(all_of_it);
  auto const window = buffer.copy_to_async(part, 20);
  EXPECT_FALSE(whole.ready());
  EXPECT_FALSE(window.ready());
  gate.reset();
  whole.wait();
  window.wait();
  EXPECT_EQ(all_of_it, counting(100, 1));
  EXPECT_EQ(part, counting(10, 21));
  EXPECT_EQ(moved(sim.transfers()), (Moved{400, 1, 400, 1}));
  EXPECT_THROW(std::ignore = buffer.copy_to_async(part), SizeMismatch);
  EXPECT_THROW(std::ignore = buffer.copy_to_async(part, 91), SizeMismatch);
}

TEST_F(Asynchrony, CopiesWithinOneBufferAreOrderedLikeOthers) {
  auto buffer = synchronized();
  std::optional<Gate> gate{device("cpu").default_queue()};
  auto const out = buffer.copy_to_async(buffer.host(50, 50), 0);
  auto const sent = buffer.prefetch(first);
  EXPECT_FALSE(out.ready());
  EXPECT_FALSE(sent.ready()) << "what is to be sent is not there yet";
  gate.reset();
  auto expected = counting(100);
  std::iota(expected.begin() + 50, expected.end(), 0U);
  sent.wait();
  EXPECT_EQ(device_bytes(buffer, sim), expected);

  // And a write of what another copy still has to read is behind it.
  auto const view = buffer.host_view(0, 20);
  gate.emplace(device("cpu").default_queue());
  auto const in = buffer.copy_from_async(view, 10);
  Operand const operand{&buffer.core(), {0, 40}, Intent::write};
  auto const set_there = run(second, {&operand, 1}, [](std::span<const HostArgument> arguments) {
    std::fill_n(static_cast<std::uint32_t*>(arguments[0].data), 10, 7U);
  });
  auto const home = buffer.sync_to_host_async();
  EXPECT_FALSE(in.ready());
  EXPECT_FALSE(home.ready()) << "it would arrive where the copy is to read";
  gate.reset();
  home.wait();
  std::iota(expected.begin() + 10, expected.begin() + 30, 0U);
  std::fill_n(expected.begin(), 10, 7U);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  set_there.wait();
}

TEST_F(Asynchrony, CopyingInIsOrderedBehindEarlierReaders) {
  auto buffer = synchronized();
  UnifiedBuffer<std::uint32_t> seen(100, on_sim());
  std::ranges::fill(buffer.host(), 5U);
  auto const next = counting(100, 1000);
  std::optional<Gate> gate{first};
  std::array const operands{Operand{&buffer.core(), {0, 400}, Intent::read},
                            Operand{&seen.core(), {0, 400}, Intent::write}};
  run(first, operands,
      [](std::span<const HostArgument> arguments) { std::memcpy(arguments[1].data, arguments[0].data, 400); });
  auto const written = buffer.copy_from_async(next);
  EXPECT_FALSE(written.ready()) << "the upload of the old bytes has not read them yet";
  gate.reset();
  written.wait();
  EXPECT_THAT(seen.to_vector(), Each(5U));
  EXPECT_EQ(buffer.state(), BufferState::host_dirty);
  EXPECT_EQ(buffer.to_vector(), next);
  EXPECT_EQ(device_bytes(buffer, sim), next);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{1200, 3, 0, 0}));
  EXPECT_THROW(std::ignore = buffer.copy_from_async(counting(99)), SizeMismatch);
}

TEST_F(Asynchrony, FillingADeviceCopyReturnsAtOnce) {
  auto buffer = synchronized();
  std::optional<Gate> gate{sim.default_queue()};
  auto const filled = buffer.fill_async(7, 10, 20);
  EXPECT_FALSE(filled.ready());
  gate.reset();
  auto expected = counting(100);
  std::fill_n(expected.begin() + 10, 20, 7U);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_TRUE(filled.ready());
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400, 1, 80, 1}));
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

TEST_F(Asynchrony, FillingTheHostIsOrderedBehindEarlierReaders) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  std::optional<Gate> gate{first};
  auto const copied = buffer.prefetch(first);
  auto const filled = buffer.slice(0, 10).fill_async(7);
  EXPECT_FALSE(copied.ready());
  EXPECT_FALSE(filled.ready());
  gate.reset();
  auto expected = counting(100);
  std::fill_n(expected.begin(), 10, 7U);
  filled.wait();
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

TEST_F(Asynchrony, LaterWorkIsOrderedBehindABufferCopy) {
  auto from = synchronized(), to = synchronized();
  add(sim.default_queue(), from.slice(0), 50).wait();
  std::optional<Gate> gate{sim.default_queue()};
  auto const copied = copy_async(from, to);
  auto const behind = add(second, to.slice(0), 1);
  auto const overwritten = set(second, from.slice(0), 3);
  EXPECT_FALSE(copied.ready());
  EXPECT_FALSE(behind.ready()) << "it reads what is being copied";
  EXPECT_FALSE(overwritten.ready()) << "it overwrites what is being copied from";
  gate.reset();
  EXPECT_EQ(to.to_vector(), counting(100, 51));
  EXPECT_THAT(from.to_vector(), Each(3U));
  EXPECT_EQ(moved(to.statistics()), (Moved{400, 1, 400, 1}));
  EXPECT_EQ(device_bytes(to, sim), counting(100, 51));
}

TEST_F(Asynchrony, ARangeInFlightIsNotCopiedTwice) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  std::optional<Gate> gate{first};
  auto const arrived = buffer.prefetch(first);
  auto const asked_again = buffer.prefetch(second);
  auto const used = add(second, buffer.slice(40, 20), 1);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400, 1, 0, 0})) << "one copy, on its way";
  EXPECT_FALSE(arrived.ready());
  EXPECT_FALSE(asked_again.ready());
  EXPECT_FALSE(used.ready()) << "it needs what is on its way";
  gate.reset();
  used.wait();
  EXPECT_EQ(moved(sim.transfers()), (Moved{400, 1, 0, 0}));
  auto expected = counting(100);
  for (std::size_t i = 40; i < 60; ++i) ++expected[i];
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400, 1, 80, 1}));
}

TEST_F(Asynchrony, AWiderPrefetchSkipsBytesInFlight) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  std::optional<Gate> gate{first};
  Operand const front{&buffer.core(), {0, 240}, Intent::read};
  run(first, {&front, 1}, [](auto) {});
  auto const all_of_it = buffer.prefetch(second);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{240 + 160, 2, 0, 0}));
  EXPECT_FALSE(all_of_it.ready());
  gate.reset();
  all_of_it.wait();
  EXPECT_EQ(device_bytes(buffer, sim), counting(100));
}

TEST_F(Asynchrony, WorkOnUnrelatedRangesOfOneBufferOverlaps) {
  auto buffer = synchronized();
  std::optional<Gate> gate{first};
  auto const held = add(first, buffer.slice(0, 50), 1);
  auto const free = add(second, buffer.slice(50, 50), 2);
  free.wait();
  EXPECT_FALSE(held.ready()) << "the second ended while the first had not begun";
  EXPECT_EQ(buffer.slice(50, 50).to_vector(), counting(50, 52)) << "and came home";
  EXPECT_FALSE(held.ready());
  gate.reset();
  auto expected = counting(100, 1);
  for (std::size_t i = 50; i < 100; ++i) ++expected[i];
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400, 1, 400, 2}));
}

TEST_F(Asynchrony, AnUploadOverlapsAKernelOnOtherBytes) {
  auto buffer = synchronized();
  std::optional<Gate> gate{first};
  auto const held = add(first, buffer.slice(0, 50), 1);
  std::ranges::fill(buffer.host(50, 50), 9U);
  auto rest = buffer.slice(50, 50);
  rest.sync_to_device();
  EXPECT_FALSE(held.ready());
  EXPECT_EQ(moved(sim.transfers()), (Moved{600, 2, 0, 0})) << "the other half went up meanwhile";
  gate.reset();
  auto expected = counting(100, 1);
  std::fill_n(expected.begin() + 50, 50, 9U);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

TEST_F(Asynchrony, OtherBuffersAreNotHeldUp) {
  auto held_up = synchronized(), other_one = synchronized();
  std::optional<Gate> gate{first};
  auto const held = add(first, held_up.slice(0), 1);
  add(second, other_one.slice(0), 2).wait();
  EXPECT_EQ(other_one.to_vector(), counting(100, 2));
  EXPECT_FALSE(held.ready());
  gate.reset();
  EXPECT_EQ(held_up.to_vector(), counting(100, 1));
}

TEST_F(Asynchrony, ReadsWaitForEarlierWritesOnOtherQueues) {
  auto buffer = synchronized();
  std::optional<Gate> gate{first};
  set(first, buffer.slice(0), 5);
  auto const reads = add(second, buffer.slice(30, 10), 1);
  EXPECT_FALSE(reads.ready());
  gate.reset();
  auto expected = std::vector<std::uint32_t>(100, 5U);
  std::fill_n(expected.begin() + 30, 10, 6U);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

TEST_F(Asynchrony, WritesWaitForEarlierReadsOnOtherQueues) {
  auto buffer = synchronized(), copied = synchronized();
  std::optional<Gate> gate{first};
  std::array const operands{Operand{&buffer.core(), {0, 400}, Intent::read},
                            Operand{&copied.core(), {0, 400}, Intent::write}};
  auto const reads = run(first, operands, [](std::span<const HostArgument> arguments) {
    std::memcpy(arguments[1].data, arguments[0].data, 400);
  });
  auto const writes = set(second, buffer.slice(99, 1), 5);
  EXPECT_FALSE(writes.ready());
  gate.reset();
  writes.wait();
  EXPECT_TRUE(reads.ready());
  EXPECT_EQ(copied.to_vector(), counting(100)) << "the reader saw what was there before";
  auto expected = counting(100);
  expected[99] = 5;
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

TEST_F(Asynchrony, TheLaterWriteWinsAcrossTwoQueues) {
  auto buffer = synchronized();
  std::optional<Gate> gate{first};
  set(first, buffer.slice(0, 60), 5);
  auto const later = set(second, buffer.slice(40, 60), 6);
  EXPECT_FALSE(later.ready());
  gate.reset();
  auto expected = std::vector<std::uint32_t>(100, 5U);
  std::fill_n(expected.begin() + 40, 60, 6U);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

TEST_F(Asynchrony, QueuesOnTwoDevicesNeedNoUserSynchronization) {
  std::array queues{sim.create_queue(), sim.create_queue(), sim.create_queue(), other.create_queue(),
                    other.create_queue()};
  UnifiedBuffer<std::uint32_t> buffer(1000, on_sim());
  buffer.copy_from(counting(1000));
  auto expected = counting(1000);
  for (std::size_t step = 0; step < 200; ++step) {
    auto const begin = step * 37 % 900, count = 1 + step * 53 % 100;
    add(queues[step * 7 % queues.size()], buffer.slice(begin, count), static_cast<std::uint32_t>(step));
    for (std::size_t i = begin; i < begin + count; ++i) expected[i] += static_cast<std::uint32_t>(step);
    if (step % 41 == 0) {
      buffer.host(begin, 1)[0] = 7;
      expected[begin] = 7;
    }
  }
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(device_bytes(buffer, other), expected);
  buffer.core().validate();
}

TEST_F(Asynchrony, ConcurrentFirstAccessesCopyEachByteOnce) {
  for (int round = 0; round < 20; ++round) {
    UnifiedBuffer<std::uint32_t> buffer(10'000, on_sim());
    buffer.copy_from(counting(10'000));
    constexpr std::size_t threads = 6;
    std::latch together{threads};
    std::vector<std::jthread> readers;
    for (std::size_t i = 0; i < threads; ++i) {
      readers.emplace_back([&, i] {
        auto queue = sim.create_queue();
        together.arrive_and_wait();
        auto const window = std::as_const(buffer).slice(i * 1000, 4000);
        auto const lease = window.device_view(queue);
        std::vector<std::uint32_t> seen(4000);
        queue.download(seen.data(), lease.native(), 16'000).wait();
        EXPECT_EQ(seen, counting(4000, static_cast<std::uint32_t>(i * 1000)));
      });
    }
    readers.clear();
    EXPECT_EQ(buffer.statistics().host_to_device_bytes, 36'000U) << "every byte of the union once";
  }
}

Task awaited(UnifiedBuffer<std::uint32_t>& buffer, std::vector<std::uint32_t>& result) {
  co_await buffer.sync_to_device_async();
  co_await buffer.copy_to_async(result);
}

TEST_F(Asynchrony, EventsOfBuffersCanBeAwaited) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  std::vector<std::uint32_t> result(100);
  std::optional<Gate> gate{sim.default_queue()};
  auto const task = awaited(buffer, result);
  EXPECT_FALSE(task.done());
  gate.reset();
  task.get();
  EXPECT_EQ(result, counting(100));
  EXPECT_EQ(moved(sim.transfers()), (Moved{400, 1, 0, 0}));
}

TEST_F(Asynchrony, AnErrorReachesOnlyAccessesToItsBytes) {
  auto buffer = synchronized();
  std::ranges::fill(buffer.host(0, 10), 5U);
  set_sim_faults(sim, {.fail_upload = 1});
  auto front = buffer.slice(0, 10), back = buffer.slice(10);
  auto const failed = front.sync_to_device_async();
  EXPECT_THROW(failed.wait(), DeviceError);
  EXPECT_THROW(failed.wait(), DeviceError) << "it sticks to its ticket";
  EXPECT_EQ(back.to_vector(), counting(90, 10));
  EXPECT_THROW(front.sync_to_device(), DeviceError) << "told once to who asks for the bytes";
  front.sync_to_device();
  auto expected = counting(100);
  std::fill_n(expected.begin(), 10, 5U);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  buffer.core().validate();
}

}  // namespace
}  // namespace unimem::testing
