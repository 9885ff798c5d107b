#include <unimem/core/error.hpp>
#include <unimem/manager/placement.hpp>

#include "core/sizes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace unimem {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A device with memory of its own behind links that are as they are told.
PlacementMachine behind(double bytes_per_second) {
  PlacementMachine machine;
  machine.to_device = Link{"host", "far", bytes_per_second, 10e-6, false, LinkSource::configured};
  machine.to_host = Link{"far", "host", bytes_per_second, 10e-6, false, LinkSource::configured};
  machine.host_copy_bytes_per_second = 8e9;
  machine.pin_bytes_per_second = 2e9;
  return machine;
}

/// One buffer of a megabyte that the host fills and a device reads and changes, a thousand times in one second.
RecordedUse hot() {
  RecordedUse use;
  use.buffers = 1;
  use.host_reads = use.host_writes = use.device_reads = use.device_writes = 1000;
  use.uploads = use.downloads = 1000;
  use.uploaded_bytes = use.downloaded_bytes = 1000 * MiB;
  use.seconds_alive = 1;
  return use;
}

Placement placed(PlacementQuestion const& question, PlacementMachine const& machine = {}, RecordedUse const& use = {}) {
  return decide_placement(question, machine, use).placement;
}

TEST(PlacementTable, HoldsAtBothSidesOfBothBoundaries) {
  EXPECT_EQ(placed({.bytes = 0}), Placement::host_pinned);
  EXPECT_EQ(placed({.bytes = 64 * KiB - 1}), Placement::host_pinned);
  EXPECT_EQ(placed({.bytes = 64 * KiB}), Placement::device_local);
  EXPECT_EQ(placed({.bytes = 16 * MiB}), Placement::device_local);
  EXPECT_EQ(decide_placement({.bytes = 16 * MiB}).rule, PlacementRule::medium);
  EXPECT_EQ(placed({.bytes = 16 * MiB + 1}), Placement::device_local);
  EXPECT_EQ(decide_placement({.bytes = 16 * MiB + 1}).rule, PlacementRule::large);
}

TEST(PlacementTable, ReadOnlyDataIsOptimizedAtEverySize) {
  for (std::size_t const bytes : {std::size_t{1}, MiB, 100 * MiB}) {
    EXPECT_EQ(placed({.bytes = bytes, .access = AccessPattern::read_only}), Placement::read_only_optimized);
  }
}

TEST(PlacementTable, IsWhatIsDecidedWhenNothingIsKnown) {
  for (std::size_t const bytes : {std::size_t{1}, 64 * KiB, MiB, 16 * MiB, 17 * MiB, 1024 * MiB}) {
    for (unsigned pattern = 0; pattern <= static_cast<unsigned>(AccessPattern::read_write); ++pattern) {
      auto const access = static_cast<AccessPattern>(pattern);
      auto const decision = decide_placement({.bytes = bytes, .access = access}, behind(12e9));
      EXPECT_EQ(decision.placement, placement_by_table(bytes, access)) << bytes << " bytes, " << to_string(access);
      EXPECT_FALSE(decision.from_use());
      EXPECT_FALSE(decision.degraded());
    }
  }
}

TEST(Placements, AreNeverAutomaticAndComeToALocation) {
  for (unsigned number = 0; number <= static_cast<unsigned>(Placement::random_access_optimized); ++number) {
    auto const asked = static_cast<Placement>(number);
    PlacementMachine machine;
    machine.has_unified_memory = true;
    auto const decision = decide_placement({.bytes = MiB, .asked = asked}, machine);
    EXPECT_NE(decision.placement, Placement::automatic);
    EXPECT_EQ(decision.asked, asked);
    EXPECT_EQ(decision.location, location_of(decision.placement));
    if (asked != Placement::automatic) {
      EXPECT_EQ(decision.placement, asked) << "whatever else is known";
    }
  }
  EXPECT_THROW(static_cast<void>(location_of(Placement::automatic)), InvalidArgument);
}

TEST(Placements, ThatAreNoneAreRefusedByNumber) {
  try {
    static_cast<void>(decide_placement({.bytes = 1, .asked = static_cast<Placement>(77)}));
    FAIL() << "taken";
  } catch (InvalidArgument const& error) {
    EXPECT_THAT(error.what(), HasSubstr("77"));
  }
  EXPECT_THROW(static_cast<void>(decide_placement({.bytes = 1, .access = static_cast<AccessPattern>(10)})),
               InvalidArgument);
  EXPECT_EQ(to_string(static_cast<Placement>(77)), "no placement");
  EXPECT_EQ(to_string(Placement::streaming_optimized), "streaming_optimized");
  EXPECT_EQ(to_string(AccessPattern::read_write), "read_write");
}

// Each input alone: everything else is the same on both sides.

