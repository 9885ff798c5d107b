#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "core/sizes.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace unimem::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// A device behind a link as fast as today's, where locked pages pay.
class Optimizing : public BufferTest {
 protected:
  Optimizing() : fast(make_sim(parse_sim_options("memory=64MiB,h2d=64GB/s,d2h=64GB/s"))) {}

  [[nodiscard]] UnifiedBuffer<std::uint32_t> on_fast(std::size_t bytes, std::string name) {
    auto options = on_sim(std::move(name));
    options.device = &fast;
    return UnifiedBuffer<std::uint32_t>(bytes / 4, options);
  }

  /// The host fills it, the device adds to it, and the host looks: so many times.
  void to_and_fro(UnifiedBuffer<std::uint32_t>& buffer, int times) {
    for (int i = 0; i < times; ++i) {
      buffer.fill(5);
      buffer.sync_to_device();
      buffer.host()[0] = 6;
      add(fast.default_queue(), buffer.slice(0, buffer.size()), 1).wait();
      ASSERT_EQ(std::as_const(buffer).host_view()[0], 7U);
    }
  }

  /// Buffers that a report says are locked, now or when their host memory is next taken.
  [[nodiscard]] static std::vector<OptimizationStep> pinned(OptimizationReport const& report) {
    std::vector<OptimizationStep> found;
    for (auto const& step : report.steps) {
      if (step.what == Optimization::pin) found.push_back(step);
    }
    return found;
  }

  [[nodiscard]] static std::vector<Optimization> kinds(OptimizationReport const& report) {
    std::vector<Optimization> found;
    for (auto const& step : report.steps) found.push_back(step.what);
    return found;
  }

  Device& fast;
};

TEST_F(Optimizing, DoesNothingWithoutRecordedUse) {
  auto const report = manager.optimize();
  EXPECT_THAT(report.steps, IsEmpty());
  EXPECT_EQ(report.seconds_saved, 0);
  EXPECT_THAT(report.text(), HasSubstr("0 B locked"));
}

TEST_F(Optimizing, PinsOftenCopiedBuffersInPlace) {
  auto buffer = on_fast(2 * MiB, "hot");
  to_and_fro(buffer, 20);
  auto const* const address = std::as_const(buffer).host_view().data();
  ASSERT_FALSE(buffer.is_pinned());
  auto const report = manager.optimize();
  ASSERT_EQ(report.steps.size(), 1U) << report.text();
  auto const& step = report.steps.front();
  EXPECT_EQ(step.what, Optimization::pin);
  EXPECT_EQ(step.name.view(), "hot");
  EXPECT_EQ(step.device, &fast);
  EXPECT_EQ(step.bytes, 2 * MiB);
  EXPECT_GT(step.seconds_saved, 0);
  EXPECT_EQ(report.seconds_saved, step.seconds_saved);
  EXPECT_FALSE(step.deferred) << "a block of whole pages has them to itself";
  EXPECT_TRUE(buffer.is_pinned());
  EXPECT_EQ(report.pinned_bytes, 2 * MiB);
  EXPECT_EQ(std::as_const(buffer).host_view().data(), address) << "somebody may have it";
  EXPECT_EQ(std::as_const(buffer).host_view()[0], 7U);
  EXPECT_THAT(report.text(), HasSubstr("'hot'"));
  to_and_fro(buffer, 2);
  EXPECT_THAT(kinds(manager.optimize()), IsEmpty()) << "once is enough";
}

TEST_F(Optimizing, ItsNextHostMemoryIsLockedToo) {
  auto const beside = manager.acquire(device("cpu"), Location::host, 9000);  // whose last page the buffer shares
  auto buffer = on_fast(3 * MiB, "deferred");
  to_and_fro(buffer, 20);
  auto const report = manager.optimize();
  ASSERT_EQ(report.steps.size(), 1U) << report.text();
  EXPECT_TRUE(report.steps.front().deferred);
  EXPECT_EQ(report.pinned_bytes, 0U);
  EXPECT_FALSE(buffer.is_pinned());
  buffer.sync_to_device();
  buffer.release_host();
  EXPECT_EQ(std::as_const(buffer).host_view()[1], 6U);
  EXPECT_TRUE(buffer.is_pinned());
  buffer.free();
  EXPECT_EQ(manager.usage().total.live_bytes, 0U);
}

