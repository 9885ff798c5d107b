#include "coherence/owner.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace unimem::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr ByteRange whole{0, 100};
constexpr Place host = host_place, device = 1, second_device = 2;

/// Host and two devices; the host has written everything, the first device has seen it.
class CoherenceRollBack : public ::testing::Test {
 protected:
  CoherenceRollBack() {
    coherence.add_device();
    coherence.add_device();
    write(coherence, host, whole);
    read(coherence, device, whole);
  }

  Coherence::Undo start(Place place, ByteRange range, Intent intent) {
    return carry_out(coherence, coherence.plan_access(place, range, intent, one_second_per_byte));
  }

  void fail(Coherence::Undo const& undo) {
    coherence.roll_back(undo);
    coherence.validate();
  }

  Coherence coherence{whole.end};
};

TEST_F(CoherenceRollBack, LosesWhatWasNowhereElse) {
  write(coherence, device, {0, 10});
  fail(start(device, {5, 20}, Intent::read_write));
  EXPECT_EQ(coherence.lost(), ByteRanges({5, 10}));
  EXPECT_EQ(coherence.plan_access(host, whole, Intent::read, one_second_per_byte).lost, (ByteRange{5, 10}));
  EXPECT_THAT(read(coherence, host, {0, 5}).copies, ElementsAre(PlannedCopy{device, host, {0, 5}}));
}

TEST_F(CoherenceRollBack, OfARewriteLosesWhatItMayHaveWritten) {
  write(coherence, device, {0, 50});
  auto undo = start(device, {10, 20}, Intent::read_write);
  EXPECT_TRUE(undo.rewrite);
  auto untouched = undo;
  untouched.touched = {};
  fail(untouched);
  EXPECT_THAT(coherence.written(device).ranges(), ElementsAre(ByteRange{0, 50}));
  fail(undo);
  EXPECT_EQ(coherence.lost(), ByteRanges({10, 20}));
  EXPECT_THAT(coherence.written(device).ranges(), ElementsAre(ByteRange{0, 10}, ByteRange{20, 50}));
  EXPECT_THAT(coherence.valid(device).ranges(), ElementsAre(ByteRange{0, 10}, ByteRange{20, 100}));
  EXPECT_TRUE(mark(coherence, host, {0, 100}).overrules) << "the host has held all of it";
}

TEST_F(CoherenceRollBack, OfAWriteThatAnotherDeviceHadSeenGivesThatBack) {
  write(coherence, device, whole);
  read(coherence, second_device, {0, 30});
  auto const undo = start(device, {10, 20}, Intent::write);
  EXPECT_FALSE(undo.rewrite);
  EXPECT_FALSE(coherence.valid(second_device).intersects(ByteRange{10, 20}));
  fail(undo);
  EXPECT_TRUE(coherence.lost().empty());
  EXPECT_TRUE(coherence.valid(second_device).contains({0, 30}));
}

TEST_F(CoherenceRollBack, FindsWhatWasLostLostAgain) {
  write(coherence, device, whole);
  coherence.remove_storage(device);
  fail(start(host, {0, 50}, Intent::write));
  EXPECT_EQ(coherence.lost(), ByteRanges(whole));
}

TEST_F(CoherenceRollBack, OfTheFirstTouchLeavesNoData) {
  coherence.discard();
  fail(start(device, {0, 10}, Intent::write));
  EXPECT_FALSE(coherence.has_data());
  EXPECT_EQ(coherence.state(), BufferState::uninitialized);
  EXPECT_THAT(coherence.valid(device).ranges(), IsEmpty());
}

TEST_F(CoherenceRollBack, TakesSeveralOperationsBackInReverse) {
  auto const first = start(host, {0, 60}, Intent::read);
  auto const second = start(second_device, {40, 80}, Intent::write);
  auto const third = start(host, {40, 50}, Intent::read);
  fail(third);
  EXPECT_EQ(coherence.valid(second_device), ByteRanges({40, 80}));
  fail(second);
  fail(first);
  EXPECT_FALSE(coherence.valid(host).intersects({40, 50})) << "the third operation's copy had overwritten them";
  EXPECT_TRUE(coherence.valid(device).contains(whole));
  EXPECT_THAT(coherence.lost().ranges(), IsEmpty());
  read(coherence, host, whole);
  EXPECT_EQ(coherence.valid(host), ByteRanges(whole));
}

TEST_F(CoherenceRollBack, RestoresNothingIntoStorageThatWasReplaced) {
  auto const undo = start(device, whole, Intent::write);
  coherence.remove_storage(host);
  coherence.add_storage(host);
  fail(undo);
  EXPECT_THAT(coherence.valid(host).ranges(), IsEmpty());
  EXPECT_EQ(coherence.lost(), ByteRanges(whole));
}

TEST_F(CoherenceRollBack, RuinsPlacesThatShareTheStorage) {
  auto const twin = coherence.add_device(host);
  read(coherence, twin, whole);
  fail(start(twin, {0, 50}, Intent::read_write));
  EXPECT_EQ(coherence.valid(host), ByteRanges({50, 100}));
  EXPECT_EQ(coherence.valid(device), ByteRanges(whole));
  EXPECT_THAT(read(coherence, host, whole).copies, ElementsAre(PlannedCopy{device, host, {0, 50}}));
}

TEST_F(CoherenceRollBack, LeavesGarbageThatAMarkDoesNotTrust) {
  fail(start(device, {0, 10}, Intent::write));
  EXPECT_THAT(mark(coherence, device, {5, 20}).copies, ElementsAre(PlannedCopy{host, device, {5, 10}}));
}

TEST_F(CoherenceRollBack, OfWorkOnDiscardedDataChangesNothing) {
  auto const undo = start(device, whole, Intent::write);
  coherence.discard();
  fail(undo);
  EXPECT_EQ(coherence.state(), BufferState::uninitialized);
  write(coherence, device, whole);
  fail(undo);
  EXPECT_EQ(coherence.valid(device), ByteRanges(whole)) << "other data, although in the same place";
}

TEST_F(CoherenceRollBack, RemembersAWriteThatAnotherDeviceStillHas) {
  write(coherence, device, {0, 10});
  read(coherence, second_device, {0, 10});
  fail(start(device, {0, 10}, Intent::read_write));
  EXPECT_EQ(coherence.state(), BufferState::device_dirty);
  EXPECT_EQ(coherence.written(second_device), ByteRanges({0, 10}));
  EXPECT_THAT(coherence.lost().ranges(), IsEmpty());
}

}  // namespace
}  // namespace unimem::testing
