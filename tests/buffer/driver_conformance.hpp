#pragma once

#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"

#include <algorithm>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

namespace unimem::testing {

/// A device behind a driver.
struct DriverCase {
  std::string name;    ///< letters, digits and underscores
  std::string device;  ///< as `device()` takes it, without options
  bool has_addresses = true;
};

inline std::ostream& operator<<(std::ostream& out, DriverCase const& device) {
  return out << device.name;
}

/// The last argument of INSTANTIATE_TEST_SUITE_P.
inline std::string driver_case_name(::testing::TestParamInfo<DriverCase> const& info) {
  return info.param.name;
}

/// What buffers promise, on drivers whose memory the host does not see: everything goes through their queues.
class OnADriver : public BufferTest, public ::testing::WithParamInterface<DriverCase> {
 protected:
  [[nodiscard]] BufferOptions on_it() {
    auto options = on_sim();
    options.device = &home;
    return options;
  }
  /// The same hardware with options.
  [[nodiscard]] static Device& with(std::string const& options) { return device(GetParam().device + "," + options); }

  /// Writes to device memory as a user's own code would.
  static void poke(Queue& queue, DeviceMemory memory, std::size_t index, std::uint32_t value) {
    queue.upload(memory.window(index * 4, 4), &value, 4).wait();
  }

  Device& home = device(GetParam().device);
};

TEST_P(OnADriver, WritesReachTheOtherSideInOneCopy) {
  UnifiedBuffer<std::uint32_t> buffer(1000, on_it());
  buffer.copy_from(counting(1000));
  EXPECT_EQ(device_bytes(buffer, home), counting(1000));
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  {
    auto const lease = buffer.device();
    EXPECT_EQ(lease.data() != nullptr, GetParam().has_addresses);
    EXPECT_NE(lease.native().object, 0U);
    poke(home.default_queue(), lease.native(), 7, 70);
  }
  EXPECT_EQ(buffer.state(), BufferState::device_dirty);
  auto expected = counting(1000);
  expected[7] = 70;
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{4000, 1, 4000, 1}));
}

