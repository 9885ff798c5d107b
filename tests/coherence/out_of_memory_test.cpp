#include "coherence/owner.hpp"
#include "core/failing_allocations.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <new>

// Every mutation once with the n-th allocation failing, for every n it reaches: nothing may have changed.

namespace unimem::testing {
namespace {

constexpr std::size_t bytes = 1000;

/// Host and two devices, each with many pieces: a change in the middle of them needs memory.
Coherence fragmented() {
  Coherence coherence(bytes);
  coherence.add_device();
  coherence.add_device();
  write(coherence, 0, {0, bytes});
  read(coherence, 1, {0, bytes});
  for (std::size_t at = 0; at < 200; at += 20) write(coherence, 1, {at, at + 5});
  for (std::size_t at = 300; at < 500; at += 20) write(coherence, 2, {at, at + 5});
  coherence.validate();
  return coherence;
}

/// Runs `change` on copies of `coherence` until no allocation is left to fail; returns how many failed.
std::size_t failures_without_effect(Coherence const& coherence, std::function<void(Coherence&)> const& change) {
  auto const before = everything_seen(coherence);
  for (std::size_t failing = 1;; ++failing) {
    auto tried = coherence;
    bool failed = false;
    fail_allocation(failing);
    try {
      change(tried);
    } catch (std::bad_alloc const&) {
      failed = true;
    }
    fail_allocation(0);
    tried.validate();
    if (!failed) {
      EXPECT_NE(everything_seen(tried), before) << "the change changes nothing, so this shows nothing";
      return failing - 1;
    }
    EXPECT_EQ(everything_seen(tried), before) << "allocation " << failing << " failed";
  }
}

TEST(CoherenceOutOfMemory, RecordsWithoutMemoryWhatWasPrepared) {
  auto const coherence = fragmented();
  std::vector<Plan> plans;
  for (auto const range : {ByteRange{2, 43}, ByteRange{30, 62}, ByteRange{303, 304}, ByteRange{777, 778}}) {
    plans.push_back(coherence.plan_access(2, range, Intent::write, one_second_per_byte));
  }
  auto committed = coherence, recorded = coherence;
  for (auto const& plan : plans) committed.commit(plan);
  std::vector<Coherence::Undo> undos;
  for (auto const& plan : plans) undos.push_back(recorded.prepare(plan, plans.size()));
  EXPECT_EQ(everything_seen(recorded), everything_seen(coherence)) << "preparing changes nothing";
  fail_allocation(1);
  for (std::size_t i = 0; i < plans.size(); ++i) recorded.record(plans[i], undos[i]);
  bool const needed_none = allocation_is_to_fail();
  fail_allocation(0);
  EXPECT_TRUE(needed_none);
  recorded.validate();
  EXPECT_EQ(everything_seen(recorded), everything_seen(committed));
}

TEST(CoherenceOutOfMemory, LeavesACommitUndone) {
  auto coherence = fragmented();
  for (auto const intent : {Intent::read, Intent::write, Intent::read_write}) {
    auto const plan = coherence.plan_access(0, {3, 477}, intent, one_second_per_byte);
    EXPECT_GT(failures_without_effect(coherence, [&](Coherence& tried) { tried.commit(plan); }), 3U);
  }
  auto const marked = coherence.plan_mark(2, {600, 650}, one_second_per_byte);
  EXPECT_GT(failures_without_effect(coherence, [&](Coherence& tried) { tried.commit(marked); }), 3U);
  auto const released = coherence.plan_release(2, 1, one_second_per_byte);
  EXPECT_GT(failures_without_effect(coherence, [&](Coherence& tried) { tried.commit(released); }), 3U);
}

TEST(CoherenceOutOfMemory, LeavesAnAdoptionUndone) {
  Coherence coherence(bytes);
  coherence.add_device();
  coherence.add_storage(1);
  auto const plan = coherence.plan_access(1, {3, 477}, Intent::write, one_second_per_byte);
  EXPECT_GT(failures_without_effect(coherence, [&](Coherence& tried) { tried.commit(plan); }), 0U);
}

TEST(CoherenceOutOfMemory, LeavesARollBackToBeTriedAgain) {
  auto coherence = fragmented();
  auto const undo = carry_out(coherence, coherence.plan_access(0, {3, 477}, Intent::read_write, one_second_per_byte));
  EXPECT_GT(failures_without_effect(coherence, [&](Coherence& tried) { tried.roll_back(undo); }), 3U);
}

TEST(CoherenceOutOfMemory, LeavesStorageThatWasToGo) {
  auto const coherence = fragmented();
  EXPECT_GT(failures_without_effect(coherence, [](Coherence& tried) { tried.remove_storage(1); }), 3U);
}

TEST(CoherenceOutOfMemory, LeavesADeviceThatWasToComeAway) {
  auto const coherence = fragmented();
  EXPECT_GT(failures_without_effect(coherence, [](Coherence& tried) { tried.add_device(); }), 0U);
}

}  // namespace
}  // namespace unimem::testing
