#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "core/sizes.hpp"
#include "device/without_locking.hpp"

#include <algorithm>
#include <limits>
#include <thread>
#include <tuple>

namespace unimem::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Allocations : public BufferTest {
 protected:
  UnifiedBuffer<std::uint8_t> placed(std::size_t bytes, Placement placement = Placement::automatic,
                                     AccessPattern access = AccessPattern::unknown, std::string name = {}) {
    return manager.allocate<std::uint8_t>(
        bytes, {.placement = placement, .access = access, .device = &sim, .name = std::move(name)});
  }

  [[nodiscard]] UsageCounts line(std::string const& device, Location location, std::string const& name) const {
    for (auto const& one : manager.usage().lines) {
      if (one.device == device && one.location == location && one.name == name) return one.counts;
    }
    return {};
  }

  std::string const far{sim.id()};
};

TEST_F(Allocations, TheLocationAskedForIsTheLocationReported) {
  for (auto const location : {Location::device, Location::host, Location::pinned}) {
    auto const buffer = manager.allocate<int>(100, {.location = location, .device = &sim, .name = {}});
    EXPECT_EQ(buffer.location(), location);
    EXPECT_EQ(buffer.state(), location == Location::device ? BufferState::device_only : BufferState::host_only);
    EXPECT_EQ(buffer.is_pinned(), location == Location::pinned);
    ASSERT_TRUE(buffer.placement());
    EXPECT_EQ(buffer.placement()->location, location);
    EXPECT_FALSE(buffer.placement()->degraded());
    EXPECT_EQ(manager.live().size(), 1U);
    EXPECT_EQ(manager.live().front().location, location);
  }
  auto const shared = manager.allocate<int>(100, {.location = Location::unified, .device = &device("cpu"), .name = {}});
  EXPECT_EQ(shared.location(), Location::unified);
}

TEST_F(Allocations, FollowThePlacementTableByDefault) {
  EXPECT_EQ(placed(100).location(), Location::pinned);
  EXPECT_EQ(placed(64 * KiB).location(), Location::device);
  EXPECT_EQ(placed(17 * MiB).location(), Location::device);
  auto const buffer = placed(MiB, Placement::automatic, AccessPattern::read_only);
  ASSERT_TRUE(buffer.placement());
  EXPECT_EQ(buffer.placement()->asked, Placement::automatic);
  EXPECT_EQ(buffer.placement()->placement, Placement::read_only_optimized);
  ASSERT_EQ(buffer.advice().size(), 1U);
  EXPECT_EQ(buffer.advice().front().advice, Advice::read_mostly);
  EXPECT_FALSE(UnifiedBuffer<int>(3, on_sim()).placement()) << "nobody decided anything";
}

TEST_F(Allocations, APlacementIsResolvedAndNeverAutomatic) {
  for (unsigned number = 0; number <= static_cast<unsigned>(Placement::random_access_optimized); ++number) {
    auto buffer = placed(MiB, static_cast<Placement>(number));
    ASSERT_TRUE(buffer.placement());
    EXPECT_NE(buffer.placement()->placement, Placement::automatic);
    EXPECT_EQ(buffer.placement()->asked, static_cast<Placement>(number));
    EXPECT_FALSE(buffer.placement()->why().empty());
    // Wherever it is, it works.
    buffer.fill(7);
    set(sim.default_queue(), UnifiedBuffer<std::uint32_t>(1, on_sim()).slice(0, 1), 0).wait();
    EXPECT_THAT(device_bytes(buffer, sim), Each(7));
  }
}

TEST_F(Allocations, PinnedMemoryReplacesMissingUnifiedMemory) {
  auto const buffer = placed(MiB, Placement::unified);
  EXPECT_EQ(buffer.location(), Location::pinned);
  EXPECT_TRUE(buffer.placement()->degraded());
  EXPECT_EQ(buffer.placement()->wanted, Placement::unified);
  EXPECT_EQ(manager.statistics().missing_unified, 1U);
  EXPECT_THROW(std::ignore = manager.allocate<int>(1, {.location = Location::unified, .device = &sim, .name = {}}),
               UnsupportedOperation)
      << "a location is a demand";
}