TEST(PlacementInputs, TheSizeAloneChangesTheOutcome) {
  EXPECT_NE(placed({.bytes = 64 * KiB - 1}, behind(12e9)), placed({.bytes = 64 * KiB}, behind(12e9)));
}

TEST(PlacementInputs, TheAccessPatternAloneChangesTheOutcome) {
  EXPECT_NE(placed({.bytes = MiB, .access = AccessPattern::read_only}), placed({.bytes = MiB}));
  auto machine = behind(12e9);
  machine.has_unified_memory = true;
  EXPECT_EQ(placed({.bytes = 100 * MiB, .access = AccessPattern::random}, machine), Placement::unified);
  EXPECT_EQ(placed({.bytes = 100 * MiB, .access = AccessPattern::sequential}, machine), Placement::device_local);
}

TEST(PlacementInputs, FreeDeviceMemoryAloneChangesTheOutcome) {
  auto machine = behind(12e9);
  machine.available_bytes = MiB;
  EXPECT_EQ(placed({.bytes = MiB}, machine), Placement::device_local);
  machine.available_bytes = MiB - 1;
  auto const decision = decide_placement({.bytes = MiB}, machine);
  EXPECT_EQ(decision.placement, Placement::host_pinned);
  EXPECT_THAT(decision.why(), HasSubstr("does not fit"));
}

TEST(PlacementInputs, WhatTheMachineHasAloneChangesTheOutcome) {
  PlacementMachine shared;
  shared.shares_host_memory = true;
  EXPECT_EQ(placed({.bytes = MiB}, shared), Placement::host_accessible);
  shared.has_unified_memory = true;
  EXPECT_EQ(placed({.bytes = MiB}, shared), Placement::unified);
  PlacementMachine unlocked;
  unlocked.can_pin = false;
  auto const decision = decide_placement({.bytes = 100}, unlocked);
  EXPECT_EQ(decision.placement, Placement::host_accessible);
  EXPECT_EQ(decision.wanted, Placement::host_pinned);
  EXPECT_TRUE(decision.degraded());
  EXPECT_THAT(decision.why(), HasSubstr("instead of host_pinned"));
}

TEST(PlacementInputs, PinnedThenPageableMemoryReplacesMissingUnified) {
  auto decision = decide_placement({.bytes = MiB, .asked = Placement::unified});
  EXPECT_EQ(decision.placement, Placement::host_pinned);
  EXPECT_EQ(decision.location, Location::pinned);
  EXPECT_TRUE(decision.degraded());
  EXPECT_THAT(decision.why(), HasSubstr("no unified memory"));
  PlacementMachine bare;
  bare.can_pin = false;
  EXPECT_EQ(placed({.bytes = MiB, .asked = Placement::unified}, bare), Placement::host_accessible);
}

TEST(PlacementInputs, TheLinksAloneChangeTheOutcome) {
  // Blocks overlap with a slow link, and a fast one waits for them. One buffer of 64 MiB, so that overlap counts.
  auto use = hot();
  use.uploads = use.downloads = 3;
  use.uploaded_bytes = use.downloaded_bytes = 3 * 64 * MiB;
  use.host_writes = 4;
  EXPECT_EQ(placed({.bytes = 64 * MiB}, behind(0.5e9), use), Placement::device_local);
  auto const decision = decide_placement({.bytes = 64 * MiB}, behind(50e9), use);
  EXPECT_EQ(decision.placement, Placement::host_pinned);
  EXPECT_EQ(decision.rule, PlacementRule::copied_often);
  EXPECT_GT(decision.pageable_seconds, decision.pinned_seconds);
  // Without links nothing is reckoned, rather than guessed.
  EXPECT_EQ(placed({.bytes = 64 * MiB}, {}, use), Placement::device_local);
}

TEST(PlacementInputs, BytesMovedAloneChangeTheOutcome) {
  auto use = hot();
  EXPECT_EQ(placed({.bytes = MiB}, behind(12e9), use), Placement::host_pinned);
  use.uploaded_bytes = use.downloaded_bytes = 0;
  use.uploads = use.downloads = 0;
  EXPECT_EQ(placed({.bytes = MiB}, behind(12e9), use), Placement::device_local);
  use.uploads = 1;
  use.uploaded_bytes = 64;
  EXPECT_EQ(placed({.bytes = MiB}, behind(12e9), use), Placement::device_local);
}

TEST(PlacementInputs, TheLifetimeAloneChangesTheOutcome) {
  auto use = hot();
  use.seconds_alive = 1;
  EXPECT_EQ(placed({.bytes = MiB}, behind(12e9), use), Placement::host_pinned);
  use.seconds_alive = 30 * 86'400.0;
  EXPECT_EQ(placed({.bytes = MiB}, behind(12e9), use), Placement::device_local) << "a second saved in a month";
}

