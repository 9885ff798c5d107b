#include <unimem/core/error.hpp>

#include "buffer/spilled.hpp"
#include "buffer/spilling_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

// A file is a place like others: ranges move there and back, what is clean there is not written again, and what is
// stale there goes.

namespace unimem::testing {
namespace {

class SpilledRanges : public Spilling {
 protected:
  static std::size_t evict(Buffer& buffer) { return buffer.core().evict({&unimem::device("cpu"), Location::host}, {}); }
  [[nodiscard]] GlobalMemoryStatistics counts() { return manager.statistics(); }
  /// Full of rising numbers, which are in a file alone.
  Buffer spilled(std::size_t count = words) {
    Buffer buffer(count, named("spilled"));
    values.resize(count);
    std::iota(values.begin(), values.end(), 1U);
    buffer.copy_from(values);
    EXPECT_EQ(evict(buffer), count * sizeof(std::uint32_t));
    return buffer;
  }

  std::vector<std::uint32_t> values;
};

TEST_F(SpilledRanges, ComeBackAlone) {
  auto buffer = spilled();
  std::vector<std::uint32_t> part(10);
  buffer.slice(1000, 10).copy_to(part);
  EXPECT_EQ(part, std::vector(values.begin() + 1000, values.begin() + 1010));
  EXPECT_EQ(counts().restored_bytes, 40U);
  EXPECT_EQ(buffer.state(), BufferState::host_dirty);
  EXPECT_EQ(buffer.to_vector(), values);
  EXPECT_LE(counts().restored_bytes, MiB + 40U) << "at most across what was there";
  EXPECT_EQ(buffer.statistics().host_to_device_bytes + buffer.statistics().device_to_host_bytes, 0U)
      << "no device has to do with it";
}

TEST_F(SpilledRanges, CleanOnesAreNotWrittenAgain) {
  auto buffer = spilled();
  EXPECT_EQ(counts().spilled_bytes, MiB);
  EXPECT_EQ(buffer.to_vector(), values);
  EXPECT_EQ(evict(buffer), MiB);
  EXPECT_EQ(counts().spills, 1U);
  buffer.slice(500, 10).copy_from(std::vector(10, 7U));
  std::fill_n(values.begin() + 500, 10, 7U);
  EXPECT_EQ(evict(buffer), MiB);
  EXPECT_EQ(counts().spilled_bytes, MiB + 40U);
  EXPECT_EQ(counts().spill_files, 1U);
  EXPECT_EQ(counts().spill_file_bytes, MiB);
  EXPECT_EQ(buffer.to_vector(), values);
}

TEST_F(SpilledRanges, NothingIsReadThatIsOverwritten) {
  auto buffer = spilled();
  buffer.slice(0, words / 2).fill(3);
  std::fill_n(values.begin(), words / 2, 3U);
  EXPECT_EQ(counts().restores, 0U);
  EXPECT_EQ(buffer.to_vector(), values);
  EXPECT_EQ(counts().restored_bytes, MiB / 2);
}

TEST_F(SpilledRanges, AStaleFileGoes) {
  auto buffer = spilled();
  EXPECT_EQ(counts().spill_files, 1U);
  buffer.fill(5);
  EXPECT_EQ(counts().spill_files, 0U);
  EXPECT_EQ(buffer.to_vector(), filled(5));
  EXPECT_EQ(evict(buffer), MiB);
  buffer.discard();
  EXPECT_EQ(counts().spill_files, 0U);
  EXPECT_EQ(buffer.state(), BufferState::uninitialized);
}

TEST_F(SpilledRanges, AFileStaysUntilTheWorkThatOverwritesItHasSucceeded) {
  auto buffer = spilled();
  Operand const all{&buffer.core(), {0, MiB}, Intent::read_write};
  overwrite_in_vain(sim, buffer);
  EXPECT_THROW(static_cast<void>(buffer.host_view()), std::exception) << "told once";
  EXPECT_EQ(buffer.to_vector(), values) << "the file had them";
  add_one(sim.default_queue(), all);
  EXPECT_EQ(evict(buffer), MiB) << "stale memory of the host";
  EXPECT_EQ(buffer.state(), BufferState::device_dirty);
  for (auto& value : values) ++value;
  EXPECT_EQ(buffer.to_vector(), values);
  EXPECT_EQ(counts().spill_files, 0U) << "the work has succeeded";
}

TEST_F(SpilledRanges, ADeviceReadsWhatTheHostHasNoRoomFor) {
  constexpr std::size_t megabytes = 12;
  auto buffer = spilled(megabytes * words);
  manager.cleanup();
  auto const& host = manager.pool(device("cpu"), Location::host);
  ASSERT_EQ(host.statistics().reserved_bytes, 0U);
  room_for(9);  // two blocks on the way, and no buffer
  room_for(0, Location::pinned);
  buffer.sync_to_device();
  EXPECT_EQ(counts().restored_bytes, megabytes * MiB);
  EXPECT_EQ(buffer.statistics().host_to_device_bytes, megabytes * MiB);
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  EXPECT_LE(host.statistics().reserved_bytes, 9 * MiB);
  Operand const all{&buffer.core(), {0, megabytes * MiB}, Intent::read_write};
  add_one(sim.default_queue(), all);
  for (auto& value : values) ++value;
  EXPECT_EQ(buffer.to_vector(), values) << "straight from the device";
}

TEST_F(SpilledRanges, OfTheCpuDeviceAreTheHosts) {
  auto& cpu = device("cpu");
  Buffer buffer(words, named("on cpu"));
  buffer.copy_from(filled(1));
  Operand const all{&buffer.core(), {0, MiB}, Intent::read_write};
  add_one(cpu.default_queue(), all);
  EXPECT_EQ(buffer.state(), BufferState::device_dirty);
  EXPECT_EQ(evict(buffer), MiB);
  EXPECT_EQ(buffer.state(), BufferState::host_only);
  EXPECT_EQ(counts().spilled_bytes, MiB) << "one memory, one copy";
  add_one(cpu.default_queue(), all);
  EXPECT_EQ(evict(buffer), MiB);
  EXPECT_EQ(buffer.to_vector(), filled(3));
  buffer.core().validate();
}

}  // namespace
}  // namespace unimem::testing
