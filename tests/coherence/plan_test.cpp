#include "coherence/owner.hpp"

#include <unimem/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace unimem::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr ByteRange whole{0, 100};
constexpr Place host = host_place, device = 1, second_device = 2;

class CoherencePlan : public ::testing::Test {
 protected:
  CoherencePlan() {
    coherence.add_device();
    coherence.add_device();
  }

  Coherence coherence{whole.end};
};

TEST_F(CoherencePlan, TheFirstAccessAdoptsTheWholeBuffer) {
  write(coherence, device, {20, 40});
  EXPECT_TRUE(coherence.has_data());
  EXPECT_EQ(coherence.valid(device), ByteRanges(whole));
  EXPECT_EQ(coherence.written(device), ByteRanges({20, 40}));
  EXPECT_THAT(read(coherence, host, whole).copies, ElementsAre(PlannedCopy{device, host, whole}))
      << "undefined contents, but from now on the same everywhere";
}

TEST_F(CoherencePlan, APlanThatIsDroppedChangesNothing) {
  write(coherence, host, whole);
  auto const before = everything_seen(coherence);
  (void)coherence.plan_access(device, whole, Intent::read_write, one_second_per_byte);
  (void)coherence.plan_mark(device, whole, one_second_per_byte);
  (void)coherence.plan_release(host, device, one_second_per_byte);
  EXPECT_EQ(everything_seen(coherence), before);
}

// --- where bytes come from

TEST_F(CoherencePlan, EveryPieceComesFromTheCheapestPlace) {
  write(coherence, host, whole);
  read(coherence, device, {30, 60});
  auto const peers_are_near = [](Place from, Place, std::size_t bytes) {
    return static_cast<double>(bytes) * (from == host ? 10 : 1);
  };
  EXPECT_THAT(read(coherence, second_device, whole, peers_are_near).copies,
              ElementsAre(PlannedCopy{host, second_device, {0, 30}}, PlannedCopy{device, second_device, {30, 60}},
                          PlannedCopy{host, second_device, {60, 100}}));
}

TEST_F(CoherencePlan, AmongEqualsTheLowestPlaceIsTheSource) {
  write(coherence, device, whole);
  read(coherence, host, whole);
  EXPECT_THAT(read(coherence, second_device, whole).copies, ElementsAre(PlannedCopy{host, second_device, whole}));
}

TEST_F(CoherencePlan, CostIsNotAskedWithoutAChoice) {
  write(coherence, host, whole);
  auto const never = [](Place, Place, std::size_t) -> double { throw std::runtime_error("asked"); };
  EXPECT_THAT(read(coherence, device, whole, never).copies, ElementsAre(PlannedCopy{host, device, whole}));
}

TEST_F(CoherencePlan, APlaceThatSharesStorageIsPreferred) {
  auto const twin = coherence.add_device(device);
  EXPECT_TRUE(coherence.shares_storage(twin, device));
  EXPECT_FALSE(coherence.shares_storage(twin, host));
  write(coherence, host, whole);
  read(coherence, device, {0, 50});
  auto const host_is_near = [](Place from, Place, std::size_t) { return from == host ? 0.0 : 1000.0; };
  EXPECT_THAT(read(coherence, twin, whole, host_is_near).copies,
              ElementsAre(PlannedCopy{device, twin, {0, 50}, true}, PlannedCopy{host, twin, {50, 100}}));
}

TEST_F(CoherencePlan, SharingStorageIsTransitive) {
  auto const first = coherence.add_device(host), second = coherence.add_device(first);
  EXPECT_TRUE(coherence.shares_storage(second, host));
  write(coherence, second, whole);
  EXPECT_THAT(read(coherence, first, whole).copies, ElementsAre(PlannedCopy{second, first, whole, true}));
}

// --- joining

/// The device has all but two pieces, which the host wrote, with a gap between them.
class JoinedCopies : public CoherencePlan {
 protected:
  JoinedCopies() {
    write(coherence, host, whole);
    read(coherence, device, whole);
    write(coherence, host, {10, 20});
    write(coherence, host, {30, 40});
  }
};

