#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "buffer/gate_from_beside.hpp"
#include "device/gate.hpp"

#include <algorithm>
#include <array>
#include <latch>
#include <numeric>
#include <optional>
#include <thread>

namespace unimem::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class Failures : public BufferTest {
 protected:
  Queue own_queue = sim.create_queue();

  /// Scribbles over the device copy as a kernel would, asynchronously, and returns its event.
  Event overwrite(UnifiedBuffer<std::uint32_t>& buffer, std::uint32_t value, Intent intent = Intent::write) {
    Operand const operand{&buffer.core(), {0, buffer.size_bytes()}, intent};
    auto const program = sim.compile(
        {"set", "", [value](Range, std::size_t begin, std::size_t end, std::span<const HostArgument> arguments) {
           auto* const data = static_cast<std::uint32_t*>(arguments[0].data);
           std::fill(data + begin, data + end, value);
         }});
    return use_on_device(sim.default_queue(), {&operand, 1},
                         [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
                           KernelArgument argument;
                           argument.memory = memory.front();
                           return sim.default_queue().run(program, Range{buffer.size()}, {&argument, 1}, needs);
                         });
  }

  /// What becomes of `changed`, which only the device has, when the work that was to change it does not get its input.
  static void feed_with_what_never_arrives(Device& device, UnifiedBuffer<std::uint32_t>& input,
                                           UnifiedBuffer<std::uint32_t>& changed) {
    input.copy_from(counting(100));
    {
      auto const lease = changed.device(device);
      std::fill_n(lease.data(), 100, 5U);
    }
    set_sim_faults(device, {.fail_upload = 1});
    auto& queue = device.default_queue();
    std::array const operands{Operand{&input.core(), {0, 400}, Intent::read},
                              Operand{&changed.core(), {0, 400}, Intent::read_write}};
    auto const event =
        use_on_device(queue, operands, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
          return queue.copy(memory[1], memory[0], 400, needs);
        });
    EXPECT_THROW(event.wait(), DeviceError);
    EXPECT_THROW(std::ignore = changed.host_view(), DeviceError);
  }
};

TEST_F(Failures, AFailedUploadLeavesTheHostCopyAndSaysSoOnce) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  set_sim_faults(sim, {.fail_upload = 1});
  EXPECT_THROW(buffer.sync_to_device(), DeviceError);
  EXPECT_EQ(buffer.state(), BufferState::host_dirty);
  EXPECT_FALSE(buffer.valid_on(sim));
  EXPECT_EQ(buffer.to_vector(), counting(100));
  buffer.sync_to_device();
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  EXPECT_EQ(device_bytes(buffer, sim), counting(100));
}

TEST_F(Failures, AFailedDownloadLeavesTheDeviceCopy) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  {
    auto const lease = buffer.device();
    lease.data()[0] = 50;
  }
  set_sim_faults(sim, {.fail_download = 1});
  EXPECT_THROW(std::ignore = buffer.host_view(), DeviceError);
  EXPECT_EQ(buffer.state(), BufferState::device_dirty);
  EXPECT_EQ(buffer.host_view()[0], 50U);
}

TEST_F(Failures, FailedDeviceMemoryChangesNothing) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim("hungry"));
  buffer.copy_from(counting(100));
  set_sim_faults(sim, {.fail_allocation = 1});
  EXPECT_THROW(std::ignore = buffer.device(), OutOfMemory);
  EXPECT_EQ(buffer.state(), BufferState::host_dirty);
  EXPECT_EQ(device_bytes(buffer, sim), counting(100));
}

TEST_F(Failures, WhatAFailedKernelWroteIsTakenBack) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  set_sim_faults(sim, {.fail_run = 1});
  auto const event = overwrite(buffer, 9);
  EXPECT_EQ(buffer.state(), BufferState::device_dirty) << "tentative until its ticket succeeds";
  EXPECT_THROW(event.wait(), DeviceError);
  EXPECT_THROW(event.wait(), DeviceError) << "every waiter learns of it";
  EXPECT_THROW(std::ignore = buffer.host_view(), DeviceError);
  EXPECT_EQ(buffer.to_vector(), counting(100)) << "the last good copy";
  EXPECT_EQ(device_bytes(buffer, sim), counting(100)) << "uploaded again";
  buffer.core().validate();
}

