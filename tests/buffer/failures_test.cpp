#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "buffer/gate_from_beside.hpp"
#include "device/gate.hpp"

#include <algorithm>
#include <array>
#include <latch>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace unimem::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class Failures : public BufferTest {
 protected:
  Queue own_queue = sim.create_queue();

  /// Writes all of a buffer on the device as a kernel would, asynchronously.
  Event overwrite(UnifiedBuffer<std::uint32_t>& buffer, std::uint32_t value, Intent intent = Intent::write) {
    Operand const operand{&buffer.core(), {0, buffer.size_bytes()}, intent};
    return run(sim.default_queue(), {&operand, 1}, [value, count = buffer.size()](auto arguments) {
      std::fill_n(static_cast<std::uint32_t*>(arguments[0].data), count, value);
    });
  }

  /// Writes to these parts on the device, all of which fail in these words when all have been submitted.
  void fail_on(std::vector<std::pair<BufferSlice<std::uint32_t>, std::string>> const& parts) {
    std::vector<Event> ends;
    {
      GateFromBeside gate(sim, other);
      for (auto const& [part, words] : parts) {
        Operand const operand{&part.core(), part.range(), Intent::write};
        ends.push_back(
            run(sim.default_queue(), {&operand, 1}, [words = words](auto) { throw std::runtime_error(words); }));
      }
    }
    for (auto const end : ends) EXPECT_NE(end.wait_for_error(), nullptr);
  }
  [[nodiscard]] static auto throws(std::string const& words) {
    return ::testing::ThrowsMessage<std::exception>(HasSubstr(words));
  }
};

TEST_F(Failures, AFailedUploadLeavesTheHostCopy) {
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
  auto buffer = synchronized();
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

TEST_F(Failures, AFailedKernelLosesASoleCopyLoudly) {
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

TEST_F(Failures, AFailedUploadRollsBackWhatItFed) {
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
  auto buffer = synchronized();
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

TEST_F(Failures, ArrivedBytesStayThoughTheFetchFails) {
  auto buffer = synchronized();
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
  auto buffer = synchronized();
  set_sim_faults(sim, {.fail_run = 1});
  GateFromBeside gate(sim, other);
  overwrite(buffer, 9);
  overwrite(buffer, 10);
  gate.open();
  EXPECT_THROW(std::ignore = buffer.host_view(), DeviceError) << "the failure is told once";
  EXPECT_THAT(buffer.to_vector(), Each(10U)) << "the later work needed nothing of it, and succeeded";
  buffer.core().validate();
}

TEST_F(Failures, AFailureSparesWorkOnOtherBytes) {
  auto buffer = synchronized();
  set_sim_faults(sim, {.fail_run = 1});
  auto front = buffer.slice(0, 50), back = buffer.slice(50, 50);
  GateFromBeside gate(sim, other);
  set(sim.default_queue(), front, 9);
  set(sim.default_queue(), back, 10);
  gate.open();
  EXPECT_THAT(back.to_vector(), Each(10U)) << "nobody who only looks here hears of it";
  EXPECT_THROW(std::ignore = front.host_view(), DeviceError);
  EXPECT_EQ(front.to_vector(), counting(50));
  EXPECT_THAT(back.to_vector(), Each(10U));
  buffer.core().validate();
}

TEST_F(Failures, EachIsToldByItsBytes) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.fill(1);
  auto first = buffer.slice(0, 50), second = buffer.slice(50);
  fail_on({{first, "the first half failed"}, {second, "the second half failed"}});
  EXPECT_THAT([&] { std::ignore = second.host_view(); }, throws("the second half failed"));
  EXPECT_THAT([&] { std::ignore = first.host_view(); }, throws("the first half failed"));
  EXPECT_THAT(buffer.to_vector(), Each(1U)) << "both are taken back, and told";
}

TEST_F(Failures, ALaunchIsToldOfThoseOnItsBytes) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.fill(1);
  auto first = buffer.slice(0, 50), second = buffer.slice(50);
  fail_on({{first, "the first half failed"}, {second, "the second half failed"}});
  EXPECT_THAT([&] { std::ignore = second.host_view(); }, throws("the second half failed"));
  EXPECT_THAT([&] { set(sim.default_queue(), first, 2); }, throws("the first half failed"));
  set(sim.default_queue(), first, 2);
  EXPECT_THAT(first.to_vector(), Each(2U));
}

TEST_F(Failures, AllThatAnAccessReachesAreToldByIt) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.fill(1);
  auto first = buffer.slice(0, 50), second = buffer.slice(50);
  fail_on({{first, "the first half failed"},
           {second, "the second half failed"},
           {buffer.slice(40, 20), "the middle failed"}});
  EXPECT_THAT([&] { std::ignore = first.host_view(); }, throws("the first half failed"));
  EXPECT_THAT(
      [&] {
        auto const part = buffer.slice(70);
        std::ignore = part.host_view();
      },
      throws("the second half failed"));
  EXPECT_THAT(
      [&] {
        auto const part = buffer.slice(50, 10);
        std::ignore = part.host_view();
      },
      throws("the middle failed"));
  EXPECT_THAT(buffer.to_vector(), Each(1U));
  fail_on({{first, "once more"}, {second, "and here"}});
  EXPECT_THAT([&] { std::ignore = buffer.host_view(); }, throws("once more"));
  EXPECT_THAT(buffer.to_vector(), Each(1U));
}