TEST_F(Allocations, PinningRefusedByALimitIsReported) {
  manager.pool(device("cpu"), Location::pinned).set_max_bytes(64 * KiB);
  auto const buffer = manager.allocate<std::uint8_t>(MiB, {.location = Location::pinned, .device = &sim, .name = {}});
  EXPECT_EQ(buffer.location(), Location::host);
  EXPECT_FALSE(buffer.is_pinned());
  EXPECT_EQ(buffer.placement()->location, Location::pinned) << "what was asked for";
  EXPECT_EQ(manager.statistics().refused_pinnings, 1U);
  EXPECT_THAT(manager.recommendations(sim).hints, Contains(HasSubstr("locked memory was refused")));
}

TEST_F(Allocations, PinnedMemoryIsBookedLimitedAndReturned) {
  auto& cpu = device("cpu");
  manager.set_limit(sim, Location::pinned, 4 * MiB);
  auto const pinned = [&] { return manager.pool(cpu, Location::pinned).statistics(); };
  auto const pageable = [&] { return manager.pool(cpu, Location::host).statistics(); };
  auto const at_pinned = [&](std::size_t count, std::string name) {
    return manager.allocate<std::uint32_t>(count, {.location = Location::pinned, .device = &sim, .name = name});
  };
  constexpr std::size_t count = 2 * MiB / 4;
  {
    auto locked = manager.allocate<std::uint32_t>(counting(count),
                                                  {.location = Location::pinned, .device = &sim, .name = "locked"});
    if (!locked.is_pinned()) GTEST_SKIP() << "the system locks no 2 MiB here";
    EXPECT_EQ(locked.location(), Location::pinned);
    EXPECT_EQ(pinned().active_allocations, 1U);
    EXPECT_EQ(pinned().active_bytes, 2 * MiB);
    EXPECT_EQ(pageable().active_bytes, 0U) << "nothing else stands in for it";
    EXPECT_EQ(manager.statistics().active_bytes, 2 * MiB);
    EXPECT_EQ(line("cpu", Location::pinned, "locked").live_bytes, 2 * MiB);
    EXPECT_EQ(locked.to_vector(), counting(count));
    EXPECT_EQ(device_bytes(locked, sim), counting(count));

    auto const second = at_pinned(count, "second");
    EXPECT_TRUE(second.is_pinned()) << "to the last byte of the limit";
    auto const third = at_pinned(1, "third");
    EXPECT_FALSE(third.is_pinned());
    EXPECT_EQ(third.location(), Location::host);
    EXPECT_EQ(third.placement()->location, Location::pinned) << "what was asked for";
    EXPECT_EQ(line("cpu", Location::host, "third").live_bytes, 4U);
    EXPECT_EQ(pinned().peak_reserved_bytes, 4 * MiB);
    EXPECT_EQ(manager.statistics().refused_pinnings, 1U);
    EXPECT_EQ(manager.statistics().refusals, 0U) << "ordinary memory serves";

    manager.set_limit(cpu, Location::host, MiB);
    EXPECT_THROW(std::ignore = at_pinned(count, "fourth"), OutOfMemory) << "neither pinned nor ordinary";
    EXPECT_EQ(manager.statistics().refusals, 1U);
  }
  EXPECT_THAT(manager.live(), IsEmpty());
  EXPECT_EQ(manager.statistics().active_bytes, 0U);
  EXPECT_EQ(pinned().active_allocations, 0U);
  auto const again = at_pinned(count, "again");
  EXPECT_TRUE(again.is_pinned());
  EXPECT_GT(pinned().pool_hits, 0U) << "what went back is lent again, locked as it is";
  manager.cleanup();
  EXPECT_EQ(pinned().reserved_bytes, 2 * MiB) << "and given back when nobody has it";
}

