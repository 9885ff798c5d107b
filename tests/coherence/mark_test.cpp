#include <unimem/core/error.hpp>

#include "coherence/owner.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace unimem::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr ByteRange whole{0, 100};
constexpr Place host = host_place, device = 1, second_device = 2;

/// Host and two devices; the host and the first device have everything.
class CoherenceMark : public ::testing::Test {
 protected:
  CoherenceMark() {
    coherence.add_device();
    coherence.add_device();
    write(coherence, host, whole);
    read(coherence, device, whole);
  }

  Plan planned(Place place, ByteRange range) const { return coherence.plan_mark(place, range, one_second_per_byte); }

  Coherence coherence{whole.end};
};

TEST_F(CoherenceMark, BringsInOnlyWhatThePlaceNeverHeld) {
  read(coherence, second_device, {0, 30});
  write(coherence, host, {0, 10});
  read(coherence, device, whole);  // synchronized again; the second device's first bytes are stale, not garbage
  EXPECT_THAT(mark(coherence, second_device, {5, 50}).copies, ElementsAre(PlannedCopy{host, second_device, {30, 50}}));
  EXPECT_EQ(coherence.written(second_device), ByteRanges({5, 50}));
}

TEST_F(CoherenceMark, NeverCopiesOverWhatItSaysWasWritten) {
  read(coherence, second_device, {40, 60});
  EXPECT_THAT(mark(coherence, second_device, whole, latency_of(1000)).copies,
              ElementsAre(PlannedCopy{host, second_device, {0, 40}}, PlannedCopy{host, second_device, {60, 100}}));
}

TEST_F(CoherenceMark, IntoAnUnsynchronizedWriteIsANamedConflict) {
  write(coherence, host, {0, 10});
  auto const plan = planned(device, {5, 20});
  EXPECT_EQ(plan.conflict, (Plan::Conflict{host, {0, 10}}));
  EXPECT_FALSE(plan.overrules);
  auto const before = everything_seen(coherence);
  EXPECT_THROW(coherence.commit(plan), std::logic_error);
  EXPECT_EQ(everything_seen(coherence), before);
}

TEST_F(CoherenceMark, ThatCoversTheOtherSidesWritesOverrules) {
  write(coherence, host, {0, 10});
  write(coherence, host, {30, 40});
  EXPECT_EQ(planned(device, {0, 35}).conflict, (Plan::Conflict{host, {0, 10}}));
  EXPECT_EQ(planned(device, {5, 40}).conflict, (Plan::Conflict{host, {0, 10}}));
  auto const plan = mark(coherence, device, {0, 40});
  EXPECT_TRUE(plan.overrules);
  EXPECT_THAT(plan.copies, IsEmpty()) << "the device's own bytes are the truth";
  EXPECT_THAT(coherence.written(host).ranges(), IsEmpty());
  EXPECT_EQ(coherence.state(), BufferState::device_dirty);
}

TEST_F(CoherenceMark, CountsRangesAndNotTheirSpelling) {
  write(coherence, host, {0, 10});
  write(coherence, host, {10, 20});
  EXPECT_TRUE(planned(device, {0, 20}).overrules);
  EXPECT_TRUE(planned(device, whole).overrules);
  EXPECT_TRUE(planned(device, {0, 19}).conflict.has_value());
}

TEST_F(CoherenceMark, OfSeveralRangesCountsNothingBetween) {
  ByteRanges column;
  for (std::size_t row = 0; row < 10; ++row) column.add({row * 10 + 3, row * 10 + 4});
  auto const plan = coherence.plan_mark(host, column, one_second_per_byte);
  EXPECT_EQ(plan.range, (ByteRange{3, 94}));
  carry_out(coherence, plan);
  EXPECT_EQ(coherence.written(host), column);
  EXPECT_EQ(coherence.valid(device).size_bytes(), 90U);
  EXPECT_FALSE(coherence.valid(device).intersects(column));
  EXPECT_EQ(read(coherence, device, whole).copies.size(), 10U);
  EXPECT_EQ(coherence.state(), BufferState::synchronized);
  write(coherence, device, {3, 4});
  auto const run_into = coherence.plan_mark(host, column, one_second_per_byte);
  EXPECT_TRUE(run_into.overrules) << "it is all that the device has written";
  write(coherence, device, {5, 6});
  EXPECT_EQ(coherence.plan_mark(host, column, one_second_per_byte).conflict, (Plan::Conflict{device, {3, 4}}));
  EXPECT_THROW(static_cast<void>(coherence.plan_mark(host, ByteRanges{}, one_second_per_byte)), InvalidArgument);
}

TEST_F(CoherenceMark, OfSeveralRangesIsTakenBackWhole) {
  ByteRanges parts{{10, 20}};
  parts.add({30, 40});
  auto const before = everything_seen(coherence);
  auto const undo = carry_out(coherence, coherence.plan_mark(host, parts, one_second_per_byte));
  EXPECT_NE(everything_seen(coherence), before);
  coherence.roll_back(undo);
  EXPECT_EQ(coherence.written(host), ByteRanges());
  EXPECT_EQ(coherence.valid(device), ByteRanges(whole)) << "it has what it had";
  EXPECT_FALSE(coherence.valid(host).intersects(parts)) << "what was written there in vain is garbage";
  EXPECT_EQ(coherence.valid(host).size_bytes(), 80U);
}

