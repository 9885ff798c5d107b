#pragma once

#include <unimem/device/duration.hpp>

#include "device/conformance_fixture.hpp"
#include "device/gate.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

namespace unimem {

/// Work on `memory` that the driver times: a fill, an upload and a kernel over all of it.
inline std::vector<Event> timed_work(Queue& queue, DeviceMemory memory, Bytes const& host) {
  auto const program = queue.device().compile(add_kernel());
  std::array const arguments{memory_argument(memory), scalar_argument(std::uint32_t{1})};
  return {queue.fill(memory, repeated(4, 1)), queue.upload(memory, host.data(), memory.bytes),
          queue.run(program, Range{memory.bytes / 4}, arguments)};
}

inline bool tells_durations(Device const& device) {
  return device.info().runs_host_form || device.id().find("profile=1") != std::string_view::npos;
}

/// Whether the driver keeps times and tells none that mean anything (Rusticl: one nanosecond, whatever it was).
inline bool has_no_clock(Device const& device) {
  return device.info().name.find("llvmpipe") != std::string::npos;
}

/// What holds where durations are kept.
inline void expect_durations(Device& device) {
  using namespace std::chrono_literals;
  using Clock = std::chrono::steady_clock;
  Allocated const piece{device, 1 << 20};
  auto const host = noise(piece.memory().bytes, 1);
  auto queue = device.create_queue();
  for (auto const event : timed_work(queue, piece.memory(), host)) {
    event.wait();
    EXPECT_EQ(duration(event), std::nullopt) << "nobody had asked";
  }
  keep_durations(queue);
  keep_durations(queue);
  if (has_no_clock(device)) {
    for (auto const event : timed_work(queue, piece.memory(), host)) {
      event.wait();
      EXPECT_EQ(duration(event), std::nullopt) << "rather than what is not so";
    }
    return;
  }
  auto const begin = Clock::now();
  auto const events = timed_work(queue, piece.memory(), host);
  queue.synchronize();
  auto const all = Clock::now() - begin;
  std::chrono::nanoseconds sum{0};
  for (auto const event : events) {
    ASSERT_NE(duration(event), std::nullopt) << event.ticket();
    EXPECT_GT(*duration(event), 0ns);
    EXPECT_EQ(duration(event), duration(event));
    sum += *duration(event);
  }
  EXPECT_LE(sum, all) << "of one queue, one after the other";

  if (!works_in_the_submitting_thread(device)) {
    std::optional<Gate> gate{queue};
    auto const held = queue.fill(piece.memory(), repeated(4, 1));
    EXPECT_EQ(duration(held), std::nullopt) << "it has not ended";
    std::this_thread::sleep_for(100ms);
    auto const released = Clock::now();
    gate.reset();
    held.wait();
    ASSERT_NE(duration(held), std::nullopt);
    EXPECT_LE(*duration(held), Clock::now() - released) << "what it waited for is not its own";
  }

  auto const program = device.compile(add_kernel());
  std::vector const arguments{memory_argument(piece.memory()), scalar_argument(std::uint32_t{1})};
  ProgramRun const once{program, Range{piece.memory().bytes / 4}, arguments};
  auto const captured = queue.run(queue.capture({once, once, once}));
  captured.wait();
  EXPECT_NE(duration(captured), std::nullopt);

  // The oldest make room: each of the latest 1,024 is known.
  auto const oldest = queue.fill(piece.window(0, 4), repeated(4, 1));
  oldest.wait();
  ASSERT_NE(duration(oldest), std::nullopt);
  std::vector<Event> later;
  for (int i = 0; i < 1024; ++i) later.push_back(queue.fill(piece.window(0, 4), repeated(4, 1)));
  queue.synchronize();
  EXPECT_EQ(duration(oldest), std::nullopt);
  auto const known = std::ranges::count_if(later, [](Event event) { return duration(event).has_value(); });
  // Oclgrind's clock is coarse, and takes some for nothing.
  if (works_in_the_submitting_thread(device)) {
    EXPECT_GT(known, 0);
  } else {
    EXPECT_EQ(known, 1024);
  }
}

TEST_P(DeviceConformance, DurationsAreKeptOrRefused) {
  EXPECT_EQ(duration(Event{}), std::nullopt);
  bool refused = false;
  try {
    auto queue = device().create_queue();
    keep_durations(queue);
  } catch (UnsupportedOperation const& error) {
    refused = true;
    EXPECT_THAT(error.what(), ::testing::HasSubstr("profile=1"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr(std::string(device().id())));
  }
  EXPECT_NE(refused, tells_durations(device()));
  if (refused) return;
  expect_durations(device());
  if (!GetParam().fail) return;
  auto queue = device().create_queue();
  keep_durations(queue);
  auto const failed = GetParam().fail(queue);
  EXPECT_NE(failed.wait_for_error(), nullptr);
  EXPECT_EQ(duration(failed), std::nullopt);
}

}  // namespace unimem