TEST_F(Failures, AKernelThatFailsOnTheOnlyCopyLosesItLoudly) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim("precious"));
  buffer.copy_from(counting(100));
  {
    auto const lease = buffer.device();
  }
  set_sim_faults(sim, {.fail_run = 1});
  auto const event = overwrite(buffer, 9, Intent::read_write);
  static_cast<void>(event.wait_for_error());
  EXPECT_THROW(std::ignore = buffer.host_view(), DeviceError);
  try {
    std::ignore = buffer.host_view();
    FAIL() << "garbage was read";
  } catch (DataLost const& error) {
    EXPECT_EQ(error.buffer, "buffer 'precious'");
    EXPECT_EQ(error.begin, 0U);
    EXPECT_EQ(error.end, 400U);
  }
  buffer.fill(3);
  EXPECT_THAT(buffer.to_vector(), Each(3U)) << "a whole new write makes it good again";
}

TEST_F(Failures, ABufferThatAFailedUploadFedIsTakenBackToo) {
  UnifiedBuffer<std::uint32_t> from(100, on_sim()), to(100, on_sim());
  from.copy_from(counting(100));
  to.fill(5);
  to.sync_to_device();
  set_sim_faults(sim, {.fail_upload = 1});
  auto& queue = sim.default_queue();
  std::array const operands{Operand{&from.core(), {0, 400}, Intent::read},
                            Operand{&to.core(), {0, 400}, Intent::write}};
  auto const event =
      use_on_device(queue, operands, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
        return queue.copy(memory[1], memory[0], 400, needs);
      });
  EXPECT_THROW(event.wait(), DeviceError) << "who waits for the work learns that its input never arrived";
  EXPECT_THROW(std::ignore = to.host_view(), DeviceError) << "it holds a copy of what never arrived";
  EXPECT_THAT(to.to_vector(), Each(5U));
  EXPECT_THROW(from.sync_to_device(), DeviceError);
  EXPECT_EQ(from.to_vector(), counting(100));
}

TEST_F(Failures, WhatReadsFailedWorkGoesWithIt) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  set_sim_faults(sim, {.fail_run = 1});
  GateFromBeside gate(sim, other);
  auto const failed = overwrite(buffer, 9);
  auto const reads_it = overwrite(buffer, 10, Intent::read_write);
  gate.open();
  EXPECT_THROW(reads_it.wait(), DeviceError);
  EXPECT_THROW(std::ignore = buffer.host_view(), DeviceError);
  EXPECT_NE(failed.error(), nullptr);
  EXPECT_EQ(buffer.to_vector(), counting(100));
  buffer.core().validate();
}

TEST_F(Failures, WorkThatNeverBeganHasLeftWhatItWasToChange) {
  UnifiedBuffer<std::uint32_t> input(100, on_sim()), changed(100, on_sim());
  feed_with_what_never_arrives(sim, input, changed);
  EXPECT_THAT(changed.to_vector(), Each(5U)) << "the only copy there was";
  changed.core().validate();
}

TEST_F(Failures, ADeviceThatCarriesOutWhatItWasGivenLosesItLoudly) {
  auto& heedless = make_sim({.heedless = true});
  auto options = on_sim("precious");
  options.device = &heedless;
  UnifiedBuffer<std::uint32_t> input(100, options), changed(100, options);
  feed_with_what_never_arrives(heedless, input, changed);
  EXPECT_THROW(std::ignore = changed.to_vector(), DataLost) << "the copy went ahead";
  changed.core().validate();
}

/// Sevens in the first half of a lease.
Event write_sevens(Queue& queue, DeviceMemory memory) {
  std::uint32_t const seven = 7;
  return queue.fill(memory.window(0, 200), std::as_bytes(std::span{&seven, 1}));
}

TEST_F(Failures, WhatWasWrittenUnderALeaseWhoseInputNeverCameIsNotTakenForUntouched) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  set_sim_faults(other, {.fail_run = 1});
  {
    GateFromBeside gate(other, sim);
    Operand const operand{&buffer.core(), {200, 400}, Intent::write};
    run(other.default_queue(), {&operand, 1}, [](auto) {});
    auto const lease = buffer.device(own_queue);
    write_sevens(own_queue, lease.native());
  }
  EXPECT_THROW(std::ignore = buffer.host_view(), DeviceError);
  EXPECT_EQ(buffer.to_vector(), counting(100));
  EXPECT_EQ(device_bytes(buffer, sim), counting(100)) << "uploaded again";
}

