#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "core/sizes.hpp"
#include "device/gate.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace unimem::testing {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t threshold = MiB;
constexpr std::size_t chunk = 4 * MiB;

/// A device whose pageable copies of more than a mebibyte are staged. No test has more than 8 MiB pinned at a time:
/// more is refused to ordinary users of most systems.
class Staged : public BufferTest {
 protected:
  [[nodiscard]] BufferOptions on_stager() {
    auto options = on_sim();
    options.device = &stager;
    return options;
  }

  /// Bytes in which every offset can be told from its neighbours, its chunk and its page.
  [[nodiscard]] static Bytes pattern(std::size_t count, std::size_t seed = 0) {
    Bytes bytes(count);
    for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>((i + seed) % 251 + i / chunk);
    return bytes;
  }

  /// A buffer of such bytes, which the host has.
  [[nodiscard]] UnifiedBuffer<std::uint8_t> filled(std::size_t count, std::size_t seed = 0) {
    UnifiedBuffer<std::uint8_t> buffer(count, on_stager());
    buffer.copy_from(pattern(count, seed));
    return buffer;
  }

  /// Adds to bytes on the device, as a kernel does.
  static Event bump(Queue& queue, BufferSlice<std::uint8_t> const& slice) {
    Operand const operand{&slice.core(), slice.range(), Intent::read_write};
    return run(queue, {&operand, 1}, [count = slice.size()](std::span<const HostArgument> arguments) {
      for (auto& byte : std::span{static_cast<std::uint8_t*>(arguments[0].data), count}) ++byte;
    });
  }
  static Bytes bumped(Bytes bytes) {
    for (auto& byte : bytes) ++byte;
    return bytes;
  }

  [[nodiscard]] PoolStatistics pinned() { return manager.pool(device("cpu"), Location::pinned).statistics(); }

  Device& stager = make_sim({.memory_bytes = 64 * MiB, .staging_threshold = threshold});
};

TEST_F(Staged, LargeCopiesPassThroughPinnedChunks) {
  struct Case {
    std::size_t bytes;
    std::size_t chunks;  ///< 0: directly
  };
  for (auto const& [bytes, chunks] :
       {Case{1000, 0}, Case{threshold, 0}, Case{threshold + 1, 1}, Case{chunk - 1, 1}, Case{chunk, 1},
        Case{chunk + 1, 2}, Case{2 * chunk, 2}, Case{2 * chunk + 1, 3}, Case{3 * chunk, 3}, Case{3 * chunk + 77, 4}}) {
    SCOPED_TRACE(bytes);
    auto const copies = std::max<std::size_t>(chunks, 1);
    std::size_t const staged = chunks == 0 ? 0 : 1;
    manager.cleanup();
    auto buffer = filled(bytes);
    auto const data = pattern(bytes);
    auto const before = stager.transfers();
    auto const on_host = device("cpu").transfers();
    buffer.sync_to_device();
    EXPECT_EQ(stager.transfers().host_to_device_copies - before.host_to_device_copies, copies);
    EXPECT_EQ(stager.transfers().host_to_device_bytes - before.host_to_device_bytes, bytes);
    EXPECT_EQ(device("cpu").transfers().device_to_device_bytes - on_host.device_to_device_bytes, staged * bytes)
        << "what the detour costs is not hidden";
    EXPECT_EQ(moved(buffer.statistics()), (Moved{bytes, 1, 0, 0})) << "one copy, whatever way it went";
    EXPECT_EQ(buffer.statistics().staged_copies, staged);
    EXPECT_TRUE(device_bytes(buffer, stager) == data);

    bump(stager.default_queue(), buffer.slice(0)).wait();
    auto const down = stager.transfers();
    EXPECT_TRUE(buffer.to_vector() == bumped(data));
    EXPECT_EQ(stager.transfers().device_to_host_copies - down.device_to_host_copies, copies);
    EXPECT_EQ(stager.transfers().device_to_host_bytes - down.device_to_host_bytes, bytes);
    EXPECT_EQ(moved(buffer.statistics()), (Moved{bytes, 1, bytes, 1}));
    EXPECT_EQ(buffer.statistics().staged_copies, 2 * staged);
    EXPECT_EQ(buffer.statistics().unstaged_copies, 0U);
    EXPECT_EQ(pinned().active_bytes, 0U) << "the blocks went back";
    EXPECT_EQ(pinned().reserved_bytes, std::min<std::size_t>(chunks, 2) * chunk);
    buffer.core().validate();
  }
}

