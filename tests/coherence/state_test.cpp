#include "coherence/owner.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace unimem::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr ByteRange whole{0, 100};
constexpr Place host = host_place, device = 1, second_device = 2;

Coherence with_devices(int devices) {
  Coherence coherence(whole.end);
  for (int i = 0; i < devices; ++i) coherence.add_device();
  return coherence;
}

TEST(BufferState, IsSpelledAsUsersSeeIt) {
  EXPECT_EQ(to_string(BufferState::uninitialized), "uninitialized");
  EXPECT_EQ(to_string(BufferState::host_only), "host_only");
  EXPECT_EQ(to_string(BufferState::device_only), "device_only");
  EXPECT_EQ(to_string(BufferState::synchronized), "synchronized");
  EXPECT_EQ(to_string(BufferState::host_dirty), "host_dirty");
  EXPECT_EQ(to_string(BufferState::device_dirty), "device_dirty");
  EXPECT_EQ(to_string(BufferState::mixed), "mixed");
}

// The documented transitions (seeds 000 and 003, "State Transitions"), each from its state reached in the documented
// way.

struct Transition {
  std::string name;
  std::function<void(Coherence&)> arrange;
  BufferState from;
  std::function<Plan(Coherence&)> act;
  BufferState to;
  std::size_t bytes_copied;
};

void PrintTo(Transition const& transition, std::ostream* out) {
  *out << transition.name;
}

class DocumentedTransition : public ::testing::TestWithParam<Transition> {};

TEST_P(DocumentedTransition, LeadsWhereTheTableSays) {
  auto const& transition = GetParam();
  auto coherence = with_devices(1);
  transition.arrange(coherence);
  ASSERT_EQ(coherence.state(), transition.from);
  auto const plan = transition.act(coherence);
  EXPECT_EQ(coherence.state(), transition.to);
  std::size_t copied = 0;
  for (auto const& copy : plan.copies) copied += copy.range.size();
  EXPECT_EQ(copied, transition.bytes_copied);
}

void nothing(Coherence&) {}
void host_only(Coherence& c) {
  read(c, host, whole);
}
void device_only(Coherence& c) {
  read(c, device, whole);
}
void synchronized(Coherence& c) {
  host_only(c), read(c, device, whole);
}
void host_dirty(Coherence& c) {
  synchronized(c), write(c, host, whole);
}
void device_dirty(Coherence& c) {
  synchronized(c), write(c, device, whole);
}
Plan host_access(Coherence& c) {
  return read(c, host, whole);
}
Plan device_access(Coherence& c) {
  return read(c, device, whole);
}
Plan host_modified(Coherence& c) {
  return access(c, host, whole, Intent::read_write);
}
Plan device_modified(Coherence& c) {
  return access(c, device, whole, Intent::read_write);
}
Plan host_marked(Coherence& c) {
  return mark(c, host, whole);
}
Plan device_marked(Coherence& c) {
  return mark(c, device, whole);
}

INSTANTIATE_TEST_SUITE_P(
    Table, DocumentedTransition,
    ::testing::Values(Transition{"uninitialized_host_access", nothing, BufferState::uninitialized, host_access,
                                 BufferState::host_only, 0},
                      Transition{"uninitialized_device_access", nothing, BufferState::uninitialized, device_access,
                                 BufferState::device_only, 0},
                      Transition{"uninitialized_host_modified", nothing, BufferState::uninitialized, host_modified,
                                 BufferState::host_dirty, 0},
                      Transition{"host_only_device_access", host_only, BufferState::host_only, device_access,
                                 BufferState::synchronized, 100},
                      Transition{"device_only_host_access", device_only, BufferState::device_only, host_access,
                                 BufferState::synchronized, 100},
                      Transition{"synchronized_host_modified", synchronized, BufferState::synchronized, host_modified,
                                 BufferState::host_dirty, 0},
                      Transition{"synchronized_device_modified", synchronized, BufferState::synchronized,
                                 device_modified, BufferState::device_dirty, 0},
                      Transition{"synchronized_host_marked", synchronized, BufferState::synchronized, host_marked,
                                 BufferState::host_dirty, 0},
                      Transition{"synchronized_device_marked", synchronized, BufferState::synchronized, device_marked,
                                 BufferState::device_dirty, 0},
                      Transition{"synchronized_host_access", synchronized, BufferState::synchronized, host_access,
                                 BufferState::synchronized, 0},
                      Transition{"host_dirty_host_access", host_dirty, BufferState::host_dirty, host_access,
                                 BufferState::host_dirty, 0},
                      Transition{"host_dirty_device_access", host_dirty, BufferState::host_dirty, device_access,
                                 BufferState::synchronized, 100},
                      Transition{"device_dirty_host_access", device_dirty, BufferState::device_dirty, host_access,
                                 BufferState::synchronized, 100},
                      Transition{"device_dirty_host_modified", device_dirty, BufferState::device_dirty, host_modified,
                                 BufferState::host_dirty, 100}),
    [](auto const& transition) { return transition.param.name; });

TEST(CoherenceState, OfUntouchedStorageIsWhereTheStorageIs) {
  auto coherence = with_devices(1);
  EXPECT_EQ(coherence.state(), BufferState::uninitialized);
  coherence.add_storage(device);
  EXPECT_EQ(coherence.state(), BufferState::device_only);
  coherence.add_storage(host);
  EXPECT_EQ(coherence.state(), BufferState::synchronized);
  coherence.remove_storage(device);
  EXPECT_EQ(coherence.state(), BufferState::host_only);
  EXPECT_FALSE(coherence.has_data());
}