TEST_F(Allocations, PinningRefusedByTheSystemIsTriedAgain) {
  if (!locks_memory) GTEST_SKIP() << "sanitizers make mlock do nothing";
  auto const asked = [&] {
    return manager.allocate<std::uint32_t>(counting(MiB),
                                           {.location = Location::pinned, .device = &sim, .name = "wanted locked"});
  };
  bool const can_be_locked = asked().is_pinned();
  manager.cleanup();
  auto const refused_before = manager.statistics().refused_pinnings;
  without_locking([&] {
    auto buffer = asked();
    EXPECT_FALSE(buffer.is_pinned());
    EXPECT_EQ(buffer.location(), Location::host);
    EXPECT_EQ(buffer.placement()->location, Location::pinned) << "what was asked for";
    EXPECT_EQ(manager.pool(device("cpu"), Location::pinned).statistics().reserved_bytes, 0U);
    EXPECT_EQ(line("cpu", Location::host, "wanted locked").live_bytes, 4 * MiB);
    EXPECT_EQ(buffer.to_vector(), counting(MiB));
    EXPECT_EQ(device_bytes(buffer, sim), counting(MiB)) << "slower, and no less right";
  });
  EXPECT_EQ(manager.statistics().refused_pinnings, refused_before + 1);
  EXPECT_EQ(manager.statistics().refusals, 0U);
  EXPECT_THAT(manager.recommendations(sim).hints, Contains(HasSubstr("locked memory was refused")));
  EXPECT_EQ(manager.statistics().active_bytes, 0U);
  EXPECT_EQ(asked().is_pinned(), can_be_locked) << "the next one is asked for anew";
}

TEST_F(Allocations, AFullDeviceGetsHostMemory) {
  auto const first = placed(60 * MiB);
  EXPECT_EQ(first.location(), Location::device);
  auto const second = placed(5 * MiB);
  EXPECT_EQ(second.location(), Location::pinned);
  EXPECT_THAT(second.placement()->why(), HasSubstr("does not fit"));
  EXPECT_THAT(manager.recommendations(sim).hints, Contains(HasSubstr("are free: release what is not used")));
}

TEST_F(Allocations, ContradictoryLocationAndPlacementAreRefused) {
  try {
    std::ignore = manager.allocate<int>(
        5, {.location = Location::host, .placement = Placement::device_local, .device = &sim, .name = {}});
    FAIL() << "taken";
  } catch (InvalidArgument const& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("device_local"), HasSubstr("host")));
  }
  auto const both = manager.allocate<int>(
      5, {.location = Location::pinned, .placement = Placement::streaming_optimized, .device = &sim, .name = {}});
  EXPECT_EQ(both.placement()->placement, Placement::streaming_optimized);
  EXPECT_THROW(std::ignore = placed(1, static_cast<Placement>(99)), InvalidArgument);
  EXPECT_THROW(std::ignore = placed(1, Placement::automatic, static_cast<AccessPattern>(99)), InvalidArgument);
  EXPECT_THROW(
      std::ignore = manager.allocate<int>(5, {.location = static_cast<Location>(9), .device = &sim, .name = {}}),
      InvalidArgument);
}

TEST_F(Allocations, CountsThatOverflowAreRefusedByName) {
  for (auto const count : {std::numeric_limits<std::size_t>::max(), static_cast<std::size_t>(-1) / 8}) {
    try {
      std::ignore = manager.allocate<double>(count, {.device = &sim, .name = {}});
      FAIL() << count;
    } catch (InvalidArgument const& error) {
      EXPECT_THAT(error.what(), HasSubstr("count"));
    }
  }
  EXPECT_THAT(manager.live(), IsEmpty());
  EXPECT_EQ(manager.statistics().total_allocations, 0U);
}

TEST_F(Allocations, NothingIsLegalEverywhere) {
  for (auto const placement : {Placement::automatic, Placement::device_local, Placement::read_only_optimized}) {
    auto const buffer = placed(0, placement);
    EXPECT_EQ(buffer.size(), 0U);
  }
  auto const empty = manager.allocate<int>(std::span<const int>{}, {.device = &sim, .name = {}});
  EXPECT_TRUE(empty.to_vector().empty());
  EXPECT_THAT(manager.live(), IsEmpty());
}