TEST_F(Staged, WindowsKeepTheirOffsets) {
  UnifiedBuffer<std::uint8_t> buffer(12 * MiB, on_stager());
  auto expected = pattern(12 * MiB);
  buffer.copy_from(expected);
  buffer.sync_to_device();
  constexpr std::size_t first = 100'003, count = 9 * MiB + 7;
  std::ranges::fill(buffer.host(first, count), std::uint8_t{7});
  std::fill_n(expected.begin() + first, count, std::uint8_t{7});
  buffer.slice(first, count).sync_to_device();
  EXPECT_EQ(moved(buffer.statistics()), (Moved{12 * MiB + count, 2, 0, 0}));
  EXPECT_TRUE(device_bytes(buffer, stager) == expected);
  bump(stager.default_queue(), buffer.slice(first + 11, count)).wait();
  for (auto i = first + 11; i < first + 11 + count; ++i) ++expected[i];
  EXPECT_TRUE(buffer.to_vector() == expected);
  EXPECT_EQ(buffer.statistics().staged_copies, 3U);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{12 * MiB + count, 2, count, 1}));
}

TEST_F(Staged, OtherDevicesAndPinnedMemoryAreServedDirectly) {
  UnifiedBuffer<std::uint8_t> elsewhere(3 * MiB, on_sim());
  elsewhere.fill(1);
  elsewhere.sync_to_device();
  EXPECT_EQ(elsewhere.statistics().staged_copies + elsewhere.statistics().unstaged_copies, 0U);

  auto options = on_stager();
  options.pinned = true;
  UnifiedBuffer<std::uint8_t> buffer(3 * MiB, options);
  buffer.fill(2);
  ASSERT_TRUE(buffer.is_pinned());
  buffer.sync_to_device();
  EXPECT_EQ(buffer.statistics().staged_copies + buffer.statistics().unstaged_copies, 0U);
  EXPECT_EQ(moved(stager.transfers()), (Moved{3 * MiB, 1, 0, 0}));
  EXPECT_TRUE(device_bytes(buffer, stager) == Bytes(3 * MiB, 2));

  auto memory = pattern(3 * MiB);
  for (auto const location : {Location::pinned, Location::host}) {
    auto wrapped = manager.wrap(memory.data(), memory.size(), location, Ownership::borrow());
    wrapped.sync_to_device(stager);
    EXPECT_EQ(wrapped.statistics().staged_copies, location == Location::host ? 1U : 0U);
    EXPECT_TRUE(device_bytes(wrapped, stager) == memory);
  }
}

TEST_F(Staged, NothingWaitsThatDidNotWaitBefore) {
  constexpr std::size_t bytes = 3 * chunk;
  auto buffer = filled(bytes);
  auto const data = pattern(bytes);
  auto queue = stager.create_queue(), behind = stager.create_queue();
  std::optional<Gate> gate{queue};
  auto const arrived = buffer.prefetch(queue);
  auto const used = bump(behind, buffer.slice(5 * MiB, MiB));
  auto const brought_back = buffer.sync_to_host_async();
  EXPECT_FALSE(arrived.ready());
  EXPECT_FALSE(used.ready()) << "it needs what is on its way";
  EXPECT_FALSE(brought_back.ready());
  EXPECT_EQ(stager.transfers().host_to_device_copies, 0U);
  gate.reset();
  auto expected = data;
  for (auto i = 5 * MiB; i < 6 * MiB; ++i) ++expected[i];
  EXPECT_TRUE(buffer.to_vector() == expected);
  EXPECT_TRUE(device_bytes(buffer, stager) == expected);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{bytes, 1, MiB, 1}));
}