TEST_F(Failures, OfSeveralStepsTheLastOneSaysNothingAboutTheOthers) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim()), input(100, on_sim());
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  input.copy_from(counting(100));
  set_sim_faults(sim, {.fail_upload = 1});
  std::array const operands{Operand{&input.core(), {0, 400}, Intent::read},
                            Operand{&buffer.core(), {0, 400}, Intent::write}};
  auto const event =
      use_on_device(own_queue, operands, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
        write_sevens(own_queue, memory[1]);
        return own_queue.copy(memory[1].window(200, 200), memory[0], 200, needs);
      });
  EXPECT_THROW(event.wait(), DeviceError);
  EXPECT_THROW(std::ignore = buffer.host_view(), DeviceError);
  EXPECT_EQ(buffer.to_vector(), counting(100));
  EXPECT_EQ(device_bytes(buffer, sim), counting(100)) << "uploaded again";
}

TEST_F(Failures, AMarkByTheLastOfSeveralCommandsSaysNothingAboutTheOthers) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim()), source(100, on_sim());
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  source.fill(1);
  set_sim_faults(other, {.fail_upload = 1});
  auto const memory = other.allocate(4, Location::device);
  auto const failed = other.default_queue().upload(memory, &buffer, 4);
  {
    auto const lease = buffer.device_view(own_queue);
    auto const from = source.device_view(own_queue);
    write_sevens(own_queue, lease.native());
    auto const last = own_queue.copy(lease.native().window(200, 200), from.native(), 200, {{failed}});
    EXPECT_NE(last.wait_for_error(), nullptr);
    EXPECT_TRUE(last.never_began());
    buffer.mark_device_dirty(sim, 0, 100, last);
  }
  EXPECT_THROW(std::ignore = buffer.host_view(), DeviceError);
  EXPECT_EQ(buffer.to_vector(), counting(100));
  EXPECT_EQ(device_bytes(buffer, sim), counting(100)) << "uploaded again";
  other.release(memory, Location::device);
}

TEST_F(Failures, ACopyWhoseSourceFailsLeavesItsTarget) {
  UnifiedBuffer<std::uint32_t> from(100, on_sim()), to(100, on_sim());
  from.copy_from(counting(100));
  from.sync_to_device();
  {
    auto const lease = to.device();
    std::fill_n(lease.data(), 100, 5U);
  }
  set_sim_faults(sim, {.fail_run = 1});
  GateFromBeside gate(sim, other);
  overwrite(from, 9);
  auto const copied = copy_async(from, to);
  gate.open();
  EXPECT_THROW(copied.wait(), DeviceError);
  EXPECT_THROW(std::ignore = to.host_view(), DeviceError);
  EXPECT_THAT(to.to_vector(), Each(5U)) << "the only copy there was";
  EXPECT_THROW(std::ignore = from.host_view(), DeviceError);
  EXPECT_EQ(from.to_vector(), counting(100));
}

TEST_F(Failures, WhatHasArrivedStaysThoughWhatWasFetchedWithItFails) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  set(sim.default_queue(), buffer.slice(30, 20), 7).wait();  // only the device has them
  buffer.slice(20, 10).copy_from(counting(10, 1000));
  buffer.slice(50, 10).copy_from(counting(10, 2000));
  set_sim_faults(sim, {.fail_upload = 1, .fail_run = 2});
  std::optional<Gate> gate{own_queue};  // the first run
  set(own_queue, buffer.slice(60, 10), 9);
  auto const before = sim.transfers().device_to_host_copies;
  auto const fetched = buffer.sync_to_host_async();
  while (sim.transfers().device_to_host_copies == before) std::this_thread::yield();
  // The sevens have arrived; what was written last comes later. Now across them, from the host:
  auto const sent = buffer.prefetch();
  gate.reset();
  EXPECT_NE(fetched.wait_for_error(), nullptr);
  EXPECT_NE(sent.wait_for_error(), nullptr);
  EXPECT_THROW(buffer.sync_to_host(), DeviceError);
  auto expected = counting(100);
  std::fill_n(expected.begin() + 30, 20, 7U);
  std::iota(expected.begin() + 20, expected.begin() + 30, 1000U);
  std::iota(expected.begin() + 50, expected.begin() + 60, 2000U);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  buffer.core().validate();
}

