#include <unimem/buffer/double_buffer.hpp>
#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "device/gate.hpp"
#include "forked_child.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace unimem::testing {
namespace {

using ::testing::Each;

using Words = std::vector<std::uint32_t>;
constexpr std::size_t count = 4096;

/// What every element is, or nothing if they differ.
std::optional<std::uint32_t> uniform(std::span<const std::uint32_t> words) {
  bool const same = std::ranges::all_of(words, [&](auto word) { return word == words.front(); });
  return same ? std::optional{words.front()} : std::nullopt;
}

/// Frames of one number each: a half-written one would hold two.
class DoubleBuffers : public BufferTest {
 protected:
  [[nodiscard]] BufferOptions on(Device& home) {
    auto options = on_sim();
    options.device = &home;
    return options;
  }

  /// A thread that publishes `frames` frames, each as `fill(back, number)` makes it, and closes.
  template <class Fill>
  static std::jthread producer(DoubleBuffer<std::uint32_t>& buffers, std::uint32_t frames, Fill fill) {
    return std::jthread([&buffers, frames, fill] {
      for (std::uint32_t frame = 1; frame <= frames; ++frame) {
        auto* const back = buffers.back();
        ASSERT_NE(back, nullptr);
        fill(*back, frame);
        buffers.publish();
      }
      buffers.close();
    });
  }

  /// Writes down in `log`, on the device, what every element of a frame is, or 0 if they differ.
  static Event note(Queue& queue, UnifiedBuffer<std::uint32_t> const& frame, UnifiedBuffer<std::uint32_t>& log,
                    std::size_t at) {
    std::array const operands{Operand{&frame.core(), {0, frame.size_bytes()}, Intent::read},
                              Operand{&log.core(), {at * 4, at * 4 + 4}, Intent::write}};
    return run(queue, operands, [](std::span<const HostArgument> arguments) {
      auto const seen = uniform({static_cast<std::uint32_t const*>(arguments[0].data), count});
      *static_cast<std::uint32_t*>(arguments[1].data) = seen.value_or(0);
    });
  }

