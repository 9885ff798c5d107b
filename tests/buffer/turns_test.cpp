#include <unimem/core/error.hpp>
#include <unimem/pool/upstream.hpp>

#include "buffer/buffer_fixture.hpp"
#include "device/page_watch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

// Threads that wait for each other's device memory, step by step. See oversubscription_test.cpp for many at once.

namespace unimem::testing {
namespace {

constexpr std::size_t size = std::size_t{128} << 10;
constexpr std::size_t elements = size / sizeof(std::uint32_t);

/// The device's own memory, which is given when the test says so.
class GatedMemory final : public Upstream {
 public:
  [[nodiscard]] DeviceMemory allocate(std::size_t bytes, Location location, Device& device) override {
    if (location == Location::device) {
      asked.set_value();
      open.get_future().wait();
    }
    return device.allocate(bytes, location);
  }
  void release(DeviceMemory memory, Location location, Device& device) noexcept override {
    device.release(memory, location);
  }

  std::promise<void> asked, open;
};

class InTurns : public BufferTest {};

/// What a waiting thread had taken before it let go of its operands is nobody's any more: the thread whose turn it is
/// must neither count on it nor wait for it.
TEST_F(InTurns, MemoryReleasedByWaitingThreadsIsNotAwaited) {
  manager.set_limit(sim, 10 * size);
  auto const gated = std::make_shared<GatedMemory>();
  ManagerOptions with_gate;
  with_gate.pools.upstream = gated;
  MemoryManager other{with_gate};
  auto beside = on_sim("beside");
  beside.manager = &other;
  UnifiedBuffer<std::uint32_t> leased(6 * elements, on_sim("leased")), first(elements, on_sim("first")),
      second(elements, beside), third(elements, on_sim("third")), large(5 * elements, on_sim("large"));
  for (auto* const buffer : {&leased, &first, &second, &third, &large}) buffer->fill(1);
  auto const lease = leased.device_view(sim);

  // Takes the first, and has the third to come when another thread's turn begins.
  std::thread waiting{[&] {
    std::array<Operand, 3> const operands{Operand{&first.core(), {0, size}, Intent::read_write},
                                          Operand{&second.core(), {0, size}, Intent::read},
                                          Operand{&third.core(), {0, size}, Intent::read}};
    run(sim.default_queue(), operands, [](std::span<const HostArgument> arguments) {
      for (auto& one : std::span{static_cast<std::uint32_t*>(arguments[0].data), elements}) ++one;
    }).wait();
  }};
  gated->asked.get_future().wait();
  auto const began = std::chrono::steady_clock::now();
  auto refused = std::async(std::launch::async, [&] {
    Operand const operand{&large.core(), {0, 5 * size}, Intent::read};
    try {
      run(sim.default_queue(), {&operand, 1}, [](auto) {});
    } catch (OutOfMemory const& error) {
      return error.facts();
    }
    return OutOfMemory::Facts{};
  });
  while (manager.statistics().waits < 2) std::this_thread::yield();  // it has its turn, and has tried in it
  gated->open.set_value();
  auto const facts = refused.get();
  waiting.join();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds{8});
  EXPECT_EQ(facts.requested, 5 * size);
  EXPECT_EQ(facts.leased, 6 * size);
  EXPECT_THAT(facts.reason, ::testing::Not(::testing::HasSubstr("ten seconds")));
  EXPECT_THAT(first.to_vector(), ::testing::Each(2U));
}

/// A state that pages tell is found out with the buffer's lock.
TEST_F(InTurns, StateQueriesDoNotStarveAnEviction) {
  if (auto const reason = detail::PageWatch::reason_unavailable(); !reason.empty()) GTEST_SKIP() << reason;
  constexpr std::size_t rounds = 3;
  auto options = on_sim("asked");
  options.tracking = Tracking::pages;
  UnifiedBuffer<std::uint32_t> buffer(elements, options);
  buffer.fill(0);
  std::size_t evicted = 0;
  {
    auto const ask = [&](std::stop_token const& stop) {
      while (!stop.stop_requested()) static_cast<void>(buffer.state());
    };
    std::array<std::jthread, 4> const asking{std::jthread{ask}, std::jthread{ask}, std::jthread{ask},
                                             std::jthread{ask}};
    Operand const operand{&buffer.core(), {0, size}, Intent::read_write};
    for (auto const end = std::chrono::steady_clock::now() + std::chrono::seconds{30}; evicted < rounds;) {
      run(sim.default_queue(), {&operand, 1}, [](std::span<const HostArgument> arguments) {
        ++*static_cast<std::uint32_t*>(arguments[0].data);
      }).wait();
      while (buffer.core().evict({&sim, Location::device}, {}) == 0 && std::chrono::steady_clock::now() < end) {
        std::this_thread::yield();
      }
      if (std::chrono::steady_clock::now() >= end) break;
      ++evicted;
    }
  }
  EXPECT_EQ(evicted, rounds);
}

/// A block may be larger than its buffer: what is in the way of another operation comes back as a whole.
TEST_F(InTurns, ABusyBuffersRoundingIsWaitedFor) {
  manager.set_limit(sim, 2 * size);
  UnifiedBuffer<std::byte> small(8000, on_sim("small"));
  UnifiedBuffer<std::uint32_t> first(elements, on_sim("first")), second(elements, on_sim("second"));
  small.fill(std::byte{1});
  for (auto* const buffer : {&first, &second}) buffer->fill(1);
  small.sync_to_device(sim);  // so that the operation on it takes no memory

  std::promise<void> begun, end;
  std::thread busy{[&] {
    Operand const operand{&small.core(), {0, 8000}, Intent::read};
    use_on_device(sim.default_queue(), {&operand, 1}, [&](auto, auto) {
      begun.set_value();
      end.get_future().wait();
      return sim.default_queue().record();
    });
  }};
  begun.get_future().wait();
  auto both = std::async(std::launch::async, [&] {
    std::array<Operand, 2> const operands{Operand{&first.core(), {0, size}, Intent::read},
                                          Operand{&second.core(), {0, size}, Intent::read}};
    run(sim.default_queue(), operands, [](auto) {}).wait();
  });
  while (manager.statistics().waits == 0 &&
         both.wait_for(std::chrono::milliseconds{1}) == std::future_status::timeout) {
  }
  end.set_value();
  busy.join();
  both.get();
  EXPECT_TRUE(first.valid_on(sim) && second.valid_on(sim));
  EXPECT_EQ(manager.statistics().refusals, 0U);
  EXPECT_FALSE(small.valid_on(sim));
  EXPECT_THAT(small.to_vector(), ::testing::Each(std::byte{1}));
}

}  // namespace
}  // namespace unimem::testing
