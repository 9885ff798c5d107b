#include "buffer/spilling_fixture.hpp"

#include <tuple>

// What counts as a refusal: each OutOfMemory that reaches who asked, once.

namespace unimem::testing {
namespace {

TEST(Refusals, OfHostMemoryAreCountedWithoutADirectory) {
  MemoryManager manager;
  manager.set_limit(device("cpu"), Location::host, MiB);
  EXPECT_THROW(std::ignore = manager.allocate<char>(2 * MiB, {.location = Location::host}), OutOfMemory);
  EXPECT_EQ(manager.statistics().refusals, 1U);
  EXPECT_THROW(std::ignore = manager.acquire(device("cpu"), Location::host, 2 * MiB), OutOfMemory);
  EXPECT_EQ(manager.statistics().refusals, 2U);
}

TEST_F(Spilling, RequestsAboveTheLimitCountAsRefusals) {
  room_for(1);
  EXPECT_THROW(std::ignore = manager.acquire(device("cpu"), Location::host, 2 * MiB), OutOfMemory);
  EXPECT_EQ(manager.statistics().refusals, 1U);
}

TEST_F(Spilling, FallingBackToPageableMemoryIsNoRefusal) {
  room_for(1, Location::pinned);
  auto options = named("pinned");
  options.pinned = true;
  Buffer held(words, options);
  [[maybe_unused]] auto const view = held.host_view();
  Buffer next(words, options);
  next.copy_from(filled(1));
  EXPECT_FALSE(next.is_pinned());
  EXPECT_GE(manager.statistics().refused_pinnings, 1U);
  EXPECT_EQ(manager.statistics().refusals, 0U);
  room_for(1);
  [[maybe_unused]] auto const also = next.host_view();
  Buffer none(words, options);
  EXPECT_THROW(none.copy_from(filled(1)), OutOfMemory);
  EXPECT_EQ(manager.statistics().refusals, 1U) << "neither pinned nor ordinary";
}

TEST(Refusals, AreCountedOnceWhenTheHostIsFull) {
  auto& sim = make_sim({.memory_bytes = 64 * MiB});
  MemoryManager manager;
  manager.set_limit(sim, MiB);
  manager.set_limit(device("cpu"), Location::host, MiB / 2);
  BufferOptions options;
  options.manager = &manager;
  options.device = &sim;
  UnifiedBuffer<std::uint32_t> there(words, options);
  there.allocate(false, true);
  there.mark_device_dirty();
  UnifiedBuffer<std::uint32_t> wanted(words, options);
  EXPECT_THROW(wanted.allocate(false, true), OutOfMemory);
  auto const counts = manager.statistics();
  EXPECT_EQ(counts.failed_reclaims, 1U);
  EXPECT_EQ(counts.refusals, 1U);
}

TEST(Refusals, SayThatHostMemoryIsInUse) {
  /// One whose operation does not end.
  class Busy final : public Resident {
   public:
    [[nodiscard]] Evictable evictable(MemoryPlace, std::span<const ByteRange>) noexcept override {
      Evictable offered;
      offered.bytes = MiB;
      offered.busy = true;
      return offered;
    }
    std::size_t evict(MemoryPlace, std::span<const ByteRange>) override { return 0; }
  } busy;
  Directory const directory;
  MemoryManager manager{ManagerOptions{.spill = {.directory = directory.path()}}};
  manager.set_limit(device("cpu"), Location::host, MiB);
  auto const held = manager.acquire(device("cpu"), Location::host, MiB);
  manager.add_resident(busy);
  try {
    std::ignore = manager.acquire(device("cpu"), Location::host, MiB);
    ADD_FAILURE() << "all of it is in use";
  } catch (OutOfMemory const& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("others were using 1 MiB and were waited for"));
  }
  EXPECT_EQ(manager.statistics().refusals, 1U);
  manager.remove_resident(busy);
}

}  // namespace
}  // namespace unimem::testing