TEST(CoherenceState, IsMixedWhereEachSideHasNewerBytes) {
  auto coherence = with_devices(1);
  synchronized(coherence);
  write(coherence, host, {0, 10});
  write(coherence, device, {90, 100});
  EXPECT_EQ(coherence.state(), BufferState::mixed);

  auto const plan = read(coherence, device, whole);
  EXPECT_THAT(plan.copies, ElementsAre(PlannedCopy{host, device, {0, 10}}));
  EXPECT_EQ(coherence.state(), BufferState::device_dirty);

  EXPECT_THAT(read(coherence, host, whole).copies, ElementsAre(PlannedCopy{device, host, {90, 100}}));
  EXPECT_EQ(coherence.state(), BufferState::synchronized);
}

TEST(CoherenceState, ComparesTheHostWithAllDevicesTogether) {
  auto coherence = with_devices(2);
  write(coherence, host, whole);
  read(coherence, device, {0, 50});
  EXPECT_EQ(coherence.state(), BufferState::host_dirty);
  read(coherence, second_device, {50, 100});
  EXPECT_EQ(coherence.state(), BufferState::host_only) << "every byte has been seen, but no device has them all";
  read(coherence, device, {50, 100});
  EXPECT_EQ(coherence.state(), BufferState::synchronized);
}

TEST(CoherenceState, StaysDeviceDirtyWhenAnotherDeviceReads) {
  auto coherence = with_devices(2);
  synchronized(coherence);
  write(coherence, device, {0, 10});
  read(coherence, second_device, whole);
  EXPECT_EQ(coherence.state(), BufferState::device_dirty);
  EXPECT_EQ(coherence.written(device), ByteRanges({0, 10}));

  EXPECT_THAT(release(coherence, device, host).copies, IsEmpty());
  EXPECT_EQ(coherence.state(), BufferState::device_dirty) << "the second device still has what the host has not seen";
  EXPECT_EQ(coherence.written(second_device), ByteRanges({0, 10}));
}

TEST(CoherenceState, IsHostOnlyWithoutTheCleanDeviceCopy) {
  auto coherence = with_devices(1);
  synchronized(coherence);
  EXPECT_THAT(release(coherence, device, host).copies, IsEmpty());
  EXPECT_EQ(coherence.state(), BufferState::host_only);
}

TEST(CoherenceState, StaysHostDirtyWithoutTheDeviceCopy) {
  auto coherence = with_devices(1);
  host_dirty(coherence);
  EXPECT_THAT(release(coherence, device, host).copies, IsEmpty());
  EXPECT_EQ(coherence.state(), BufferState::host_dirty);
}

TEST(CoherenceState, MovesAsDocumentedOnSharedStorage) {
  Coherence coherence(whole.end);
  coherence.add_device(host);
  read(coherence, host, whole);
  EXPECT_EQ(coherence.state(), BufferState::host_only);
  write(coherence, host, whole);
  EXPECT_EQ(coherence.state(), BufferState::host_dirty);
  EXPECT_THAT(read(coherence, device, whole).copies, ElementsAre(PlannedCopy{host, device, whole, true}));
  EXPECT_EQ(coherence.state(), BufferState::synchronized);
  write(coherence, device, {0, 10});
  EXPECT_EQ(coherence.state(), BufferState::device_dirty);
  EXPECT_THAT(read(coherence, host, whole).copies, ElementsAre(PlannedCopy{device, host, {0, 10}, true}));
  EXPECT_EQ(coherence.state(), BufferState::synchronized);
}

TEST(CoherenceState, IsUninitializedBetweenDiscardAndNextAccess) {
  auto coherence = with_devices(1);
  synchronized(coherence);
  coherence.discard();
  coherence.validate();
  EXPECT_EQ(coherence.state(), BufferState::uninitialized);
  EXPECT_TRUE(coherence.has_storage(host) && coherence.has_storage(device));
  EXPECT_THAT(read(coherence, device, whole).copies, IsEmpty()) << "there is nothing to bring";
  EXPECT_EQ(coherence.state(), BufferState::device_only);
}

TEST(CoherenceState, OfNoBytesIsSynchronizedAfterAnyAccess) {
  Coherence coherence(0);
  coherence.add_device();
  EXPECT_EQ(coherence.state(), BufferState::uninitialized);
  coherence.commit(coherence.plan_access(device, {0, 0}, Intent::read, one_second_per_byte));
  coherence.validate();
  EXPECT_EQ(coherence.state(), BufferState::synchronized) << "and without any storage";
  coherence.discard();
  EXPECT_EQ(coherence.state(), BufferState::uninitialized);
}

TEST(CoherenceState, LeavesLostBytesOutOfThePicture) {
  auto coherence = with_devices(1);
  synchronized(coherence);
  write(coherence, device, {0, 40});
  coherence.remove_storage(device);
  EXPECT_EQ(coherence.lost(), ByteRanges({0, 40}));
  EXPECT_EQ(coherence.state(), BufferState::host_only);
  read(coherence, device, {40, 100});
  EXPECT_EQ(coherence.state(), BufferState::synchronized) << "of what is left, both sides have everything";
  coherence.remove_storage(host);
  EXPECT_EQ(coherence.state(), BufferState::device_only);
  coherence.remove_storage(device);
  EXPECT_EQ(coherence.lost(), ByteRanges(whole));
  EXPECT_EQ(coherence.state(), BufferState::uninitialized);
  EXPECT_TRUE(coherence.has_data()) << "a read must say that they are lost";
}

}  // namespace
}  // namespace unimem::testing
