#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "core/sizes.hpp"
#include "device/gate.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

// Many small ranges as one piece of work, on a device that has a command for them.

namespace unimem::testing {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t page = 4 * KiB;

class Pieces : public BufferTest {
 protected:
  static constexpr std::size_t count = 100, stride = 128 * KiB, bytes = count * stride;  // too far apart to be merged

  [[nodiscard]] BufferOptions on_batcher(bool pinned) {
    auto options = on_sim();
    options.device = &batcher;
    options.pinned = pinned;
    return options;
  }

  [[nodiscard]] static Bytes pattern() {
    Bytes values(bytes);
    for (std::size_t i = 0; i < bytes; ++i) values[i] = static_cast<std::uint8_t>(i % 251 + i / stride);
    return values;
  }

  /// Current on both sides.
  [[nodiscard]] UnifiedBuffer<std::uint8_t> settled(bool pinned) {
    UnifiedBuffer<std::uint8_t> buffer(bytes, on_batcher(pinned));
    buffer.copy_from(pattern());
    buffer.sync_to_device();
    EXPECT_EQ(buffer.is_pinned(), pinned);
    return buffer;
  }

  /// Writes a page of every stride on the host, and says what all of it is then.
  static Bytes scatter(UnifiedBuffer<std::uint8_t>& buffer, std::uint8_t salt, std::size_t pages = count) {
    auto expected = pattern();
    for (std::size_t i = 0; i < pages; ++i) {
      auto const at = i * stride + i % 16;
      auto const value = static_cast<std::uint8_t>(salt + i);
      std::ranges::fill(buffer.host(at, page), value);
      std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(at), page, value);
    }
    return expected;
  }

  /// The same on the device.
  static Bytes scatter_there(Queue& queue, UnifiedBuffer<std::uint8_t>& buffer, std::uint8_t salt) {
    auto expected = pattern();
    for (std::size_t i = 0; i < count; ++i) {
      auto const slice = buffer.slice(i * stride + i % 16, page);
      Operand const operand{&slice.core(), slice.range(), Intent::write};
      auto const value = static_cast<std::uint8_t>(salt + i);
      run(queue, {&operand, 1}, [value](std::span<const HostArgument> arguments) {
        std::fill_n(static_cast<std::uint8_t*>(arguments[0].data), page, value);
      });
      std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(i * stride + i % 16), page, value);
    }
    return expected;
  }

  [[nodiscard]] PoolStatistics pinned() { return manager.pool(device("cpu"), Location::pinned).statistics(); }

  Device& batcher = make_sim({.memory_bytes = 64 * MiB, .batches = true});
};

TEST_F(Pieces, AreOneCommandOfManyCopies) {
  for (bool const pinned : {true, false}) {
    SCOPED_TRACE(pinned ? "pinned" : "pageable");
    auto buffer = settled(pinned);
    auto& queue = batcher.default_queue();
    for (std::uint8_t round = 0; round < 3; ++round) {
      auto const expected = scatter(buffer, round);
      auto const before = buffer.statistics();
      auto const carried_out = batcher.transfers();
      auto const tickets = queue.record().ticket();
      buffer.sync_to_device();
      EXPECT_EQ(buffer.state(), BufferState::synchronized);
      auto const after = buffer.statistics();
      EXPECT_EQ(after.host_to_device_bytes - before.host_to_device_bytes, count * page);
      EXPECT_EQ(after.host_to_device_copies - before.host_to_device_copies, count);
      EXPECT_EQ(after.staged_copies - before.staged_copies, pinned ? 0U : count);
      EXPECT_EQ(moved(batcher.transfers().since(carried_out)), (Moved{count * page, count, 0, 0}));
      EXPECT_EQ(pinned ? queue.record().ticket() - tickets : 1U, 1U);
      EXPECT_TRUE(device_bytes(buffer, batcher) == expected);
      buffer.core().validate();
    }
  }
  EXPECT_LE(pinned().peak_active_bytes, bytes + 8 * MiB + page) << "a copy of any size passes through two blocks";
}

TEST_F(Pieces, ComeHomeTheSameWay) {
  for (bool const pinned : {true, false}) {
    SCOPED_TRACE(pinned ? "pinned" : "pageable");
    auto buffer = settled(pinned);
    auto const expected = scatter_there(batcher.default_queue(), buffer, 7);
    auto const carried_out = batcher.transfers();
    EXPECT_TRUE(buffer.to_vector() == expected);
    EXPECT_EQ(moved(batcher.transfers().since(carried_out)), (Moved{0, 0, count * page, count}));
    EXPECT_EQ(buffer.statistics().device_to_host_copies, count);
    EXPECT_EQ(buffer.statistics().staged_copies, pinned ? 0U : count);
    EXPECT_EQ(buffer.state(), BufferState::synchronized);
    buffer.core().validate();
  }
}

TEST_F(Pieces, AFewPageableOnesAreNotGathered) {
  auto buffer = settled(false);
  auto const expected = scatter(buffer, 1, 63);
  buffer.sync_to_device();
  EXPECT_EQ(buffer.statistics().staged_copies, 0U);
  EXPECT_TRUE(device_bytes(buffer, batcher) == expected);
}