TEST_P(OnADriver, AnEditMovesOnlyItself) {
  UnifiedBuffer<std::uint32_t> buffer(100'000, on_it());
  buffer.copy_from(counting(100'000));
  buffer.sync_to_device();
  std::ranges::fill(buffer.host(5'000, 100), 1U);
  buffer.sync_to_device();
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400'400, 2, 0, 0}));
  auto expected = counting(100'000);
  std::fill_n(expected.begin() + 5'000, 100, 1U);
  EXPECT_EQ(device_bytes(buffer, home), expected);
}

TEST_P(OnADriver, ScatteredEditsMoveThemselvesAlone) {
  constexpr std::size_t words = 1024, stride = 3000, pieces = 100, count = pieces * stride;
  for (bool const pinned : {false, true}) {
    for (bool const even : {false, true}) {
      SCOPED_TRACE(::testing::Message() << (pinned ? "pinned" : "pageable") << (even ? ", even" : ", uneven"));
      auto options = on_it();
      options.pinned = pinned;
      UnifiedBuffer<std::uint32_t> buffer(count, options);
      auto expected = counting(count);
      {
        auto const lease = buffer.device_overwrite();
        home.default_queue().upload(lease.native(), expected.data(), count * 4).wait();
      }
      for (std::uint32_t round = 1; round <= 3; ++round) {
        // What lies between is newer on the device, so that nothing of it may be copied along.
        {
          auto const lease = buffer.device();
        }
        auto const before = buffer.statistics();
        for (std::size_t i = 0; i < pieces; ++i) {
          auto const at = i * stride + (even ? 0 : i % 7);
          std::ranges::fill(buffer.host_overwrite(at, words), round * 1000 + static_cast<std::uint32_t>(i));
          std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(at), words,
                      round * 1000 + static_cast<std::uint32_t>(i));
        }
        buffer.sync_to_device();
        auto const after = buffer.statistics();
        EXPECT_EQ(after.host_to_device_copies - before.host_to_device_copies, pieces);
        EXPECT_EQ(after.host_to_device_bytes - before.host_to_device_bytes, pieces * words * 4);
        EXPECT_EQ(device_bytes(buffer, home), expected);
      }
      EXPECT_EQ(buffer.to_vector(), expected);
      buffer.core().validate();
    }
  }
}

/// What of the gaps goes along depends on what a row costs there.
TEST_P(OnADriver, ColumnsArriveOnEitherSide) {
  constexpr std::size_t rows = 300, pitch = 3000, count = rows * pitch;
  for (bool const pinned : {false, true}) {
    SCOPED_TRACE(pinned ? "pinned" : "pageable");
    auto options = on_it();
    options.pinned = pinned;
    UnifiedBuffer<std::uint32_t> buffer(count, options);
    auto expected = counting(count);
    buffer.copy_from(expected);
    buffer.sync_to_device();
    for (std::size_t row = 0; row < rows; ++row) {
      for (auto const column : {5U, 17U}) {
        buffer.host(row * pitch + column, 1)[0] = expected[row * pitch + column] = 1'000'000U + column;
      }
    }
    buffer.sync_to_device();
    auto const sent = buffer.statistics().host_to_device_bytes - count * 4;
    EXPECT_GE(sent, rows * 2 * 4);
    EXPECT_LE(sent, ((rows - 1) * pitch + 13) * 4) << "what lies between the first and the last";
    EXPECT_EQ(device_bytes(buffer, home), expected);
    for (std::size_t row = 0; row < rows; ++row) {
      auto window = buffer.slice(row * pitch + 40, 1);
      auto const lease = window.device();
      poke(home.default_queue(), lease.native(), 0, 9);
      expected[row * pitch + 40] = 9;
    }
    EXPECT_EQ(buffer.to_vector(), expected);
    EXPECT_EQ(device_bytes(buffer, home), expected);
    buffer.core().validate();
  }
}

TEST_P(OnADriver, ScatteredEditsOnTheDeviceComeHome) {
  constexpr std::size_t stride = 3000, pieces = 100, count = pieces * stride;
  for (bool const pinned : {false, true}) {
    SCOPED_TRACE(pinned ? "pinned" : "pageable");
    auto options = on_it();
    options.pinned = pinned;
    UnifiedBuffer<std::uint32_t> buffer(count, options);
    auto expected = counting(count);
    buffer.copy_from(expected);
    buffer.sync_to_device();
    // Between its own pieces the host has what the device must not bring.
    std::vector<std::uint32_t> const news(500, 7);
    for (std::size_t i = 0; i < pieces; ++i) {
      auto part = buffer.slice(i * stride + i % 7, news.size());
      {
        auto const lease = part.device_overwrite();
        home.default_queue().upload(lease.native(), news.data(), news.size() * 4).wait();
      }
      std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(i * stride + i % 7), news.size(), 7U);
      buffer.host_overwrite(i * stride + 1000, 1).front() = 9;
      expected[i * stride + 1000] = 9;
    }
    auto const before = buffer.statistics();
    EXPECT_EQ(buffer.to_vector(), expected);
    auto const after = buffer.statistics();
    EXPECT_EQ(after.device_to_host_copies - before.device_to_host_copies, pieces);
    EXPECT_EQ(after.device_to_host_bytes - before.device_to_host_bytes, pieces * news.size() * 4);
    EXPECT_EQ(device_bytes(buffer, home), expected);
  }
}

TEST_P(OnADriver, BlocksOfViewsAreCopiedWhereTheyAre) {
  UnifiedBuffer<std::uint32_t> from(50 * 40, on_it()), to(60 * 70, on_it());
  from.copy_from(counting(50 * 40));
  from.sync_to_device();
  from.release_host();
  to.fill(0);
  to.sync_to_device();
  auto target = to.view_2d(60, 70);
  auto& queue = home.default_queue();
  auto const tickets = queue.record().ticket();
  copy_block(from.view_2d(50, 40), {5, 3}, target, {11, 20}, {30, 33});
  EXPECT_EQ(queue.record().ticket() - tickets, 1U) << "one command";
  std::vector<std::uint32_t> expected(60 * 70, 0);
  for (std::size_t r = 0; r < 30; ++r) {
    for (std::size_t c = 0; c < 33; ++c)
      expected[(11 + r) * 70 + 20 + c] = static_cast<std::uint32_t>((5 + r) * 40 + 3 + c);
  }
  EXPECT_EQ(device_bytes(to, home), expected);
  EXPECT_EQ(to.to_vector(), expected);
  EXPECT_EQ(from.statistics().device_to_host_bytes, 0U);
  // Within one buffer: what does not overlap is one command, what does goes aside first, in any direction.
  copy_block(target, {11, 20}, target, {11, 60}, {30, 10});
  for (std::size_t r = 0; r < 30; ++r) {
    std::copy_n(expected.begin() + static_cast<std::ptrdiff_t>((11 + r) * 70 + 20), 10,
                expected.begin() + static_cast<std::ptrdiff_t>((11 + r) * 70 + 60));
  }
  copy_block(target, {12, 20}, target, {11, 20}, {10, 33});
  for (std::size_t r = 0; r < 10; ++r) {
    std::copy_n(expected.begin() + static_cast<std::ptrdiff_t>((12 + r) * 70 + 20), 33,
                expected.begin() + static_cast<std::ptrdiff_t>((11 + r) * 70 + 20));
  }
  to.release_host();  // so that the device alone has it
  auto const until_here = moved(to.statistics());
  for (auto const& [down, right] : {std::pair<std::size_t, std::size_t>{13, 20}, {14, 19}, {11, 25}, {12, 21}}) {
    auto const before = expected;
    copy_block(target, {12, 20}, target, {down, right}, {10, 33});
    for (std::size_t r = 0; r < 10; ++r) {
      std::copy_n(before.begin() + static_cast<std::ptrdiff_t>((12 + r) * 70 + 20), 33,
                  expected.begin() + static_cast<std::ptrdiff_t>((down + r) * 70 + right));
    }
  }
  auto volume = to.view_3d(10, 20, 21);
  auto const before = expected;
  copy_block(volume, {1, 2, 3}, volume, {2, 3, 4}, {7, 15, 16});
  for (std::size_t p = 0; p < 7; ++p) {
    for (std::size_t r = 0; r < 15; ++r) {
      std::copy_n(before.begin() + static_cast<std::ptrdiff_t>(((1 + p) * 20 + 2 + r) * 21 + 3), 16,
                  expected.begin() + static_cast<std::ptrdiff_t>(((2 + p) * 20 + 3 + r) * 21 + 4));
    }
  }
  EXPECT_EQ(device_bytes(to, home), expected);
  EXPECT_EQ(moved(to.statistics()), until_here) << "all of it on the device";
  EXPECT_EQ(to.to_vector(), expected);
  to.core().validate();
}

TEST_P(OnADriver, MixedSidesMerge) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_it());
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  {
    auto const lease = buffer.device_view();
    buffer.at(3) = 30;
    poke(home.default_queue(), lease.native(), 60, 600);
  }
  buffer.mark_device_dirty(60, 1);
  EXPECT_EQ(buffer.state(), BufferState::mixed);
  buffer.synchronize();
  auto expected = counting(100);
  expected[3] = 30;
  expected[60] = 600;
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, home), expected);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{404, 2, 4, 1}));
}