TEST_F(Staged, TheHostMayWriteOnceAllIsStaged) {
  auto buffer = filled(2 * MiB);
  auto const data = pattern(2 * MiB);
  auto queue = stager.create_queue();
  std::optional<Gate> gate{queue};
  auto const arrived = buffer.prefetch(queue);
  Bytes const next(MiB, 9);
  buffer.copy_from_async(next, 0).wait();
  EXPECT_FALSE(arrived.ready()) << "what was read is on its way, the memory is free";
  gate.reset();
  arrived.wait();
  auto expected = data;
  std::fill_n(expected.begin(), MiB, std::uint8_t{9});
  EXPECT_TRUE(buffer.to_vector() == expected);
  EXPECT_TRUE(device_bytes(buffer, stager) == expected);
}

TEST_F(Staged, WaitingForTheQueueIncludesTheHostsBytes) {
  constexpr std::size_t bytes = 2 * chunk + 5;
  auto buffer = filled(bytes);
  auto const data = pattern(bytes);
  auto const* const kept = buffer.host_view().data();
  buffer.sync_to_device();
  bump(stager.default_queue(), buffer.slice(0));
  static_cast<void>(buffer.sync_to_host_async());
  stager.synchronize();
  EXPECT_TRUE(std::equal(kept, kept + bytes, bumped(data).begin())) << "without asking the buffer";
}

TEST_F(Staged, ManyCopiesOfAQueueShareTwoBlocks) {
  constexpr std::size_t bytes = 2 * chunk + 5;
  auto queue = stager.create_queue();
  std::vector<UnifiedBuffer<std::uint8_t>> buffers;
  std::optional<Gate> gate{queue};
  std::vector<Event> arrived;
  for (std::size_t i = 0; i < 5; ++i) {
    buffers.push_back(filled(bytes, i));
    arrived.push_back(buffers.back().prefetch(queue));
  }
  for (auto const event : arrived) EXPECT_FALSE(event.ready());
  gate.reset();
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(device_bytes(buffers[i], stager) == pattern(bytes, i));
    EXPECT_EQ(buffers[i].statistics().staged_copies, 1U);
  }
  EXPECT_EQ(pinned().peak_reserved_bytes, 2 * chunk);
}

TEST_F(Staged, AHeldQueueHoldsUpNoOther) {
  constexpr std::size_t bytes = 2 * MiB;  // one block each
  auto held = stager.create_queue(), free = stager.create_queue();
  auto first = filled(bytes, 1), second = filled(bytes, 2);
  std::optional<Gate> gate{held};
  auto const later = first.prefetch(held);
  second.prefetch(free).wait();
  EXPECT_FALSE(later.ready());
  EXPECT_EQ(pinned().peak_reserved_bytes, 2 * chunk) << "a block of its own";
  EXPECT_TRUE(device_bytes(second, stager) == pattern(bytes, 2));
  gate.reset();
  EXPECT_TRUE(device_bytes(first, stager) == pattern(bytes, 1));
}

TEST_F(Staged, WithoutPinnedMemoryCopiesGoDirectly) {
  constexpr std::size_t bytes = 2 * chunk;
  manager.pool(device("cpu"), Location::pinned).set_max_bytes(chunk);
  auto buffer = filled(bytes);
  auto const data = pattern(bytes);
  buffer.sync_to_device();
  EXPECT_EQ(moved(stager.transfers()), (Moved{bytes, 1, 0, 0})) << "there was one block, and two are needed";
  EXPECT_EQ(buffer.statistics().staged_copies, 0U);
  EXPECT_EQ(buffer.statistics().unstaged_copies, 1U);
  EXPECT_TRUE(device_bytes(buffer, stager) == data);
  bump(stager.default_queue(), buffer.slice(0));
  EXPECT_TRUE(buffer.to_vector() == bumped(data));
  EXPECT_EQ(buffer.statistics().unstaged_copies, 2U);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{bytes, 1, bytes, 1}));
  buffer.reset();
  EXPECT_EQ(buffer.statistics().unstaged_copies, 0U);
}