TEST_F(Failures, WhatAFailureTookWithItIsNotToldAgain) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.fill(1);
  auto first = buffer.slice(0, 50), second = buffer.slice(50);
  std::array const operands{Operand{&buffer.core(), first.range(), Intent::read},
                            Operand{&buffer.core(), second.range(), Intent::read_write}};
  Event end;
  {
    GateFromBeside gate(sim, other);
    run(sim.default_queue(), {operands.data() + 1, 1},
        [](auto) { throw std::runtime_error("the second half failed"); });
    run(sim.default_queue(), {operands.data(), 1}, [](auto) {});
    end = add(sim.default_queue(), buffer.slice(0), 1);
  }
  EXPECT_NE(end.wait_for_error(), nullptr) << "it needed the second half";
  EXPECT_THAT([&] { std::ignore = first.host_view(); }, throws("the second half failed")) << "that is why";
  EXPECT_THAT(buffer.to_vector(), Each(1U));
}

/// A buffer whose first two fifths fail, whose last half the device alone has, and a limit that is its size.
class FailuresAndEviction : public Failures {
 protected:
  FailuresAndEviction() {
    manager.set_limit(sim, 64 << 10);
    buffer.fill(1);
    auto const lease = last.device();
    std::fill_n(lease.data(), lease.size(), 5U);
  }
  void fail_both() { fail_on({{first, "the first fifth failed"}, {second, "the second fifth failed"}}); }
  void evict() {
    UnifiedBuffer<std::uint32_t> another(10'000, on_sim());
    another.fill(2);
    another.sync_to_device();
    EXPECT_FALSE(buffer.core().device_ready(sim)) << "it has gone";
  }

  UnifiedBuffer<std::uint32_t> buffer{10'000, on_sim()};
  BufferSlice<std::uint32_t> first = buffer.slice(0, 2'000), second = buffer.slice(2'000, 2'000),
                             last = buffer.slice(5'000);
};

TEST_F(FailuresAndEviction, EachIsStillToldByItsBytes) {
  fail_both();
  evict();
  EXPECT_THAT(last.to_vector(), Each(5U)) << "nothing failed there";
  EXPECT_THAT([&] { std::ignore = second.host_view(); }, throws("the second fifth failed"));
  EXPECT_THAT([&] { std::ignore = first.host_view(); }, throws("the first fifth failed"));
  EXPECT_THAT(buffer.slice(0, 5'000).to_vector(), Each(1U));
}

TEST_F(FailuresAndEviction, WhatFailedSinceIsTakenBackBeforeTheDevicesMemoryGoes) {
  fail_both();
  EXPECT_THAT([&] { std::ignore = first.host_view(); }, throws("the first fifth failed"));
  set_sim_faults(sim, {.fail_download = 1});
  EXPECT_NE(last.sync_to_host_async().wait_for_error(), nullptr);
  evict();
  EXPECT_THROW(std::ignore = last.host_view(), DeviceError);
  EXPECT_THAT(last.to_vector(), Each(5U)) << "the device had it, and it was saved";
  EXPECT_THAT([&] { std::ignore = second.host_view(); }, throws("the second fifth failed"));
  buffer.core().validate();
}

TEST_F(Failures, ANewOwnersBytesHaveNone) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.fill(1);
  fail_on({{buffer.slice(0, 50), "the first half failed"}, {buffer.slice(50), "the second half failed"}});
  EXPECT_THAT(
      [&] {
        auto const part = buffer.slice(50);
        std::ignore = part.host_view();
      },
      throws("the second half failed"));
  buffer.free();
  buffer.copy_from(counting(100));
  EXPECT_EQ(buffer.to_vector(), counting(100)) << "what was there is gone, and its failures with it";
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
TEST_F(Failures, TheNextTrySucceedsWhicheverCallFailed) {
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

TEST_F(Eviction, AWorkingSetLargerThanTheDeviceRuns) {
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

TEST_F(Eviction, LeasedBuffersStayAndTheErrorNamesThem) {
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

TEST_F(Eviction, DestroyingABufferInUseIsDefined) {
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