TEST_P(OnADriver, FillingACurrentDeviceMovesNothing) {
  UnifiedBuffer<double> buffer(1000, on_it());
  buffer.fill(1.0);
  buffer.sync_to_device();
  buffer.fill(2.5);
  EXPECT_EQ(buffer.statistics().host_to_device_copies, 1U);
  EXPECT_THAT(buffer.to_vector(), ::testing::Each(2.5));
}

TEST_P(OnADriver, BuffersTravelBetweenDifferentBackends) {
  UnifiedBuffer<std::uint32_t> buffer(1000, on_it());
  buffer.copy_from(counting(1000));
  {
    auto const lease = buffer.device();
    poke(home.default_queue(), lease.native(), 0, 9);
  }
  auto expected = counting(1000);
  expected[0] = 9;
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(buffer.statistics().device_to_device_bytes, 4000U);
  {
    auto const lease = buffer.device(sim);
    lease.data()[1] = 8;
  }
  expected[1] = 8;
  EXPECT_EQ(device_bytes(buffer, home), expected);
}

TEST_P(OnADriver, LargeCopiesAreStagedIfAsked) {
  auto& staging = with("staging=1MiB");
  auto const before = staging.transfers();
  EXPECT_EQ(staging.staging_threshold(), std::size_t{1} << 20);
  EXPECT_NE(home.staging_threshold(), staging.staging_threshold());
  auto options = on_it();
  options.device = &staging;
  constexpr std::size_t count = (std::size_t{9} << 20) / 4 + 3;  // two chunks and a tail
  UnifiedBuffer<std::uint32_t> buffer(count, options);
  buffer.copy_from(counting(count));
  buffer.sync_to_device();
  EXPECT_EQ(moved(staging.transfers().since(before)), (Moved{count * 4, 3, 0, 0}));
  auto expected = counting(count);
  for (auto const at : {std::size_t{0}, count / 2, count - 1}) {
    auto const lease = buffer.device();
    poke(staging.default_queue(), lease.native(), at, 7);
    expected[at] = 7;
  }
  EXPECT_TRUE(buffer.to_vector() == expected);
  EXPECT_TRUE(device_bytes(buffer, staging) == expected);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{count * 4, 1, count * 4, 1}));
  EXPECT_EQ(buffer.statistics().staged_copies, 2U);
  EXPECT_EQ(manager.pool(device("cpu"), Location::pinned).statistics().active_bytes, 0U);
}