TEST_F(Pieces, WithoutPinnedMemoryGoDirectlyAndAreCounted) {
  manager.pool(device("cpu"), Location::pinned).set_max_bytes(KiB);
  auto buffer = settled(false);
  auto const expected = scatter(buffer, 1);
  buffer.sync_to_device();
  EXPECT_EQ(buffer.statistics().staged_copies, 0U);
  EXPECT_EQ(buffer.statistics().unstaged_copies, count);
  EXPECT_TRUE(device_bytes(buffer, batcher) == expected);
}

TEST_F(Pieces, FailAsOneAndSpareTheHost) {
  for (bool const pinned : {true, false}) {
    SCOPED_TRACE(pinned ? "pinned" : "pageable");
    auto buffer = settled(pinned);
    auto const expected = scatter(buffer, 3);
    set_sim_faults(batcher, {.fail_upload = 1});
    auto const sent = buffer.sync_to_device_async();
    EXPECT_THROW(sent.wait(), DeviceError);
    EXPECT_THROW(buffer.sync_to_device(), DeviceError) << "told once to who asks for the bytes";
    EXPECT_FALSE(buffer.valid_on(batcher));
    EXPECT_TRUE(buffer.to_vector() == expected);
    buffer.core().validate();
    buffer.sync_to_device();
    EXPECT_TRUE(device_bytes(buffer, batcher) == expected);
    set_sim_faults(batcher, {});
  }
}

TEST_F(Pieces, StayOnTheDeviceWhenADownloadFails) {
  for (bool const pinned : {true, false}) {
    SCOPED_TRACE(pinned ? "pinned" : "pageable");
    auto buffer = settled(pinned);
    auto const expected = scatter_there(batcher.default_queue(), buffer, 9);
    set_sim_faults(batcher, {.fail_download = 1});
    auto const fetched = buffer.sync_to_host_async();
    EXPECT_THROW(fetched.wait(), DeviceError);
    EXPECT_THROW(std::ignore = buffer.to_vector(), DeviceError);
    // What the host alone had stays, and what the device has comes when it is asked for again.
    EXPECT_TRUE(buffer.to_vector() == expected);
    buffer.core().validate();
    set_sim_faults(batcher, {});
  }
}

TEST_F(Pieces, AreOrderedWithWorkThatTouchesThem) {
  for (bool const pinned : {true, false}) {
    SCOPED_TRACE(pinned ? "pinned" : "pageable");
    auto buffer = settled(pinned);
    auto& queue = batcher.default_queue();
    auto const expected = scatter(buffer, 5);
    auto behind = batcher.create_queue();
    std::optional<Gate> gate{queue};
    auto const sent = buffer.prefetch(batcher);
    EXPECT_FALSE(sent.ready());
    Bytes seen(page), beside(page);
    auto const read = [&](std::size_t at, Bytes& into) {
      auto const slice = buffer.slice(at, page);
      Operand const operand{&slice.core(), slice.range(), Intent::read};
      return use_on_device(behind, {&operand, 1},
                           [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
                             return behind.download(into.data(), memory[0], page, needs);
                           });
    };
    // Between the pieces nothing has to wait.
    read(64 * KiB, beside).wait();
    EXPECT_TRUE(std::equal(beside.begin(), beside.end(), expected.begin() + 64 * KiB));
    EXPECT_FALSE(sent.ready());
    auto const in_a_piece = read(stride + 1, seen);
    EXPECT_FALSE(in_a_piece.ready());
    gate.reset();
    in_a_piece.wait();
    EXPECT_TRUE(std::equal(seen.begin(), seen.end(), expected.begin() + stride + 1));
    EXPECT_TRUE(device_bytes(buffer, batcher) == expected);
  }
}

TEST_F(Pieces, OfPageableMemoryMayChangeOnceGathered) {
  auto buffer = settled(false);
  auto expected = scatter(buffer, 1);
  buffer.sync_to_device();  // from now on a block is at hand
  expected = scatter(buffer, 2);
  std::optional<Gate> gate{batcher.default_queue()};
  auto const sent = buffer.prefetch(batcher);
  auto later = expected;
  std::fill_n(later.begin(), page, std::uint8_t{99});
  Bytes const next(page, 99);
  buffer.copy_from_async(next, 0).wait();
  EXPECT_FALSE(sent.ready()) << "nothing of it has moved";
  gate.reset();
  sent.wait();
  EXPECT_TRUE(device_bytes(buffer, batcher) == later);
}

TEST_F(Pieces, TheirTimeIsCountedOnce) {
  // 41 ms for the bytes, 10 ms for a command: not slow enough to make one copy of all.
  Device& slow = make_sim({.memory_bytes = 64 * MiB,
                           .upload_bytes_per_second = 1e7,
                           .latency = std::chrono::milliseconds{10},
                           .batches = true});
  auto options = on_batcher(true);
  options.device = &slow;
  UnifiedBuffer<std::uint8_t> buffer(bytes, options);
  buffer.copy_from(pattern());
  buffer.sync_to_device();
  auto const before = slow.transfers();
  scatter(buffer, 1);
  buffer.sync_to_device();
  auto const took = slow.transfers().since(before);
  EXPECT_EQ(took.host_to_device_copies, count);
  EXPECT_EQ(took.untimed_copies, 0U);
  EXPECT_GE(took.host_to_device_nanoseconds, 50'000'000U);
  EXPECT_LT(took.host_to_device_nanoseconds, 1'000'000'000U) << "a hundred commands would have taken longer";
}

}  // namespace
}  // namespace unimem::testing
