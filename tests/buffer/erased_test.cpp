#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>

#include "buffer/spilling_fixture.hpp"
#include "buffer/staging.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Managers whose pools are to overwrite what is released: nothing of a buffer is left for who comes next.

namespace unimem::testing {
namespace {

constexpr std::uint32_t secret = 0x5EC4E75E;

ManagerOptions erasing(std::string spill_directory = {}) {
  return {.pools = {.zero_on_release = true}, .spill = {.directory = std::move(spill_directory)}};
}

class Erased : public ::testing::Test {
 protected:
  using Buffer = UnifiedBuffer<std::uint32_t>;

  [[nodiscard]] BufferOptions on_sim(std::optional<Location> location = {}) {
    BufferOptions options;
    options.manager = &manager;
    options.device = &sim;
    options.pinned = location == Location::pinned;
    return options;
  }

  /// What the next owner of so many words at a location reads, and that they were somebody's.
  std::vector<std::uint32_t> next_owner_reads(Device& device, Location location, std::size_t count = words) {
    auto const hits = manager.pool(device, location).statistics().pool_hits;
    auto const block = manager.acquire(device, location, count * sizeof(std::uint32_t));
    EXPECT_EQ(manager.pool(device, location).statistics().pool_hits, hits + 1) << "it is memory that was in use";
    std::vector<std::uint32_t> found(count, 1);
    device.default_queue().download(found.data(), block.memory(), count * sizeof(std::uint32_t)).wait();
    return found;
  }

  Directory directory;
  Device& sim = make_sim({.memory_bytes = 64 * MiB, .staging_threshold = MiB});
  Device& cpu = device("cpu");
  MemoryManager manager{erasing(directory.path())};
};

TEST_F(Erased, NothingOfABufferStaysOnEitherSide) {
  {
    Buffer buffer(words, on_sim());
    buffer.copy_from(filled(secret));
    buffer.sync_to_device();
    ASSERT_EQ(buffer.state(), BufferState::synchronized);
  }
  EXPECT_THAT(next_owner_reads(cpu, Location::host), ::testing::Each(0U));
  EXPECT_THAT(next_owner_reads(sim, Location::device), ::testing::Each(0U));
}

TEST_F(Erased, NothingOfAPinnedBufferIsLeft) {
  {
    Buffer buffer(words, on_sim(Location::pinned));
    buffer.copy_from(filled(secret));
    if (!buffer.is_pinned()) GTEST_SKIP() << "no memory can be locked here";
  }
  EXPECT_THAT(next_owner_reads(cpu, Location::pinned), ::testing::Each(0U));
}

TEST_F(Erased, NothingIsLeftInTheStagingChunks) {
  constexpr auto chunk = detail::Staging::chunk_bytes / sizeof(std::uint32_t);
  {
    Buffer buffer(2 * chunk, on_sim());
    buffer.copy_from(std::vector(2 * chunk, secret));
    buffer.sync_to_device();
    sim.synchronize();
    if (manager.pool(cpu, Location::pinned).statistics().total_allocations == 0) {
      GTEST_SKIP() << "no memory can be locked here";
    }
  }
  EXPECT_THAT(next_owner_reads(cpu, Location::pinned, chunk), ::testing::Each(0U));
}

TEST_F(Erased, NothingOfSpilledDataIsLeftInMemory) {
  manager.set_limit(cpu, Location::host, 2 * MiB);
  std::vector<Buffer> buffers;
  for (int i = 0; i < 2; ++i) {
    buffers.emplace_back(words, on_sim()).copy_from(filled(secret));
  }
  Buffer next(words, on_sim());
  next.allocate();
  auto const found = next.host();
  EXPECT_EQ(manager.statistics().spills, 1U);
  EXPECT_EQ(std::ranges::count(found, secret), 0);
  for (auto& buffer : buffers) buffer.free();
  EXPECT_THAT(next_owner_reads(cpu, Location::host), ::testing::Each(0U));
}

TEST_F(Erased, NothingOfAnEvictedCopyIsLeft) {
  manager.set_limit(sim, 2 * MiB);
  std::vector<Buffer> buffers;
  for (int i = 0; i < 3; ++i) {
    auto& buffer = buffers.emplace_back(words, on_sim());
    buffer.copy_from(filled(secret));
    buffer.sync_to_device();
  }
  EXPECT_GT(manager.statistics().reclaims, 0U);
  for (auto& buffer : buffers) buffer.free();
  EXPECT_THAT(next_owner_reads(sim, Location::device), ::testing::Each(0U));
}

TEST_F(Erased, NothingIsLeftWhereABufferGrew) {
  {
    Buffer buffer(words, on_sim());
    buffer.copy_from(filled(secret));
    buffer.resize(3 * words);
    EXPECT_THAT(next_owner_reads(cpu, Location::host), ::testing::Each(0U));
  }
}

}  // namespace
}  // namespace unimem::testing