  Device& slow = make_sim({.memory_bytes = std::size_t{16} << 20, .latency = std::chrono::microseconds(200)});
};

TEST_F(DoubleBuffers, EveryFrameIsSeenOnceAndInOrder) {
  constexpr std::uint32_t frames = 3000;
  DoubleBuffer<std::uint32_t> buffers(count, on(sim));
  auto const producing = producer(
      buffers, frames, [](auto& back, std::uint32_t frame) { std::ranges::fill(back.host_overwrite(), frame); });
  std::uint32_t expected = 1;
  while (auto const* front = buffers.front()) {
    ASSERT_EQ(uniform(front->host_view()), expected) << "half-written, lost or out of order";
    EXPECT_EQ(buffers.front(), front) << "the same until it is released";
    ++expected;
    buffers.release();
  }
  EXPECT_EQ(expected, frames + 1);
}

TEST_F(DoubleBuffers, ADeviceProducerHandsOverPendingFrames) {
  constexpr std::uint32_t frames = 200;
  DoubleBuffer<std::uint32_t> buffers(count, on(slow));
  auto queue = slow.create_queue();
  auto const producing =
      producer(buffers, frames, [&](auto& back, std::uint32_t frame) { set(queue, back.slice(0), frame); });
  std::uint32_t expected = 1;
  while (auto const* front = buffers.front()) {
    // By turns from the host, and from the device's own memory.
    auto const seen = expected % 2 == 0 ? front->to_vector() : [&] {
      auto const lease = front->device_view(slow);
      return Words(lease.data(), lease.data() + lease.size());
    }();
    ASSERT_EQ(uniform(seen), expected);
    ++expected;
    buffers.release();
  }
  EXPECT_EQ(expected, frames + 1);
}

TEST_F(DoubleBuffers, BothSidesMayRunAheadOfTheirDevices) {
  constexpr std::uint32_t frames = 300;
  DoubleBuffer<std::uint32_t> buffers(count, on(slow));
  UnifiedBuffer<std::uint32_t> log(frames, on(slow));
  auto filling = slow.create_queue();
  auto const producing = producer(buffers, frames, [&](auto& back, std::uint32_t frame) {
    // By turns from the host, whose bytes are on their way when the next frame is written, and on the device.
    if (frame % 3 == 0) {
      std::ranges::fill(back.host_overwrite(), frame);
    } else {
      set(filling, back.slice(0), frame);
    }
  });
  auto queue = slow.create_queue();
  std::size_t seen = 0;
  while (auto const* front = buffers.front()) {
    note(queue, *front, log, seen++);
    buffers.release();
  }
  EXPECT_EQ(seen, frames);
  EXPECT_EQ(log.to_vector(), counting(frames, 1));
}

TEST_F(DoubleBuffers, FillingAFrameGoesBehindItsPendingUse) {
  DoubleBuffer<std::uint32_t> buffers(count, on(sim));
  UnifiedBuffer<std::uint32_t> log(4, on(sim));
  auto filling = sim.create_queue(), reading = sim.create_queue();
  std::optional<Gate> gate{reading};
  Event last;
  for (std::uint32_t frame = 1; frame <= 4; ++frame) {
    auto* const back = buffers.back();
    ASSERT_NE(back, nullptr);
    last = set(filling, back->slice(0), frame);
    buffers.publish();
    auto const* const front = buffers.front();
    ASSERT_EQ(front, back);
    EXPECT_FALSE(note(reading, *front, log, frame - 1).ready());
    buffers.release();
    if (frame <= 2) last.wait();
    EXPECT_EQ(last.ready(), frame <= 2) << "what is still to be read is not overwritten";
  }
  gate.reset();
  EXPECT_EQ(log.to_vector(), counting(4, 1));
}

TEST_F(DoubleBuffers, OnlyWhatIsWrittenTravels) {
  DoubleBuffer<std::uint32_t> buffers(count, on(sim));
  for (std::uint32_t frame = 1; frame <= 10; ++frame) {
    std::ranges::fill(buffers.back()->host_overwrite(), frame);
    buffers.publish();
    auto const* const front = buffers.front();
    auto const lease = front->device_view(sim);
    EXPECT_THAT(Words(lease.data(), lease.data() + lease.size()), Each(frame));
    EXPECT_THAT(front->to_vector(), Each(frame));
    EXPECT_EQ(moved(front->statistics()), (Moved{(frame + 1) / 2 * count * 4, (frame + 1) / 2, 0, 0}));
    buffers.release();
  }
  EXPECT_EQ(moved(sim.transfers()), (Moved{10 * count * 4, 10, 0, 0}));
}

TEST_F(DoubleBuffers, OneThreadComputesEachStepFromTheLast) {
  DoubleBuffer<std::uint32_t> steps(count, on(sim));
  auto queue = sim.create_queue();
  steps.back()->copy_from(counting(count));
  steps.swap();
  for (int step = 0; step < 100; ++step) {
    auto* const next = steps.back();
    auto const* const last = steps.front();
    ASSERT_NE(next, last);
    std::array const operands{Operand{&last->core(), {0, count * 4}, Intent::read},
                              Operand{&next->core(), {0, count * 4}, Intent::write}};
    run(queue, operands, [](std::span<const HostArgument> arguments) {
      auto const* const from = static_cast<std::uint32_t const*>(arguments[0].data);
      std::transform(from, from + count, static_cast<std::uint32_t*>(arguments[1].data),
                     [](std::uint32_t word) { return word + 1; });
    });
    steps.swap();
  }
  EXPECT_EQ(steps.front()->to_vector(), counting(count, 100));
  EXPECT_EQ(moved(sim.transfers()), (Moved{count * 4, 1, count * 4, 1})) << "up at first, down in the end";
  for (int i = 0; i < 5; ++i) {  // fronts that nobody looks at
    static_cast<void>(steps.back());
    steps.swap();
  }
  EXPECT_NE(steps.try_back(), nullptr);
}

TEST_F(DoubleBuffers, ThereAreTwoAndNoMore) {
  DoubleBuffer<std::uint32_t> buffers(count, on(sim));
  EXPECT_EQ(buffers.try_front(), nullptr) << "nothing is published";
  auto* const first = buffers.back();
  EXPECT_EQ(buffers.try_back(), first) << "the same until it is published";
  buffers.publish();
  auto* const second = buffers.try_back();
  EXPECT_NE(second, first);
  buffers.publish();
  EXPECT_EQ(buffers.try_back(), nullptr) << "neither has been released";
  EXPECT_EQ(buffers.try_front(), first);
  EXPECT_EQ(buffers.try_back(), nullptr) << "the one is being read, the other waits for it";
  buffers.release();
  EXPECT_EQ(buffers.try_front(), second);
  EXPECT_EQ(buffers.try_back(), first);
}

TEST_F(DoubleBuffers, ClosingEndsBothSidesWhoeverCloses) {
  {
    DoubleBuffer<std::uint32_t> buffers(count, on(sim));
    std::ranges::fill(buffers.back()->host_overwrite(), 5U);
    buffers.publish();
    EXPECT_FALSE(buffers.closed());
    buffers.close();
    buffers.close();
    EXPECT_TRUE(buffers.closed());
    EXPECT_EQ(buffers.back(), nullptr);
    auto const* const front = buffers.front();
    ASSERT_NE(front, nullptr) << "what was published before is still seen";
    EXPECT_THAT(front->host_view(), Each(5U));
    buffers.release();
    EXPECT_EQ(buffers.front(), nullptr);
  }
  DoubleBuffer<std::uint32_t> buffers(count, on(sim));
  std::uint32_t filled = 0;
  std::jthread producer([&] {
    while (auto* back = buffers.back()) {
      std::ranges::fill(back->host_overwrite(), ++filled);
      buffers.publish();
    }
  });
  ASSERT_NE(buffers.front(), nullptr);
  buffers.close();
  producer.join();  // it may have waited for a release that never came, or published what nobody will see
  EXPECT_GE(filled, 1U);

  DoubleBuffer<std::uint32_t> silent(count, on(sim));
  std::jthread closer([&] { silent.close(); });
  EXPECT_EQ(silent.front(), nullptr) << "who waits for what never comes is woken";
}

TEST_F(DoubleBuffers, CallsOutOfTurnAreRefused) {
  DoubleBuffer<std::uint32_t> buffers(count, on(sim));
  EXPECT_THROW(buffers.publish(), InvalidArgument);
  EXPECT_THROW(buffers.release(), InvalidArgument);
  EXPECT_THROW(buffers.swap(), InvalidArgument);
  auto* const back = buffers.back();
  EXPECT_THROW(buffers.release(), InvalidArgument);
  buffers.publish();
  EXPECT_THROW(buffers.publish(), InvalidArgument);
  EXPECT_THROW(buffers.release(), InvalidArgument) << "nobody has looked at it";
  EXPECT_EQ(buffers.front(), back);
  buffers.release();
  EXPECT_THROW(buffers.release(), InvalidArgument);
  EXPECT_EQ(buffers.try_front(), nullptr);
}

TEST_F(DoubleBuffers, AFailedFrameDoesNotStopLaterFrames) {
  DoubleBuffer<std::uint32_t> buffers(count, on(sim));
  auto queue = sim.create_queue();
  std::string seen;
  for (std::uint32_t frame = 1; frame <= 5; ++frame) {
    set_sim_faults(sim, {.fail_run = frame == 3 ? 1U : 0U});
    set(queue, buffers.back()->slice(0), frame);
    buffers.publish();
    try {
      seen += std::to_string(uniform(buffers.front()->to_vector()).value_or(0));
    } catch (DeviceError const&) {
      seen += "x";
    }
    buffers.release();
  }
  EXPECT_EQ(seen, "12x45");
}

TEST_F(DoubleBuffers, MayGoWhileWorkOnThemIsPending) {
  auto queue = sim.create_queue();
  UnifiedBuffer<std::uint32_t> log(1, on(sim));
  std::optional<Gate> gate{queue};
  {
    DoubleBuffer<std::uint32_t> buffers(count, on(sim));
    set(queue, buffers.back()->slice(0), 7);
    buffers.publish();
    note(queue, *buffers.front(), log, 0);
  }
  gate.reset();
  EXPECT_EQ(log.at(0), 7U);
  log.free();
  sim.synchronize();
  EXPECT_EQ(manager.statistics().active_bytes, 0U);
}

TEST_F(DoubleBuffers, AreRefusedToAForkedChild) {
  auto buffers = std::make_unique<DoubleBuffer<std::uint32_t>>(count, on_sim());
  std::jthread const consumer{[&] { EXPECT_EQ(buffers->front(), nullptr); }};
  EXPECT_EQ(in_child([&] {
              EXPECT_HERE(is_refused([&] { std::ignore = buffers->back(); }));
              EXPECT_HERE(is_refused([&] { std::ignore = buffers->try_back(); }));
              EXPECT_HERE(is_refused([&] { std::ignore = buffers->try_front(); }));
              EXPECT_HERE(is_refused([&] { buffers->publish(); }));
              EXPECT_HERE(is_refused([&] { buffers->release(); }));
              EXPECT_HERE(is_refused([&] { buffers->swap(); }));
              buffers->close();
              EXPECT_HERE(buffers->closed());
              buffers.reset();  // though a thread waits in it
              return 0;
            }),
            0);
  EXPECT_FALSE(buffers->closed());
  buffers->close();
}

}  // namespace
}  // namespace unimem::testing
