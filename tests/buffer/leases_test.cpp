#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "device/gate.hpp"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

// Read leases for one queue after the other: all but the first are taken without the buffer's lock, and mean the same.

namespace unimem::testing {
namespace {

using ::testing::Each;

class Leases : public BufferTest {
 protected:
  /// The lease that follows one on the same queue.
  [[nodiscard]] static DeviceSpan<const std::uint32_t> repeated(UnifiedBuffer<std::uint32_t>& buffer, Queue& on) {
    static_cast<void>(buffer.device_view(on));
    return buffer.device_view(on);
  }

  [[nodiscard]] static std::vector<std::uint32_t> values(DeviceSpan<const std::uint32_t> const& lease) {
    return {lease.data(), lease.data() + lease.size()};
  }

  [[nodiscard]] std::size_t active() { return manager.pool(sim, Location::device).statistics().active_bytes; }

  Queue queue = sim.create_queue();
  Queue second = sim.create_queue();
};

TEST_F(Leases, TakenRepeatedlyShareTheSameMemory) {
  auto buffer = synchronized();
  auto const before = sim.transfers();
  auto const first = buffer.device_view(queue);
  for (int i = 0; i < 5; ++i) {
    auto const again = buffer.device_view(queue);
    EXPECT_EQ(again.native(), first.native());
    EXPECT_EQ(values(again), counting(100));
    auto const part = std::as_const(buffer).slice(10, 20).device_view(queue);
    EXPECT_EQ(part.data(), first.data() + 10);
    EXPECT_EQ(part.size(), 20U);
  }
  EXPECT_EQ(buffer.device_view(second).data(), first.data());
  EXPECT_EQ(buffer.device_view(sim).data(), first.data());
  EXPECT_EQ(moved(sim.transfers()), moved(before));
  buffer.core().validate();
}

TEST_F(Leases, AreOfWhatWasWrittenLast) {
  auto buffer = synchronized();
  for (std::uint32_t round = 1; round <= 3; ++round) {
    EXPECT_EQ(values(repeated(buffer, queue)), counting(100, round - 1));
    buffer.copy_from(counting(100, round));
    auto const lease = buffer.device_view(queue);
    queue.synchronize();
    EXPECT_EQ(values(lease), counting(100, round));
  }
  static_cast<void>(repeated(buffer, queue));
  set(second, buffer.slice(0, 50), 7);
  auto const lease = buffer.device_view(queue);
  queue.synchronize();
  EXPECT_EQ(values(lease)[49], 7U) << "a write on another queue that had not begun";
  EXPECT_EQ(values(lease)[50], 53U);
}

TEST_F(Leases, AWriterWaitsForWorkSubmittedUnderOne) {
  auto buffer = synchronized();
  UnifiedBuffer<std::uint32_t> target(100, on_sim());
  auto const aside = target.device_overwrite(sim);
  {
    Gate const gate{queue};
    {
      auto const lease = repeated(buffer, queue);
      queue.copy(aside.native(), lease.native(), 400);
    }
    set(second, buffer.slice(0), 9);
  }
  sim.synchronize();
  EXPECT_EQ(std::vector(aside.data(), aside.data() + 100), counting(100)) << "it read before it was overwritten";
  EXPECT_THAT(buffer.to_vector(), Each(9U));
}

TEST_F(Leases, KeepTheirMemoryWhereItIs) {
  auto buffer = synchronized();
  auto lease = repeated(buffer, queue);
  EXPECT_THROW(buffer.release_device(sim), InvalidArgument);
  EXPECT_THROW(buffer.resize(200), InvalidArgument);
  EXPECT_EQ(buffer.core().evict({&sim, Location::device}, {}), 0U);
  auto moved_on = std::move(lease);
  EXPECT_EQ(buffer.core().evict({&sim, Location::device}, {}), 0U);
  EXPECT_EQ(values(moved_on), counting(100));
  moved_on.end();
  moved_on.end();
  EXPECT_NE(buffer.core().evict({&sim, Location::device}, {}), 0U);
  EXPECT_FALSE(buffer.valid_on(sim));
  EXPECT_EQ(active(), 0U);
  buffer.sync_to_device();
  EXPECT_EQ(values(repeated(buffer, queue)), counting(100));
  buffer.resize(50);
  buffer.sync_to_device();
  EXPECT_EQ(values(repeated(buffer, queue)), counting(50));
  buffer.core().validate();
}

TEST_F(Leases, OutliveWhatTheirBufferHasLetGo) {
  auto buffer = synchronized();
  auto first = repeated(buffer, queue), also = buffer.device_view(queue);
  buffer.free();
  EXPECT_NE(active(), 0U);
  EXPECT_EQ(values(first), counting(100));
  first.end();
  EXPECT_EQ(values(also), counting(100));
  buffer.copy_from(counting(100, 5));
  buffer.sync_to_device();
  EXPECT_EQ(values(repeated(buffer, queue)), counting(100, 5)) << "of other memory";
  auto const with_both = active();
  also.end();
  EXPECT_LT(active(), with_both) << "it went with its last lease";
  EXPECT_EQ(values(repeated(buffer, queue)), counting(100, 5));
}

TEST_F(Leases, OutliveTheirBuffer) {
  DeviceSpan<const std::uint32_t> lease, another;
  {
    auto buffer = synchronized();
    lease = buffer.device_view(queue);
    another = buffer.device_view(queue);
  }
  EXPECT_EQ(values(lease), counting(100));
  lease.end();
  EXPECT_EQ(values(another), counting(100));
  EXPECT_NE(active(), 0U);
  another.end();
  EXPECT_EQ(active(), 0U);
}

TEST_F(Leases, ComeAndGoWhileOtherThreadsEvict) {
  constexpr std::size_t count = 1000;
  auto& small = make_sim({.memory_bytes = std::size_t{6} << 10});
  auto options = on_sim("wanted");
  options.device = &small;
  UnifiedBuffer<std::uint32_t> buffer(count, options), intruder(count, options);
  buffer.copy_from(counting(count));
  intruder.fill(3);
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0}, taken{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      auto own = small.create_queue();
      while (!done) {
        try {
          auto const lease = buffer.device_view(own);
          own.synchronize();
          ++taken;
          if (lease.data()[0] != 0 || lease.data()[count - 1] != count - 1) ++wrong;
        } catch (OutOfMemory const&) {  // the other has it leased
        }
        std::this_thread::yield();
      }
    });
  }
  int evicted = 0;
  auto const deadline = std::chrono::steady_clock::now() + std::chrono::seconds{60};
  while ((evicted < 1000 || taken < 10000) && std::chrono::steady_clock::now() < deadline) {
    try {
      auto const lease = intruder.device_view(small);
      ++evicted;
      if (lease.data()[0] != 3 || lease.data()[count - 1] != 3) ++wrong;
    } catch (OutOfMemory const&) {  // a reader has it leased
    }
    std::this_thread::yield();
  }
  done = true;
  for (auto& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(evicted, 1000);
  EXPECT_GE(taken, 10000);
  EXPECT_EQ(buffer.to_vector(), counting(count));
  buffer.core().validate();
}

}  // namespace
}  // namespace unimem::testing