TEST_F(Failures, WhatWritesAnewBehindAFailureStays) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  set_sim_faults(sim, {.fail_run = 1});
  GateFromBeside gate(sim, other);
  overwrite(buffer, 9);
  overwrite(buffer, 10);
  gate.open();
  EXPECT_THROW(std::ignore = buffer.host_view(), DeviceError) << "the failure is told once";
  EXPECT_THAT(buffer.to_vector(), Each(10U)) << "the later work needed nothing of it, and succeeded";
  buffer.core().validate();
}

TEST_F(Failures, WorkOnOtherBytesIsNotTouchedByAFailure) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  set_sim_faults(sim, {.fail_run = 1});
  auto front = buffer.slice(0, 50), back = buffer.slice(50, 50);
  GateFromBeside gate(sim, other);
  auto const set = [&](BufferSlice<std::uint32_t>& slice, std::uint32_t value) {
    Operand const operand{&slice.core(), slice.range(), Intent::write};
    auto const program = sim.compile(
        {"set", "", [value](Range, std::size_t begin, std::size_t end, std::span<const HostArgument> arguments) {
           std::fill_n(static_cast<std::uint32_t*>(arguments[0].data) + begin, end - begin, value);
         }});
    use_on_device(sim.default_queue(), {&operand, 1},
                  [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
                    KernelArgument argument;
                    argument.memory = memory.front();
                    return sim.default_queue().run(program, Range{slice.size()}, {&argument, 1}, needs);
                  });
  };
  set(front, 9);
  set(back, 10);
  gate.open();
  EXPECT_THAT(back.to_vector(), Each(10U)) << "nobody who only looks here hears of it";
  EXPECT_THROW(std::ignore = front.host_view(), DeviceError);
  EXPECT_EQ(front.to_vector(), counting(50));
  EXPECT_THAT(back.to_vector(), Each(10U));
  buffer.core().validate();
}

TEST_F(Failures, ASubmissionThatThrowsWritesNothing) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  Operand const operand{&buffer.core(), {0, 400}, Intent::write};
  EXPECT_THROW(use_on_device(sim.default_queue(), {&operand, 1},
                             [](std::span<const DeviceMemory>, std::span<const Event>) -> Event {
                               throw KernelError("k", "will not build");
                             }),
               KernelError);
  EXPECT_EQ(buffer.state(), BufferState::host_dirty);
  EXPECT_EQ(buffer.to_vector(), counting(100));
}

/// For every device call an operation makes, that call failing: nothing is lost, and the next try succeeds.
TEST_F(Failures, WhicheverCallFailsTheBytesSurviveAndTheNextTrySucceeds) {
  for (int kind = 0; kind < 3; ++kind) {
    for (std::uint64_t n = 1; n <= 4; ++n) {
      SCOPED_TRACE(::testing::Message() << "kind " << kind << ", call " << n);
      SimOptions faults;
      (kind == 0 ? faults.fail_allocation : kind == 1 ? faults.fail_upload : faults.fail_download) = n;
      MemoryManager fresh;
      auto options = on_sim();
      options.manager = &fresh;
      UnifiedBuffer<std::uint32_t> a(1000, options), b(1000, options);
      set_sim_faults(sim, faults);
      int failed = 0;
      auto const attempt = [&](auto&& operation) {
        for (int tries = 0;; ++tries) {
          ASSERT_LT(tries, 3);
          try {
            operation();
            return;
          } catch (Error const&) {
            ++failed;
          }
        }
      };
      attempt([&] { a.copy_from(counting(1000)); });
      attempt([&] { a.sync_to_device(); });
      attempt([&] { b.fill(1); });
      attempt([&] {
        {
          auto const lease = b.device();
        }
      });
      attempt([&] { copy(a, b); });
      attempt([&] {
        {
          auto const lease = a.device();
        }
      });
      attempt([&] { EXPECT_EQ(b.to_vector(), counting(1000)); });
      attempt([&] { EXPECT_EQ(a.to_vector(), counting(1000)); });
      a.core().validate();
      b.core().validate();
      EXPECT_LE(failed, 2);
      set_sim_faults(sim, {});
    }
  }
  EXPECT_EQ(sim.memory_info().free_bytes, sim.memory_info().total_bytes) << "nothing leaked";
}