TEST_F(Optimizing, UnpinsMemoryThatReturnsToItsPool) {
  for (int round = 0; round < 3; ++round) {
    auto buffer = on_fast(2 * MiB, "round");
    EXPECT_FALSE(buffer.is_pinned());
    to_and_fro(buffer, 20);
    EXPECT_FALSE(buffer.is_pinned());
    ASSERT_EQ(manager.optimize().steps.size(), 1U);
  }
  EXPECT_EQ(manager.usage().total.live_bytes, 0U);
}

TEST_F(Optimizing, LeavesSeldomCopiedOrPinnedBuffersAlone) {
  auto buffer = on_fast(2 * MiB, "seldom");
  to_and_fro(buffer, 1);
  EXPECT_THAT(manager.optimize().steps, IsEmpty());
  auto options = on_sim("asked");
  options.device = &fast;
  options.pinned = true;
  UnifiedBuffer<std::uint32_t> asked(MiB, options);
  to_and_fro(asked, 20);
  EXPECT_THAT(kinds(manager.optimize()), Not(Contains(Optimization::pin))) << "it is locked already";
}

TEST_F(Optimizing, DoesNotPinWatchedPages) {
  auto options = on_sim("watched");
  options.device = &fast;
  options.tracking = Tracking::pages;
  std::optional<UnifiedBuffer<std::uint32_t>> buffer;
  try {
    buffer.emplace(MiB / 4, options);
  } catch (UnsupportedOperation const& error) {
    GTEST_SKIP() << error.what();
  }
  to_and_fro(*buffer, 20);
  buffer->release_host();
  EXPECT_EQ(std::as_const(*buffer).host_view(100, 100)[0], 6U);
  auto const before = buffer->state();
  EXPECT_THAT(kinds(manager.optimize()), Not(Contains(Optimization::pin)));
  EXPECT_FALSE(buffer->is_pinned());
  EXPECT_EQ(buffer->state(), before) << "nobody has written";
  EXPECT_EQ(std::as_const(*buffer).host_view()[0], 7U);
  EXPECT_EQ(buffer->tracking(), Tracking::pages);
}

TEST_F(Optimizing, NoMoreIsLockedThanTheLimit) {
  auto one = on_fast(2 * MiB, "one"), two = on_fast(2 * MiB, "two");
  to_and_fro(one, 20);
  to_and_fro(two, 20);
  EXPECT_THAT(kinds(manager.optimize({.max_pinned_bytes = MiB})), Not(Contains(Optimization::pin)));
  auto const steps = pinned(manager.optimize({.max_pinned_bytes = 3 * MiB}));
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps.front().bytes, 2 * MiB);
  EXPECT_EQ(one.is_pinned() + two.is_pinned(), steps.front().deferred ? 0 : 1);
}

TEST_F(Optimizing, LaterPinningStaysWithinTheLimit) {
  auto const beside =
      manager.acquire(device("cpu"), Location::host, 9000);  // so that none of them has its pages to itself
  auto one = on_fast(3 * MiB, "one"), two = on_fast(3 * MiB, "two");
  to_and_fro(one, 20);
  to_and_fro(two, 20);
  auto const steps = pinned(manager.optimize({.max_pinned_bytes = 5 * MiB}));
  ASSERT_EQ(steps.size(), 1U) << "what is left is too little for the other";
  for (auto* const buffer : {&one, &two}) {
    buffer->sync_to_device();
    buffer->release_host();
    ASSERT_EQ(std::as_const(*buffer).host_view()[1], 6U);
  }
  EXPECT_EQ(one.is_pinned() + two.is_pinned(), 1);
}

