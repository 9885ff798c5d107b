#include <unimem/core/error.hpp>

#include "buffer/spilling_fixture.hpp"
#include "device/gate.hpp"
#include "small_disk.hpp"

#include <algorithm>
#include <optional>
#include <thread>

// Reads where no host memory is to be had, since nothing more can be spilled: straight from where the bytes are.

namespace unimem::testing {
namespace {

/// Host memory that nobody gives back, so that there is none for anybody else.
class FullHost {
 public:
  FullHost(MemoryManager& manager, std::size_t bytes) : block_(manager.acquire(device("cpu"), Location::host, bytes)) {}

 private:
  Allocation block_;
};

class DirectReads : public Spilling {
 protected:
  /// Spills all buffers there are, and takes their memory.
  void spill_all() {
    for (auto& buffer : buffers) ASSERT_EQ(buffer.core().evict({&unimem::device("cpu"), Location::host}, {}), MiB);
    full.emplace(manager, buffers.size() * MiB);
    ASSERT_THROW(static_cast<void>(buffers[0].host_view()), OutOfMemory);
  }
  [[nodiscard]] GlobalMemoryStatistics counts() { return manager.statistics(); }

  std::optional<FullHost> full;
};

TEST_F(DirectReads, ServeEveryBufferThoughTheFolderIsFull) {
  SmallDisk const disk(directory.path() + "/disk", 4 * MiB);
  if (!disk.mounted()) GTEST_SKIP() << "cannot mount a small disk: " << disk.reason();
  MemoryManager on_disk(ManagerOptions{.spill = {.directory = disk.path()}});
  on_disk.set_limit(device("cpu"), Location::host, 8 * MiB);
  auto options = named("on a full disk");
  options.manager = &on_disk;
  std::deque<Buffer> all;
  for (std::uint32_t i = 0;; ++i) {
    all.emplace_back(words, options);
    try {
      all.back().copy_from(filled(i));
    } catch (OutOfMemory const&) {
      all.pop_back();
      break;
    }
  }
  ASSERT_GT(all.size(), 8U) << "some are in files";
  auto const before = on_disk.statistics();
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < all.size(); ++i) {
      std::vector<std::uint32_t> copied(words), later(words);
      all[i].copy_to(copied);
      all[i].copy_to_async(later).wait();
      ASSERT_EQ(copied, filled(i)) << i;
      ASSERT_EQ(later, filled(i)) << i;
      ASSERT_EQ(all[i].to_vector(), filled(i)) << i;
      ASSERT_EQ(all[i].state(), BufferState::host_dirty) << i;
      all[i].core().validate();
    }
  }
  auto const after = on_disk.statistics();
  EXPECT_EQ(after.spill_files, before.spill_files) << "everything is where it was";
  EXPECT_EQ(after.restores, before.restores);
  EXPECT_EQ(after.direct_reads, 2 * 3 * before.spill_files);
  EXPECT_EQ(after.direct_read_bytes, after.direct_reads * MiB);
}