TEST_P(OnADriver, AWorkingSetAboveTheLimitRuns) {
  manager.set_limit(home, std::size_t{1} << 20);
  std::vector<UnifiedBuffer<std::uint32_t>> buffers;
  for (std::uint32_t i = 0; i < 8; ++i) {
    buffers.emplace_back(60'000, on_it());
    buffers.back().fill(i);
  }
  for (int round = 0; round < 3; ++round) {
    for (auto& buffer : buffers) {
      auto const lease = buffer.device();
      std::uint32_t first = 0;
      home.default_queue().download(&first, lease.native(), 4).wait();
      poke(home.default_queue(), lease.native(), 0, first + 1);
      EXPECT_LE(manager.pool(home, Location::device).statistics().reserved_bytes, std::size_t{1} << 20);
    }
  }
  for (std::uint32_t i = 0; i < 8; ++i) {
    auto expected = std::vector<std::uint32_t>(60'000, i);
    expected[0] = i + 3;
    EXPECT_EQ(buffers[i].to_vector(), expected);
  }
  UnifiedBuffer<std::uint32_t> large(300'000, on_it());
  large.fill(1);
  EXPECT_THROW(std::ignore = large.device(), OutOfMemory);
  EXPECT_THAT(large.to_vector(), ::testing::Each(1U));
}

TEST_P(OnADriver, AdviceIsTakenAndChangesNothing) {
  UnifiedBuffer<std::uint32_t> buffer(1000, on_it());
  buffer.advise(Advice::read_mostly).advise(Advice::preferred_location).advise(Advice::accessed_by, sim);
  buffer.copy_from(counting(1000));
  buffer.sync_to_device();
  buffer.unadvise(Advice::read_mostly).advise(Advice::preferred_location, sim);
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  EXPECT_EQ(device_bytes(buffer, home), counting(1000));
  EXPECT_EQ(moved(buffer.statistics()), (Moved{4000, 1, 0, 0}));
  EXPECT_EQ(buffer.advice().size(), 2U);
}

TEST_P(OnADriver, CopyTimesAreKnownWithProfiling) {
  for (bool const asked : {false, true}) {
    auto& asked_one = asked ? with("profile=1") : home;
    auto options = on_it();
    options.device = &asked_one;
    auto const before = asked_one.transfers();
    UnifiedBuffer<std::uint32_t> buffer(100'000, options);
    buffer.copy_from(counting(100'000));
    {
      auto const lease = buffer.device();
      poke(asked_one.default_queue(), lease.native(), 7, 70);  // a copy of the device's that is none of the buffer's
    }
    std::ignore = buffer.to_vector();
    auto const counts = buffer.statistics();
    auto const there = asked_one.transfers().since(before);
    EXPECT_EQ(counts.device_to_host_nanoseconds, there.device_to_host_nanoseconds);
    EXPECT_LE(counts.host_to_device_nanoseconds, there.host_to_device_nanoseconds);
    if (asked && there.untimed_copies == 0) {
      EXPECT_GT(counts.host_to_device_nanoseconds, 0U);
      EXPECT_GT(counts.device_to_host_nanoseconds, 0U);
      EXPECT_EQ(counts.untimed_copies, 0U);
    } else if (!asked) {
      EXPECT_EQ(counts.host_to_device_nanoseconds + counts.device_to_host_nanoseconds, 0U);
      EXPECT_EQ(counts.untimed_copies, 2U);
    }
  }
}

}  // namespace unimem::testing
