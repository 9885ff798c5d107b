#include <unimem/core/error.hpp>

#include "buffer/buffer_pool_fixture.hpp"
#include "device/gate.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

// What of one owner of a pooled buffer reaches the next: the memory, and nothing else.

namespace unimem::testing {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;

class PooledReuse : public BufferPoolTest {
 protected:
  /// Has a buffer back, and lends it again.
  [[nodiscard]] Numbers pass_on(Numbers& buffer) {
    auto const* const core = &buffer.core();
    auto const size = buffer.size();
    pool.release(buffer);
    auto next = pool.acquire<std::uint32_t>(size);
    EXPECT_EQ(&next.core(), core);
    next.core().validate();
    return next;
  }
  void zero_on_release() {
    auto settings = pool.settings();
    settings.zero_on_release = true;
    pool.configure(settings);
  }
  /// What is in the memory itself, whatever the buffer says of it.
  [[nodiscard]] std::vector<std::uint32_t> device_memory(Numbers& buffer, Device& on) {
    auto const lease = buffer.device_overwrite(on);
    std::vector<std::uint32_t> values(buffer.size());
    on.default_queue().download(values.data(), lease.native(), buffer.size_bytes()).wait();
    return values;
  }
};

TEST_F(PooledReuse, IsUninitializedButKeepsItsMemory) {
  auto buffer = pool.acquire<std::uint32_t>(1000);
  buffer.copy_from(counting(1000));
  buffer.sync_to_device();
  auto const* const address = buffer.host_view().data();
  auto const acquires = manager.statistics().total_allocations;
  auto next = pass_on(buffer);
  EXPECT_EQ(next.state(), BufferState::uninitialized);
  EXPECT_FALSE(next.valid_on_host());
  EXPECT_FALSE(next.valid_on(sim));
  EXPECT_TRUE(next.is_allocated());
  EXPECT_EQ(std::as_const(next).host_view().data(), address);
  EXPECT_EQ(next.to_vector(), counting(1000)) << "the contents are not cleared";
  static_cast<void>(next.device_overwrite());
  EXPECT_EQ(manager.statistics().total_allocations, acquires) << "nothing had to be asked for";
}

TEST_F(PooledReuse, HasNoDirtyBytesToMove) {
  for (bool const on_device : {false, true}) {
    auto buffer = pool.acquire<std::uint32_t>(1000);
    buffer.copy_from(counting(1000));
    buffer.sync_to_device();
    if (on_device) {
      buffer.fill(7);
      EXPECT_EQ(buffer.state(), BufferState::device_dirty);
    } else {
      buffer.host()[0] = 7;
      EXPECT_EQ(buffer.state(), BufferState::host_dirty);
    }
    auto next = pass_on(buffer);
    auto const before = moved(sim.transfers());
    std::ranges::fill(next.host_overwrite(), 3U);
    EXPECT_EQ(next.state(), BufferState::host_dirty);
    next.sync_to_device();
    EXPECT_THAT(device_bytes(next, sim), Each(3));
    EXPECT_EQ(moved(next.statistics()), (Moved{4000, 1, 0, 0})) << "just what its owner wrote";
    EXPECT_EQ(moved(sim.transfers()).up, before.up + 1);
    pool.release(next);
    pool.clear();
  }
}

TEST_F(PooledReuse, ShowsNothingOfWhatWasCountedAndAdvised) {
  auto buffer = pool.acquire<std::uint32_t>(1000);
  buffer.copy_from(counting(1000));
  buffer.sync_to_device();
  buffer.advise(Advice::read_mostly);
  auto const next = pass_on(buffer);
  EXPECT_EQ(moved(next.statistics()), (Moved{}));
  EXPECT_EQ(next.statistics().host_to_device_nanoseconds, 0U);
  EXPECT_THAT(next.migrations(), IsEmpty());
  EXPECT_THAT(next.advice(), IsEmpty());
}

TEST_F(PooledReuse, EndsTheLifeOfTheEarlierBuffer) {
  for (std::size_t const count : {0U, 1000U}) {
    auto buffer = pool.acquire<std::uint32_t>(count);
    auto const life = buffer.core().life();
    EXPECT_FALSE(life.expired());
    auto const next = pass_on(buffer);
    EXPECT_TRUE(life.expired()) << "a graph that was captured with it is not for the next owner";
  }
}

TEST_F(PooledReuse, QueuesBehindTheEarlierOwnersWork) {
  auto queue = sim.create_queue();
  auto buffer = pool.acquire<std::uint32_t>(1000);
  buffer.copy_from(counting(1000));
  buffer.sync_to_device();
  std::optional<Gate> gate{queue};
  auto const earlier = set(queue, buffer.slice(0), 5);
  auto next = pass_on(buffer);
  EXPECT_FALSE(earlier.ready()) << "neither releasing nor acquiring waits";
  std::ranges::fill(next.host_overwrite(), 3U);  // on the host nothing is pending
  auto const later = next.prefetch();
  EXPECT_FALSE(later.ready());
  gate.reset();
  later.wait();
  EXPECT_TRUE(earlier.ready());
  EXPECT_THAT(device_bytes(next, sim), Each(3)) << "the earlier owner's work did not write over it";
}

TEST_F(PooledReuse, OnTheHostTooGoesBehindThatWork) {
  auto queue = sim.create_queue();
  auto buffer = pool.acquire<std::uint32_t>(1000);
  std::optional<Gate> gate{queue};
  set(queue, buffer.slice(0), 5);
  std::vector<std::uint32_t> const data = counting(1000);
  auto const arrives = buffer.sync_to_host_async();
  EXPECT_FALSE(arrives.ready());
  auto next = pass_on(buffer);
  auto const written = next.copy_from_async(data);
  EXPECT_FALSE(written.ready()) << "the download may still write there";
  gate.reset();
  written.wait();
  EXPECT_EQ(next.to_vector(), data);
}

TEST_F(PooledReuse, HearsNothingOfTheFailuresBefore) {
  auto buffer = pool.acquire<std::uint32_t>(1000);
  buffer.copy_from(counting(1000));
  std::optional<Gate> gate{sim.default_queue()};
  set_sim_faults(sim, {.fail_upload = 1});
  auto const failing = buffer.prefetch();
  auto next = pass_on(buffer);
  gate.reset();
  EXPECT_NE(failing.wait_for_error(), nullptr);
  EXPECT_EQ(next.state(), BufferState::uninitialized);
  static_cast<void>(next.to_vector());
  next.copy_from(counting(1000, 5));
  next.sync_to_device();
  EXPECT_EQ(device_bytes(next, sim), counting(1000, 5));
}

TEST_F(PooledReuse, EarlierDeviceFailuresDoNotSpoilLaterReads) {
  auto buffer = pool.acquire<std::uint32_t>(1000);
  buffer.allocate();
  set_sim_faults(sim, {.fail_run = 1});
  auto const failing = set(sim.default_queue(), buffer.slice(0), 5);
  EXPECT_NE(failing.wait_for_error(), nullptr);
  auto next = pass_on(buffer);
  add(sim.default_queue(), next.slice(0), 1).wait();
  EXPECT_EQ(next.state(), BufferState::device_dirty);
}

TEST_F(PooledReuse, KeptBuffersAreEvictedFirstWithoutACopy) {
  auto kept = pool.acquire<std::uint32_t>(4 << 20);  // a quarter of the device
  kept.fill(1);
  kept.sync_to_device();
  Numbers mine(4 << 20, on_sim());
  mine.fill(2);
  mine.sync_to_device();
  auto next = [&] {
    pool.release(kept);
    return Numbers(10 << 20, on_sim());
  }();
  auto const before = moved(sim.transfers());
  next.fill(3);
  next.sync_to_device();
  EXPECT_EQ(moved(sim.transfers()).down, before.down) << "nothing had to be saved";
  EXPECT_TRUE(mine.valid_on(sim)) << "nobody who uses his copy lost it";
  auto again = pool.acquire<std::uint32_t>(4 << 20);
  EXPECT_EQ(pool.stats().hits, 1U);
  EXPECT_EQ(again.state(), BufferState::uninitialized);
  again.fill(4);
  EXPECT_THAT(again.slice(0, 10).to_vector(), Each(4));
}

TEST_F(PooledReuse, OnTheCpuIsTheSame) {
  BufferPoolOptions cpu_options = options();
  cpu_options.device = &device("cpu");
  BufferPool on_cpu{cpu_options};
  auto buffer = on_cpu.acquire<std::uint32_t>(100);
  buffer.copy_from(counting(100));
  static_cast<void>(buffer.device());
  auto const* const address = buffer.host_view().data();
  on_cpu.release(buffer);
  auto next = on_cpu.acquire<std::uint32_t>(100);
  EXPECT_EQ(next.state(), BufferState::uninitialized);
  EXPECT_EQ(next.host_overwrite().data(), address);
  next.core().validate();
}

TEST_F(PooledReuse, ShowsZerosOnEverySideIfAsked) {
  zero_on_release();
  auto buffer = pool.acquire<std::uint32_t>(1000);
  buffer.copy_from(counting(1000, 1));
  buffer.sync_to_device();
  static_cast<void>(buffer.device_view(other));
  auto next = pass_on(buffer);
  EXPECT_THAT(device_memory(next, sim), Each(0));
  EXPECT_THAT(device_memory(next, other), Each(0));
  next = pass_on(next);
  EXPECT_THAT(next.to_vector(), Each(0));
}

TEST_F(PooledReuse, AreZerosBehindTheWorkThatIsPending) {
  zero_on_release();
  auto queue = sim.create_queue();
  auto buffer = pool.acquire<std::uint32_t>(1000);
  buffer.allocate(false, true);
  std::optional<Gate> gate{queue};
  auto const secret = set(queue, buffer.slice(0), 42);
  auto next = pass_on(buffer);
  EXPECT_FALSE(secret.ready());
  gate.reset();
  EXPECT_THAT(device_memory(next, sim), Each(0));
}

TEST_F(PooledReuse, WhatIsNotKeptIsOverwrittenAsWell) {
  zero_on_release();
  auto settings = pool.settings();
  settings.pageable.max_buffers = 0;
  pool.configure(settings);
  auto buffer = pool.acquire<std::uint32_t>(100'000);
  buffer.fill(42);
  buffer.sync_to_device();
  auto* const address = std::as_const(buffer).host_view().data();
  pool.release(buffer);
  EXPECT_EQ(pool.stats().let_go, 1U);
  Numbers next(100'000, on_sim());
  ASSERT_EQ(next.host_view().data(), address) << "the memory has come back";
  EXPECT_THAT(next.to_vector(), Each(0));
}

TEST_F(PooledReuse, SlicedMemoryIsOverwrittenWhenTheSliceEnds) {
  zero_on_release();
  auto buffer = pool.acquire<std::uint32_t>(100'000);
  buffer.fill(42);
  buffer.sync_to_device();
  auto const* const address = std::as_const(buffer).host_view().data();
  {
    auto const slice = buffer.slice(0, 10);
    pool.release(buffer);
    EXPECT_EQ(pool.stats().let_go, 1U);
    EXPECT_THAT(slice.to_vector(), Each(42)) << "they are not done with it";
  }
  Numbers next(100'000, on_sim());
  ASSERT_EQ(next.host_view().data(), address) << "the memory has come back";
  EXPECT_THAT(next.to_vector(), Each(0));
  EXPECT_THAT(device_memory(next, sim), Each(0));
}

TEST_F(PooledReuse, LeasedMemoryIsOverwrittenWhenTheLeaseEnds) {
  zero_on_release();
  auto buffer = pool.acquire<std::uint32_t>(100'000);
  buffer.fill(42);
  {
    auto const lease = buffer.device_view();
    pool.release(buffer);
    std::vector<std::uint32_t> held(100'000);
    sim.default_queue().download(held.data(), lease.native(), held.size() * 4).wait();
    EXPECT_THAT(held, Each(42));
  }
  Numbers next(100'000, on_sim());
  EXPECT_THAT(device_memory(next, sim), Each(0));
}

}  // namespace
}  // namespace unimem::testing