TEST_F(JoinedCopies, AreOneWhereTheGapCostsLess) {
  EXPECT_THAT(read(coherence, device, whole, latency_of(10)).copies, ElementsAre(PlannedCopy{host, device, {10, 40}}));
}

TEST_F(JoinedCopies, StayTwoWhereTheGapCostsMore) {
  EXPECT_THAT(read(coherence, device, whole, latency_of(9)).copies,
              ElementsAre(PlannedCopy{host, device, {10, 20}}, PlannedCopy{host, device, {30, 40}}));
}

TEST_F(JoinedCopies, NeverCarryBytesThatTheSourceHasStale) {
  write(coherence, device, {24, 25});
  EXPECT_THAT(read(coherence, device, whole, latency_of(1000)).copies,
              ElementsAre(PlannedCopy{host, device, {10, 20}}, PlannedCopy{host, device, {30, 40}}));
  EXPECT_EQ(coherence.written(device), ByteRanges({24, 25}));
}

TEST_F(JoinedCopies, ComeFromEitherSourceThatHasEverything) {
  // The second device has the first piece and is nearer by a little; only the host has both.
  read(coherence, second_device, {10, 20});
  auto const cost = [](Place from, Place, std::size_t bytes) {
    return 100.0 + static_cast<double>(bytes) * (from == host ? 1.1 : 1);
  };
  EXPECT_THAT(read(coherence, device, whole, cost).copies, ElementsAre(PlannedCopy{host, device, {10, 40}}));
}

TEST_F(JoinedCopies, NeverSwallowAFence) {
  auto const twin = coherence.add_device(device);
  read(coherence, twin, {0, 10});
  read(coherence, twin, {40, 100});
  EXPECT_THAT(read(coherence, twin, whole, latency_of(1000)).copies,
              ElementsAre(PlannedCopy{host, twin, {10, 20}}, PlannedCopy{device, twin, {20, 30}, true},
                          PlannedCopy{host, twin, {30, 40}}));
}