TEST(PlacementInputs, HostUsesAloneChangeTheOutcome) {
  auto use = hot();
  use.host_reads = use.host_writes = 0;
  EXPECT_EQ(placed({.bytes = 100}, behind(12e9), use), Placement::device_local) << "small, but never on the host";
  use.host_reads = 1;
  EXPECT_EQ(placed({.bytes = 100}, behind(12e9), use), Placement::host_pinned);
  // Filled once, or again and again.
  auto read = hot();
  read.device_writes = 0;
  read.host_writes = 1;
  EXPECT_EQ(placed({.bytes = MiB}, behind(12e9), read), Placement::read_only_optimized);
  read.host_writes = 1000;
  EXPECT_EQ(placed({.bytes = MiB}, behind(12e9), read), Placement::host_pinned);
}

TEST(PlacementInputs, DeviceUsesAloneChangeTheOutcome) {
  auto use = hot();
  use.device_reads = use.device_writes = 0;
  EXPECT_EQ(placed({.bytes = MiB}, behind(12e9), use), Placement::host_pinned) << "what is uploaded belongs there";
  use.uploads = 0;
  use.uploaded_bytes = 0;
  EXPECT_EQ(placed({.bytes = MiB}, behind(12e9), use), Placement::host_accessible);
  auto read = hot();
  read.host_writes = 1;
  read.device_writes = 0;
  EXPECT_EQ(placed({.bytes = MiB}, behind(12e9), read), Placement::read_only_optimized);
  read.device_writes = 1;
  EXPECT_EQ(placed({.bytes = MiB}, behind(12e9), read), Placement::host_pinned);
  read.device_writes = 0;
  read.device_reads = 1;
  EXPECT_EQ(placed({.bytes = MiB}, behind(12e9), read), Placement::host_pinned) << "read once is not again and again";
}

TEST(PlacementInputs, AFewUsesAreChance) {
  RecordedUse use;
  use.buffers = 1;
  use.host_reads = 7;
  EXPECT_EQ(placed({.bytes = MiB}, behind(12e9), use), Placement::device_local);
  use.host_reads = 8;
  EXPECT_EQ(placed({.bytes = MiB}, behind(12e9), use), Placement::host_accessible);
}

TEST(PlacementInputs, OfManyBuffersEachCountsByTheMean) {
  auto const one = hot();
  RecordedUse many;
  for (int i = 0; i < 100; ++i) many += one;
  auto const decision = decide_placement({.bytes = MiB}, behind(12e9), one);
  auto const of_many = decide_placement({.bytes = MiB}, behind(12e9), many);
  EXPECT_EQ(of_many.placement, decision.placement);
  EXPECT_NEAR(of_many.pageable_seconds, decision.pageable_seconds, 1e-9);
  EXPECT_NEAR(of_many.pinned_seconds, decision.pinned_seconds, 1e-9);
}

TEST(PlacementInputs, ReasonsNameTheDecidingFigures) {
  auto const often = decide_placement({.bytes = MiB}, behind(12e9), hot()).why();
  EXPECT_THAT(often, HasSubstr("host_pinned: "));
  EXPECT_THAT(often, HasSubstr("ms each from pageable memory"));
  auto use = hot();
  use.device_reads = use.device_writes = use.uploads = use.uploaded_bytes = 0;
  EXPECT_THAT(decide_placement({.bytes = MiB}, behind(12e9), use).why(), HasSubstr("2000 uses by the host and none"));
  EXPECT_EQ(decide_placement({.bytes = 4096}).why(), "host_pinned: 4 KiB is less than 64 KiB");
}

TEST(PlacementRecommendations, AreTheTableWhenNothingIsRecorded) {
  auto const recommended = recommend_placements();
  EXPECT_EQ(recommended, PlacementRecommendations{});
  EXPECT_THAT(recommended.hints, IsEmpty());
  EXPECT_EQ(recommend_placements(behind(12e9)), PlacementRecommendations{});
}

TEST(PlacementRecommendations, ChangeWithUseAndSayWhy) {
  UseBySize use;
  use.medium = hot();
  auto const recommended = recommend_placements(behind(12e9), use);
  EXPECT_EQ(recommended.medium_buffers, Placement::host_pinned);
  EXPECT_EQ(recommended.small_buffers, Placement::host_pinned);
  EXPECT_EQ(recommended.large_buffers, Placement::device_local);
  EXPECT_THAT(recommended.hints, Contains(HasSubstr("medium buffers: host_pinned")));
  EXPECT_THAT(to_string(recommended), HasSubstr("hint: medium buffers"));
}

TEST(PlacementRecommendations, SayWhatTheMachineLacks) {
  PlacementMachine machine;
  machine.can_pin = false;
  auto const recommended = recommend_placements(machine);
  EXPECT_EQ(recommended.small_buffers, Placement::host_accessible);
  EXPECT_EQ(recommended.frequently_accessed, Placement::host_accessible);
  EXPECT_THAT(recommended.hints, Contains(HasSubstr("locks no pages")));
}

}  // namespace
}  // namespace unimem