TEST_F(Optimizing, ReleasesUnneededDeviceCopiesWithoutATransfer) {
  auto idle = synchronized(MiB / 4, "idle"), kept = synchronized(MiB / 4, "kept"), changed = synchronized(MiB / 4);
  idle.wont_use();
  changed.wont_use();
  set(sim.default_queue(), changed.slice(0, 10), 77).wait();
  changed.wont_use();
  auto const before = sim.transfers();
  auto const report = manager.optimize();
  ASSERT_EQ(report.steps.size(), 1U) << report.text();
  EXPECT_EQ(report.steps.front().what, Optimization::release);
  EXPECT_EQ(report.steps.front().name.view(), "idle");
  EXPECT_EQ(report.released_bytes, MiB);
  EXPECT_GE(report.trimmed_bytes, MiB) << "and the pool has not kept it";
  EXPECT_EQ(moved(sim.transfers().since(before)), Moved{});
  EXPECT_FALSE(idle.valid_on(sim));
  EXPECT_TRUE(kept.valid_on(sim));
  EXPECT_TRUE(changed.valid_on(sim)) << "the only one that has it";
  EXPECT_EQ(idle.to_vector(), counting(MiB / 4));
}

TEST_F(Optimizing, LeavesLeasedBuffersAlone) {
  auto leased = synchronized(MiB / 4, "leased");
  auto const lease = std::as_const(leased).device_view();
  leased.wont_use();
  EXPECT_THAT(manager.optimize().steps, IsEmpty());
  EXPECT_TRUE(leased.valid_on(sim));
}

TEST_F(Optimizing, ReloadsNeededCopiesWhereThereIsRoom) {
  auto wanted = synchronized(MiB / 4, "wanted"), other_one = synchronized(MiB / 4, "not wanted");
  wanted.release_device();
  other_one.release_device();
  wanted.will_use();
  other_one.wont_use();
  auto const none = manager.optimize({.max_placed_bytes = MiB - 1});
  EXPECT_THAT(none.steps, IsEmpty());
  auto const report = manager.optimize();
  ASSERT_EQ(report.steps.size(), 1U) << report.text();
  EXPECT_EQ(report.steps.front().what, Optimization::place);
  EXPECT_EQ(report.placed_bytes, MiB);
  sim.synchronize();
  EXPECT_TRUE(wanted.valid_on(sim));
  auto const before = sim.transfers();
  EXPECT_EQ(device_bytes(wanted, sim), counting(MiB / 4));
  EXPECT_EQ(sim.transfers().since(before).host_to_device_copies, 0U) << "the next use waits for nothing";
}

TEST_F(Optimizing, DoesNotPrefetchBuffersWithExportedAddresses) {
  auto wanted = synchronized(MiB / 4, "wanted");
  wanted.release_device();
  auto const values = wanted.host();
  wanted.will_use();
  EXPECT_EQ(manager.optimize().placed_bytes, 0U);
  values[0] = 9;  // counted when the address was given out
  auto expected = counting(MiB / 4);
  expected[0] = 9;
  EXPECT_EQ(device_bytes(wanted, sim), expected);
}

TEST_F(Optimizing, SkipsPlacementsThatFindNoMemory) {
  auto wanted = synchronized(MiB / 4, "wanted");
  wanted.release_device();
  wanted.will_use();
  manager.cleanup();
  set_sim_faults(sim, {.fail_allocation = 1});
  auto const report = manager.optimize();
  set_sim_faults(sim, {});
  EXPECT_THAT(report.steps, IsEmpty());
  EXPECT_EQ(wanted.to_vector(), counting(MiB / 4));
  wanted.will_use();
  EXPECT_EQ(manager.optimize().placed_bytes, MiB);
}

TEST_F(Optimizing, ContentsAreRightWhateverOthersDoMeanwhile) {
  std::vector<std::jthread> users;
  for (int i = 0; i < 3; ++i) {
    users.emplace_back([&, i] {
      auto buffer = on_fast(MiB, "user " + std::to_string(i));
      for (std::uint32_t k = 0; k < 60; ++k) {
        buffer.fill(k);
        add(fast.default_queue(), buffer.slice(0, buffer.size()), 1).wait();
        if (k % 3 == 0) buffer.wont_use(fast);
        if (k % 3 == 1) buffer.will_use(fast);
        ASSERT_EQ(std::as_const(buffer).host_view()[buffer.size() - 1], k + 1);
        if (k % 5 == 0) buffer.release_device();
      }
    });
  }
  for (int k = 0; k < 200; ++k) static_cast<void>(manager.optimize());
  users.clear();
  EXPECT_EQ(manager.usage().total.live_bytes, 0U);
}

}  // namespace
}  // namespace unimem::testing