TEST_F(Allocations, CopiedDataIsEqualWhereItIsPlaced) {
  auto const data = counting(50'000);
  for (auto const placement : {Placement::automatic, Placement::host_pinned, Placement::host_accessible}) {
    auto buffer = manager.allocate<std::uint32_t>(std::span<const std::uint32_t>(data),
                                                  {.placement = placement, .device = &sim, .name = {}});
    bool const on_device = placement == Placement::automatic;
    EXPECT_EQ(buffer.state(), on_device ? BufferState::synchronized : BufferState::host_dirty);
    EXPECT_EQ(moved(buffer.statistics()), (on_device ? Moved{200'000, 1, 0, 0} : Moved{}));
    EXPECT_EQ(buffer.to_vector(), data);
    EXPECT_EQ(device_bytes(buffer, sim), data);
  }
}

TEST_F(Allocations, TheBookListsBufferMemoryWhileItLives) {
  EXPECT_EQ(manager.usage().total.allocations, 0U);
  {
    UnifiedBuffer<std::uint32_t> buffer(1000, on_sim("booked"));
    EXPECT_THAT(manager.live(), IsEmpty()) << "lazy";
    buffer.copy_from(counting(1000));
    buffer.sync_to_device();
    auto const live = manager.live();
    ASSERT_EQ(live.size(), 2U);
    EXPECT_EQ(live[0].buffer, live[1].buffer);
    EXPECT_THAT(live, Each(AllOf(Field(&LiveAllocation::bytes, 4000U), Field(&LiveAllocation::name, Name("booked")))));
    EXPECT_EQ(line("cpu", Location::host, "booked").bytes_out, 4000U);
    EXPECT_EQ(line(far, Location::device, "booked").bytes_in, 4000U);
    EXPECT_EQ(line(far, Location::device, "booked").copies_in, 1U);
    EXPECT_EQ(line("cpu", Location::host, "booked").host_writes, 1U);
    set(sim.default_queue(), buffer.slice(0, 1000), 5).wait();
    EXPECT_EQ(line(far, Location::device, "booked").device_writes, 1U);
    EXPECT_THAT(std::as_const(buffer).host_view(), Each(5U));
    EXPECT_EQ(line("cpu", Location::host, "booked").bytes_in, 4000U);
    EXPECT_EQ(line("cpu", Location::host, "booked").host_reads, 1U);
    buffer.release_device();
    EXPECT_EQ(line(far, Location::device, "booked").live_bytes, 0U);
    EXPECT_EQ(line(far, Location::device, "booked").peak_bytes, 4000U);
  }
  auto const usage = manager.usage();
  EXPECT_EQ(usage.total.live_bytes, 0U);
  EXPECT_EQ(usage.total.allocations, 2U);
  EXPECT_EQ(usage.total.releases, 2U);
  EXPECT_EQ(usage.total.peak_bytes, 8000U);
  EXPECT_TRUE(manager.leak_report().empty());
}

TEST_F(Allocations, ResizeMigrationAndEvictionKeepTheBookRight) {
  auto buffer = synchronized(1000, "moving");
  buffer.resize(5000);
  EXPECT_EQ(line("cpu", Location::host, "moving").live_bytes + line(far, Location::device, "moving").live_bytes,
            20'000U)
      << "one side was kept";
  buffer.fill(3);
  buffer.sync_to_device(other);
  EXPECT_EQ(line(std::string(other.id()), Location::device, "moving").live_bytes, 20'000U);
  manager.set_limit(other, 1 * MiB);
  {
    UnifiedBuffer<std::uint8_t> large(MiB, on_sim("large"));
    std::ignore = large.device(other);  // the other one's copy makes room
    EXPECT_EQ(line(std::string(other.id()), Location::device, "moving").live_bytes, 0U);
  }
  buffer.free();
  EXPECT_EQ(manager.usage().total.live_bytes, 0U);
  EXPECT_EQ(manager.usage().total.allocations, manager.usage().total.releases);
}

TEST_F(Allocations, WrappedMemoryIsOnNoBook) {
  std::vector<int> memory(100);
  {
    auto buffer = manager.wrap(memory.data(), memory.size(), Location::host, Ownership::borrow());
    buffer.fill(3);
    EXPECT_THAT(manager.live(), IsEmpty());
  }
  EXPECT_THAT(memory, Each(3));
}

TEST_F(Allocations, MarksAndMappedWritesCountAsUses) {
  auto buffer = placed(MiB, Placement::device_local, AccessPattern::unknown, "marked");
  buffer.allocate(true, true);
  buffer.mark_device_dirty();
  buffer.sync_to_host();
  EXPECT_EQ(line(far, Location::device, "marked").device_writes, 1U);
  buffer.mark_host_dirty();
  EXPECT_EQ(line("cpu", Location::host, "marked").host_writes, 1U);
  {
    auto const seen = buffer.map(MapMode::read);
    auto written = buffer.map(MapMode::write);
    written[0] = 1;
  }
  EXPECT_EQ(line("cpu", Location::host, "marked").host_writes, 2U);
  EXPECT_EQ(line("cpu", Location::host, "marked").device_writes, 0U);
  EXPECT_EQ(line(far, Location::device, "marked").host_writes, 0U);
  auto const use = manager.place(sim, {.bytes = MiB}, Name("marked")).use;
  EXPECT_EQ(use.host_writes, 2U);
  EXPECT_EQ(use.device_writes, 1U);
}

TEST_F(Allocations, RecordedUseOfANameDecidesLaterPlacement) {
  auto const wanted = [&](std::string name) { return manager.place(sim, {.bytes = MiB}, Name(std::move(name))); };
  EXPECT_EQ(wanted("results").rule, PlacementRule::medium);
  for (int i = 0; i < 3; ++i) {
    auto buffer = placed(MiB, Placement::device_local, AccessPattern::unknown, "results");
    for (int k = 0; k < 4; ++k) {
      std::ignore = buffer.host();
      buffer.mark_host_dirty();
    }
  }
  auto const on_host = wanted("results");
  EXPECT_EQ(on_host.rule, PlacementRule::never_on_device) << on_host.why();
  EXPECT_EQ(on_host.placement, Placement::host_accessible);
  EXPECT_EQ(wanted("others").rule, PlacementRule::medium) << "of another name nothing is known";
  auto const next = placed(MiB, Placement::automatic, AccessPattern::unknown, "results");
  EXPECT_EQ(next.location(), Location::host);
  EXPECT_THAT(next.placement()->why(), HasSubstr("none on a device"));
}

TEST_F(Allocations, UploadsAloneForbidPlacementOnTheHost) {
  auto buffer = placed(MiB, Placement::device_local, AccessPattern::unknown, "hot");
  for (int i = 0; i < 12; ++i) {
    std::ranges::fill(buffer.host(), std::uint8_t{1});
    if (i % 2 == 0) {
      buffer.sync_to_device();
    } else {
      buffer.prefetch(sim).wait();
    }
  }
  auto const decision = manager.place(sim, {.bytes = MiB}, Name("hot"));
  EXPECT_GE(decision.use.host_uses(), 12U);
  EXPECT_EQ(decision.use.device_uses(), 0U);
  EXPECT_EQ(decision.use.uploads, 12U);
  EXPECT_NE(decision.location, Location::host) << decision.why();
}

TEST_F(Allocations, FrequentCopiesOverFastLinksSuggestPinnedMemory) {
  auto& fast = make_sim(parse_sim_options("memory=64MiB,h2d=64GB/s,d2h=64GB/s"));
  for (int i = 0; i < 2; ++i) {
    auto buffer = manager.allocate<std::uint32_t>(
        MiB / 4, {.placement = Placement::device_local, .device = &fast, .name = "ping-pong"});
    for (int k = 0; k < 30; ++k) {
      buffer.host()[0] = 1;
      add(fast.default_queue(), buffer.slice(0, MiB / 4), 1).wait();
      EXPECT_EQ(std::as_const(buffer).host_view()[0], 2U);
    }
  }
  auto const decision = manager.place(fast, {.bytes = MiB}, Name("ping-pong"));
  EXPECT_EQ(decision.use.buffers, 2U);
  EXPECT_GE(decision.use.uploads, 60U);
  EXPECT_GE(decision.use.device_writes, 60U);
  EXPECT_GT(decision.pageable_seconds, 0);
  EXPECT_EQ(decision.rule, PlacementRule::copied_often) << decision.why();
  EXPECT_EQ(manager.recommendations(fast).medium_buffers, Placement::host_pinned);
}

TEST_F(Allocations, UsageAddsUpOnceManyThreadsEnd) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < 50; ++k) {
        auto buffer = placed(static_cast<std::size_t>(1 + k * 100), Placement::automatic, AccessPattern::unknown,
                             "thread " + std::to_string(i % 3));
        buffer.fill(1);
        buffer.sync_to_device();
      }
    });
  }
  threads.clear();
  auto const usage = manager.usage();
  EXPECT_EQ(usage.total.allocations, usage.total.releases);
  EXPECT_GE(usage.total.allocations, 800U);
  EXPECT_EQ(usage.total.live_bytes, 0U);
  EXPECT_EQ(manager.statistics().active_allocations, 0U);
}

}  // namespace
}  // namespace unimem::testing