class Eviction : public BufferTest {};

TEST_F(Eviction, AWorkingSetLargerThanTheDeviceRunsAndStaysRight) {
  auto& small = make_sim({.memory_bytes = std::size_t{1} << 20});
  std::vector<UnifiedBuffer<std::uint32_t>> buffers;
  auto options = on_sim();
  options.device = &small;
  for (std::uint32_t i = 0; i < 10; ++i) {
    buffers.emplace_back(60'000, options);  // 240,000 bytes: four fit
    buffers.back().fill(i);
  }
  for (int round = 0; round < 3; ++round) {
    for (auto& buffer : buffers) {
      auto const lease = buffer.device();
      for (std::size_t i = 0; i < lease.size(); ++i) ++lease.data()[i];
      EXPECT_LE(manager.pool(small, Location::device).statistics().reserved_bytes, std::size_t{1} << 20);
    }
  }
  for (std::uint32_t i = 0; i < 10; ++i) EXPECT_THAT(buffers[i].to_vector(), Each(i + 3));
  EXPECT_GT(manager.statistics().reclaims, 0U);
}

TEST_F(Eviction, LeasedBuffersAreNotEvictedAndTheErrorSaysWhoHoldsWhat) {
  auto& small = make_sim({.memory_bytes = std::size_t{1} << 20});
  auto options = on_sim("holder");
  options.device = &small;
  UnifiedBuffer<std::uint32_t> held(200'000, options);
  auto lease = held.device();
  options.name = "asker";
  UnifiedBuffer<std::uint32_t> wanted(100'000, options);
  wanted.fill(4);
  try {
    std::ignore = wanted.device();
    FAIL() << "there is no room";
  } catch (OutOfMemory const& error) {
    EXPECT_EQ(error.requested(), 400'000U);
    EXPECT_THAT(error.what(), HasSubstr("holder"));
    EXPECT_GE(error.live(), 800'000U);
  }
  EXPECT_THAT(wanted.to_vector(), Each(4U));
  lease.end();
  std::ignore = wanted.device();
  EXPECT_EQ(held.state(), BufferState::host_only) << "evicted once the lease had ended";
}

TEST_F(Eviction, ALeaseOutlivesItsBuffer) {
  DeviceSpan<std::uint32_t> lease;
  {
    UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
    buffer.copy_from(counting(100));
    lease = buffer.device();
  }
  EXPECT_EQ(lease.data()[42], 42U);
  auto const live = manager.pool(sim, Location::device).statistics().active_bytes;
  EXPECT_GE(live, 400U);
  lease.end();
  EXPECT_EQ(manager.pool(sim, Location::device).statistics().active_bytes, 0U);
}

TEST_F(Eviction, DestroyingABufferWhileWorkUsesItIsDefined) {
  auto& slow = make_sim({.memory_bytes = std::size_t{1} << 20, .latency = std::chrono::milliseconds(5)});
  auto options = on_sim();
  options.device = &slow;
  for (std::uint32_t round = 0; round < 10; ++round) {
    UnifiedBuffer<std::uint32_t> result(1000, options);
    result.fill(0);
    {
      UnifiedBuffer<std::uint32_t> source(1000, options);
      source.fill(round);
      auto& queue = slow.default_queue();
      std::array const operands{Operand{&source.core(), {0, 4000}, Intent::read},
                                Operand{&result.core(), {0, 4000}, Intent::write}};
      use_on_device(queue, operands, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
        return queue.copy(memory[1], memory[0], 4000, needs);
      });
    }
    // Its blocks, on both sides, must not serve these while the copies are pending.
    UnifiedBuffer<std::uint32_t> intruder(1000, options);
    intruder.fill(999);
    intruder.prefetch();
    EXPECT_THAT(result.to_vector(), Each(round));
  }
}

}  // namespace
}  // namespace unimem::testing