TEST_F(DirectReads, OfAPartReadNoMoreThanThat) {
  room_for(2);
  for (std::uint32_t i = 0; i < 2; ++i) {
    std::vector<std::uint32_t> rising(words);
    for (std::uint32_t at = 0; at < words; ++at) rising[at] = at + i;
    buffers.emplace_back(words, named("rising")).copy_from(rising);
  }
  spill_all();
  std::vector<std::uint32_t> part(1000);
  buffers[1].copy_to(part, 12'345);
  for (std::uint32_t at = 0; at < part.size(); ++at) ASSERT_EQ(part[at], 12'346 + at);
  EXPECT_EQ(buffers[0].slice(words - 3, 3).to_vector(), (std::vector<std::uint32_t>{words - 3, words - 2, words - 1}));
  EXPECT_EQ(counts().direct_reads, 2U);
  EXPECT_EQ(counts().direct_read_bytes, 1003 * sizeof(std::uint32_t));
  EXPECT_EQ(counts().restores, 0U);
  full.reset();
  EXPECT_EQ(buffers[1].to_vector()[words - 1], words);
  EXPECT_EQ(counts().restores, 1U) << "where there is memory it comes back";
}

TEST_F(DirectReads, TakeLaterWritesFromTheDevice) {
  room_for(2);
  fill(2);
  Operand const half{&buffers[1].core(), {MiB / 2, MiB}, Intent::read_write};
  add_one(sim.default_queue(), half);
  auto const state = buffers[1].state();
  spill_all();
  auto expected = filled(1U);
  std::fill(expected.begin() + words / 2, expected.end(), 2U);
  auto const before = sim.transfers();
  EXPECT_EQ(buffers[1].to_vector(), expected);
  EXPECT_EQ(sim.transfers().device_to_host_bytes - before.device_to_host_bytes, MiB / 2);
  EXPECT_EQ(buffers[1].statistics().device_to_host_bytes, MiB / 2);
  EXPECT_EQ(counts().direct_read_bytes, MiB / 2);
  EXPECT_EQ(buffers[1].state(), state);
  buffers[1].core().validate();
}

TEST_F(DirectReads, NeverReplaceLostBytesByAnOldFile) {
  room_for(1);
  fill(1);
  Operand const half{&buffers[0].core(), {0, MiB / 2}, Intent::read_write};
  add_one(sim.default_queue(), half);
  spill_all();
  set_sim_faults(sim, {.lose_after = 1});
  std::vector<std::uint32_t> read(words);
  EXPECT_THROW(buffers[0].copy_to(read), DeviceError);
  EXPECT_THROW(buffers[0].copy_to(read), OutOfMemory);
  std::vector<std::uint32_t> rest(words / 2);
  buffers[0].copy_to(rest, words / 2);
  EXPECT_EQ(rest, std::vector(words / 2, 0U));
  full.reset();
  EXPECT_THROW(buffers[0].copy_to(read), DataLost);
}

TEST_F(DirectReads, ReadTheWrittenPartOfABuffer) {
  room_for(1);
  buffers.emplace_back(words, named("half")).copy_from(std::vector(words / 2, 3U), words / 2);
  spill_all();
  auto const all = buffers[0].to_vector();
  EXPECT_EQ(std::vector(all.begin() + words / 2, all.end()), std::vector(words / 2, 3U));
}

TEST_F(DirectReads, WaitForPendingWritesOnADevice) {
  room_for(1);
  fill(1);
  buffers[0].sync_to_device();
  buffers[0].release_host();
  full.emplace(manager, MiB);
  std::optional<Gate> gate{sim.default_queue()};
  auto const patterned = buffers[0].fill_async(7U);
  std::vector<std::uint32_t> read(words);
  std::jthread opens([&] { gate.reset(); });
  buffers[0].copy_to(read);
  EXPECT_TRUE(patterned.ready());
  EXPECT_EQ(read, filled(7U));
  EXPECT_EQ(buffers[0].state(), BufferState::device_dirty);
  EXPECT_EQ(counts().direct_reads, 0U) << "there is no file";
}

TEST_F(DirectReads, ThrowADevicesErrorAndLoseNothing) {
  room_for(1);
  fill(1);
  buffers[0].sync_to_device();
  buffers[0].release_host();
  full.emplace(manager, MiB);
  set_sim_faults(sim, {.fail_download = 1});
  std::vector<std::uint32_t> read(words);
  EXPECT_THROW(buffers[0].copy_to(read), DeviceError);
  buffers[0].copy_to(read);
  EXPECT_EQ(read, filled(0U));
}

TEST_F(DirectReads, OfNothingAreStillRefused) {
  room_for(1);
  Buffer nothing(words, named("nothing"));
  full.emplace(manager, MiB);
  EXPECT_THROW(static_cast<void>(nothing.to_vector()), OutOfMemory);
  EXPECT_EQ(nothing.state(), BufferState::uninitialized);
}

/// A kernel's function that reads another buffer is in the middle of its device's work.
TEST_F(DirectReads, WithinWorkComeFromFilesAlone) {
  room_for(2);
  fill(2);
  buffers[1].sync_to_device();
  buffers[1].release_host();
  ASSERT_EQ(buffers[0].core().evict({&unimem::device("cpu"), Location::host}, {}), MiB);
  full.emplace(manager, 2 * MiB);
  std::vector<std::uint32_t> read;
  bool refused = false;
  auto const program = sim.compile({"reads", "", [&](Range, std::size_t, std::size_t, std::span<const HostArgument>) {
                                      read = buffers[0].to_vector();
                                      try {
                                        static_cast<void>(buffers[1].to_vector());
                                      } catch (OutOfMemory const&) {
                                        refused = true;
                                      }
                                    }});
  sim.default_queue().run(program, Range{1}, {}).wait();
  EXPECT_EQ(read, filled(0U));
  EXPECT_TRUE(refused);
}

}  // namespace
}  // namespace unimem::testing