TEST_F(Staged, NoCopyWaitsForPinnedMemoryInUse) {
  constexpr std::size_t bytes = 2 * MiB;
  manager.pool(device("cpu"), Location::pinned).set_max_bytes(chunk);
  auto held = stager.create_queue(), free = stager.create_queue();
  auto first = filled(bytes, 1), second = filled(bytes, 2);
  std::optional<Gate> gate{held};
  auto const later = first.prefetch(held);
  second.prefetch(free).wait();
  EXPECT_FALSE(later.ready());
  EXPECT_EQ(second.statistics().unstaged_copies, 1U);
  EXPECT_TRUE(device_bytes(second, stager) == pattern(bytes, 2));
  gate.reset();
  EXPECT_TRUE(device_bytes(first, stager) == pattern(bytes, 1));
  EXPECT_EQ(first.statistics().staged_copies, 1U);
}

TEST_F(Staged, AFailedUploadSparesTheHost) {
  constexpr std::size_t bytes = 2 * chunk + 5;
  auto const data = pattern(bytes);
  for (std::uint64_t n = 1; n <= 3; ++n) {
    SCOPED_TRACE(n);
    auto buffer = filled(bytes);
    set_sim_faults(stager, {.fail_upload = n});
    auto const arrived = buffer.sync_to_device_async();
    EXPECT_THROW(arrived.wait(), DeviceError);
    EXPECT_THROW(buffer.sync_to_device(), DeviceError) << "told once to who asks for the bytes";
    EXPECT_FALSE(buffer.valid_on(stager));
    EXPECT_TRUE(buffer.to_vector() == data);
    buffer.sync_to_device();
    EXPECT_TRUE(device_bytes(buffer, stager) == data);
    EXPECT_EQ(pinned().active_bytes, 0U);
    buffer.core().validate();
  }
}

TEST_F(Staged, AFailedDownloadSparesTheHost) {
  constexpr std::size_t bytes = 2 * chunk + 5, gap = chunk + 1000, gap_bytes = 100;
  auto const data = pattern(bytes);
  for (std::uint64_t n = 1; n <= 3; ++n) {
    SCOPED_TRACE(n);
    auto buffer = filled(bytes);
    buffer.sync_to_device();
    // All but a few bytes in the middle, which the host keeps: one copy goes over them all the same.
    bump(stager.default_queue(), buffer.slice(0, gap)).wait();
    bump(stager.default_queue(), buffer.slice(gap + gap_bytes)).wait();
    set_sim_faults(stager, {.fail_download = n});
    EXPECT_THROW(buffer.sync_to_host_async().wait(), DeviceError);
    set_sim_faults(stager, {});
    EXPECT_EQ(buffer.statistics().device_to_host_bytes, bytes) << "across the gap";
    EXPECT_THROW(std::ignore = buffer.to_vector(), DeviceError);
    auto const middle = buffer.slice(gap, gap_bytes).to_vector();
    EXPECT_TRUE(std::equal(middle.begin(), middle.end(), data.begin() + gap)) << "the host's good copy";
    auto expected = bumped(data);
    std::copy_n(data.begin() + gap, gap_bytes, expected.begin() + gap);
    EXPECT_TRUE(buffer.to_vector() == expected);
    buffer.core().validate();
  }
}

TEST_F(Staged, ADownloadThatNeverBeganSparesTheHost) {
  constexpr std::size_t bytes = 2 * chunk + 5;
  auto const data = pattern(bytes);
  auto buffer = filled(bytes);
  buffer.sync_to_device();
  set_sim_faults(stager, {.fail_run = 1});
  auto& queue = stager.default_queue();
  std::optional<Gate> gate{other.default_queue()};
  queue.wait(other.default_queue().record());
  bump(queue, buffer.slice(0));
  auto const fetched = buffer.sync_to_host_async();
  EXPECT_FALSE(fetched.ready());
  gate.reset();
  EXPECT_THROW(fetched.wait(), DeviceError);
  EXPECT_TRUE(fetched.never_began()) << "no chunk of it";
  EXPECT_THROW(std::ignore = buffer.to_vector(), DeviceError);
  EXPECT_TRUE(buffer.to_vector() == data);
  EXPECT_TRUE(device_bytes(buffer, stager) == data);
}