TEST_F(JoinedCopies, TurnAThousandSmallWritesIntoOneUpload) {
  Coherence large(100'000);
  large.add_device();
  write(large, host, {0, 100'000});
  read(large, device, {0, 100'000});
  for (std::size_t at = 0; at < 100'000; at += 100) write(large, host, {at, at + 50});
  ASSERT_EQ(large.written(host).ranges().size(), 1000U);
  EXPECT_THAT(read(large, device, {0, 100'000}, latency_of(64)).copies,
              ElementsAre(PlannedCopy{host, device, {0, 99'950}}));
}

// --- releasing

TEST_F(CoherencePlan, ReleasingSavesWhatIsValidNowhereElse) {
  write(coherence, host, whole);
  write(coherence, device, {20, 60});
  read(coherence, second_device, {50, 60});
  EXPECT_THAT(release(coherence, device, host).copies, ElementsAre(PlannedCopy{device, host, {20, 50}}));
  EXPECT_THAT(coherence.lost().ranges(), IsEmpty());
  EXPECT_EQ(coherence.valid(second_device), ByteRanges({50, 60}));
}

TEST_F(CoherencePlan, ReleasingToSharedStorageKeepsOtherCopies) {
  auto const cpu = coherence.add_device(host);
  write(coherence, device, whole);
  read(coherence, host, {0, 20});
  read(coherence, cpu, {10, 60});
  EXPECT_THAT(release(coherence, cpu, host).copies, ElementsAre(PlannedCopy{cpu, host, {20, 60}, true}));
  EXPECT_EQ(coherence.valid(host), ByteRanges({0, 60}));
  EXPECT_THAT(coherence.written(device).ranges(), ElementsAre(ByteRange{60, 100})) << "the host has seen the others";
}

// --- what is lost

TEST_F(CoherencePlan, BytesOfLostStorageAreNeverRead) {
  write(coherence, host, whole);
  write(coherence, device, {20, 60});
  coherence.remove_storage(device);
  auto const plan = coherence.plan_access(host, {50, 80}, Intent::read, one_second_per_byte);
  EXPECT_EQ(plan.lost, (ByteRange{50, 60}));
  EXPECT_THROW(coherence.commit(plan), std::logic_error);
  EXPECT_EQ(coherence.plan_access(second_device, whole, Intent::read_write, one_second_per_byte).lost,
            (ByteRange{20, 60}));
  EXPECT_EQ(coherence.plan_access(host, {60, 80}, Intent::read, one_second_per_byte).lost, std::nullopt);
  EXPECT_EQ(coherence.plan_access(host, {30, 30}, Intent::read, one_second_per_byte).lost, std::nullopt);
}

TEST_F(CoherencePlan, LostBytesCanBeWrittenAgain) {
  write(coherence, device, whole);
  coherence.remove_storage(device);
  write(coherence, host, {0, 70});
  EXPECT_EQ(coherence.lost(), ByteRanges({70, 100}));
  EXPECT_THAT(read(coherence, device, {0, 70}).copies, ElementsAre(PlannedCopy{host, device, {0, 70}}));
}

// --- what is refused

TEST_F(CoherencePlan, IsRefusedWhereItsPlaceHasNoStorage) {
  EXPECT_THROW(coherence.commit(coherence.plan_access(host, whole, Intent::read, one_second_per_byte)),
               std::logic_error);
  EXPECT_FALSE(coherence.has_data());
  write(coherence, host, whole);
  EXPECT_THROW(coherence.commit(coherence.plan_release(host, device, one_second_per_byte)), std::logic_error);
  EXPECT_EQ(coherence.valid(device), ByteRanges());
}

TEST_F(CoherencePlan, IsRefusedOnceItsSourceIsStale) {
  write(coherence, host, whole);
  auto const plan = coherence.plan_access(device, {0, 50}, Intent::read, one_second_per_byte);
  write(coherence, second_device, {49, 60});
  coherence.add_storage(device);
  auto const before = everything_seen(coherence);
  EXPECT_THROW(coherence.commit(plan), std::logic_error);
  EXPECT_EQ(everything_seen(coherence), before);
}

TEST_F(CoherencePlan, IsRefusedOnceItBringsTooLittle) {
  write(coherence, host, whole);
  read(coherence, device, whole);
  auto const plan = coherence.plan_access(device, whole, Intent::read, one_second_per_byte);
  write(coherence, host, {0, 1});
  EXPECT_THROW(coherence.commit(plan), std::logic_error);
}

TEST_F(CoherencePlan, OfAnUnknownPlaceOrRangeIsInvalid) {
  auto const cost = one_second_per_byte;
  EXPECT_THROW((void)coherence.plan_access(3, whole, Intent::read, cost), InvalidArgument);
  EXPECT_THROW((void)coherence.plan_access(host, {0, 101}, Intent::write, cost), InvalidArgument);
  EXPECT_THROW((void)coherence.plan_mark(host, {50, 40}, cost), InvalidArgument);
  EXPECT_THROW((void)coherence.plan_release(host, 3, cost), InvalidArgument);
  EXPECT_THROW((void)coherence.plan_release(device, device, cost), InvalidArgument);
  EXPECT_THROW((void)coherence.valid(3), InvalidArgument);
  EXPECT_THROW(coherence.add_device(7), InvalidArgument);
  EXPECT_EQ(coherence.place_count(), 3U);
}

TEST_F(CoherencePlan, StorageComesAndGoesOnce) {
  coherence.add_storage(device);
  EXPECT_THROW(coherence.add_storage(device), std::logic_error);
  coherence.remove_storage(device);
  EXPECT_THROW(coherence.remove_storage(device), std::logic_error);
  EXPECT_FALSE(coherence.has_storage(device));
}

}  // namespace
}  // namespace unimem::testing