TEST_F(CoherenceMark, ByADeviceConflictsWithAnothersUnseenWrite) {
  read(coherence, second_device, whole);
  write(coherence, device, {0, 10});
  write(coherence, device, {80, 90});
  EXPECT_EQ(planned(second_device, {0, 10}).conflict, (Plan::Conflict{device, {0, 10}}));
  read(coherence, second_device, {0, 10});
  EXPECT_FALSE(planned(second_device, {0, 10}).conflict.has_value()) << "it was written on top of what was seen";
}

TEST_F(CoherenceMark, OfBytesNeverHeldSeesConflictingWrites) {
  write(coherence, host, {0, 10});
  auto const plan = mark(coherence, second_device, {0, 5});
  EXPECT_FALSE(plan.overrules);
  EXPECT_THAT(plan.copies, ElementsAre(PlannedCopy{host, second_device, {0, 5}}));
  EXPECT_EQ(coherence.written(host), ByteRanges({5, 10}));
}

TEST_F(CoherenceMark, NeverConflictsWhereStorageIsShared) {
  auto const twin = coherence.add_device(host);
  write(coherence, host, {0, 10});
  auto const plan = mark(coherence, twin, {5, 20});
  EXPECT_FALSE(plan.conflict.has_value());
  EXPECT_FALSE(plan.overrules);
  EXPECT_THAT(plan.copies, IsEmpty()) << "the storage already holds what the host does";
  EXPECT_EQ(coherence.written(twin), ByteRanges({5, 20}));
  EXPECT_EQ(coherence.written(host), ByteRanges({0, 5}));
}

TEST_F(CoherenceMark, OfLostBytesTakesThemAsWritten) {
  write(coherence, device, {0, 10});
  coherence.remove_storage(device);
  ASSERT_EQ(coherence.lost(), ByteRanges({0, 10}));
  EXPECT_THAT(mark(coherence, host, {0, 5}).copies, IsEmpty());
  EXPECT_EQ(coherence.lost(), ByteRanges({5, 10}));
  EXPECT_THAT(mark(coherence, second_device, {5, 20}).copies, ElementsAre(PlannedCopy{host, second_device, {10, 20}}));
  EXPECT_THAT(coherence.lost().ranges(), IsEmpty());
}

/// One table for "from every state": what a mark of the first half on each side does.
struct FromState {
  char const* name;
  void (*arrange)(Coherence&);
  BufferState after_host_mark, after_device_mark;
};

void PrintTo(FromState const& from, std::ostream* out) {
  *out << from.name;
}

class MarkFromEveryState : public ::testing::TestWithParam<FromState> {};

TEST_P(MarkFromEveryState, LeavesTheMarkedSideDirty) {
  for (auto const& [place, expected] :
       {std::pair{host, GetParam().after_host_mark}, {device, GetParam().after_device_mark}}) {
    Coherence coherence(whole.end);
    coherence.add_device();
    GetParam().arrange(coherence);
    SCOPED_TRACE(::testing::Message() << "from " << to_string(coherence.state()) << " at " << place);
    mark(coherence, place, {0, 50});
    EXPECT_EQ(coherence.state(), expected);
    EXPECT_TRUE(coherence.written(place).contains({0, 50}));
    EXPECT_THAT(coherence.lost().ranges(), IsEmpty());
  }
}

using S = BufferState;
INSTANTIATE_TEST_SUITE_P(
    States, MarkFromEveryState,
    ::testing::Values(
        FromState{"uninitialized", [](Coherence&) {}, S::host_dirty, S::device_dirty},
        FromState{"host_only", [](Coherence& c) { read(c, host, whole); }, S::host_dirty, S::mixed},
        FromState{"device_only", [](Coherence& c) { read(c, device, whole); }, S::mixed, S::device_dirty},
        FromState{"synchronized", [](Coherence& c) { read(c, host, whole), read(c, device, whole); }, S::host_dirty,
                  S::device_dirty},
        FromState{"host_dirty",
                  [](Coherence& c) { read(c, host, whole), read(c, device, whole), write(c, host, {60, 70}); },
                  S::host_dirty, S::mixed},
        FromState{"device_dirty",
                  [](Coherence& c) { read(c, host, whole), read(c, device, whole), write(c, device, {60, 70}); },
                  S::mixed, S::device_dirty},
        FromState{"mixed",
                  [](Coherence& c) {
                    read(c, host, whole), read(c, device, whole);
                    write(c, device, {60, 70}), write(c, host, {80, 90});
                  },
                  S::mixed, S::mixed}),
    [](auto const& from) { return std::string(from.param.name); });

}  // namespace
}  // namespace unimem::testing