TEST_F(Staged, WhicheverCallFailsNothingElseDoes) {
  constexpr std::size_t bytes = 2 * chunk + 5;
  auto const data = pattern(bytes);
  for (bool const lose : {false, true}) {
    bool failed = true;
    std::uint64_t n = 0;
    for (; failed; ++n) {
      ASSERT_LT(n, 20U) << "it never passes";
      SCOPED_TRACE(::testing::Message() << (lose ? "lost after" : "failing") << " call " << n + 1);
      failed = false;
      {
        auto buffer = filled(bytes);
        SimOptions faults;
        (lose ? faults.lose_after : faults.fail_call) = n + 1;
        set_sim_faults(stager, faults);
        try {
          failed = bump(stager.default_queue(), buffer.slice(0)).wait_for_error() != nullptr;
          failed = buffer.sync_to_host_async().wait_for_error() != nullptr || failed;
        } catch (Error const&) {
          failed = true;
        }
        stager.synchronize();
        set_sim_faults(stager, {});
        std::optional<Bytes> seen;
        for (int tries = 0; tries < 4 && !seen; ++tries) {
          try {
            seen = buffer.to_vector();
          } catch (DataLost const&) {
            break;  // a failed kernel may have scribbled over the only copy of what it was to change
          } catch (Error const&) {
            failed = true;
          }
        }
        EXPECT_TRUE(!seen ? failed : *seen == bumped(data) || (failed && *seen == data));
        buffer.core().validate();
        buffer.copy_from(data);
        EXPECT_TRUE(device_bytes(buffer, stager) == data) << "it goes on working";
        EXPECT_EQ(pinned().active_bytes, 0U) << "a leak";
      }
      stager.synchronize();
      manager.cleanup();
      EXPECT_EQ(stager.memory_info().free_bytes, stager.memory_info().total_bytes) << "a leak on the device";
      if (HasFailure()) return;
    }
    EXPECT_EQ(n, lose ? 8U : 9U) << "an allocation (not a command), three chunks, a kernel, three chunks, and none";
  }
}

TEST_F(Staged, QueuesAndBuffersMayEndDuringACopy) {
  constexpr std::size_t bytes = 2 * chunk + 5;
  auto const data = pattern(bytes);
  auto buffer = filled(bytes);
  {
    auto queue = stager.create_queue();
    static_cast<void>(buffer.prefetch(queue));
  }
  EXPECT_TRUE(device_bytes(buffer, stager) == data);
  {
    std::optional<Gate> gate{stager.default_queue()};
    {
      auto passing = filled(bytes, 3);
      static_cast<void>(passing.prefetch());
    }
    gate.reset();
  }
  stager.synchronize();
  EXPECT_EQ(pinned().active_bytes, 0U);
  EXPECT_TRUE(buffer.to_vector() == data);
}

TEST_F(Staged, DownloadsToWatchedPagesAreNoUserWrites) {
  constexpr std::size_t bytes = 2 * chunk + 5;
  auto options = on_stager();
  options.tracking = Tracking::pages;
  std::optional<UnifiedBuffer<std::uint8_t>> buffer;
  try {
    buffer.emplace(bytes, options);
  } catch (UnsupportedOperation const& reason) {
    GTEST_SKIP() << reason.what();
  }
  auto const data = pattern(bytes);
  buffer->copy_from(data);
  buffer->sync_to_device();
  bump(stager.default_queue(), buffer->slice(0));
  EXPECT_TRUE(buffer->to_vector() == bumped(data));
  EXPECT_EQ(buffer->state(), BufferState::synchronized) << "what arrived was not a write of the user's";
  EXPECT_EQ(buffer->statistics().staged_copies, 2U);
  buffer->sync_to_device();
  EXPECT_EQ(moved(buffer->statistics()), (Moved{bytes, 1, bytes, 1}));
}

}  // namespace
}  // namespace unimem::testing
