#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"

#include <algorithm>

namespace unimem::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class Marks : public BufferTest {};

TEST_F(Marks, MarkingASideWithoutACopyMakesOne) {
  UnifiedBuffer<std::uint32_t> buffer(10, on_sim());
  buffer.copy_from(counting(10));
  buffer.mark_device_dirty();
  EXPECT_EQ(buffer.state(), BufferState::device_dirty);
  EXPECT_EQ(buffer.to_vector(), counting(10));
  EXPECT_EQ(moved(buffer.statistics()), (Moved{40, 1, 40, 1}));
  EXPECT_EQ(buffer.statistics().conflicting_marks, 0U);
}

TEST_F(Marks, AMarkCoveringTheOtherSidesWritesWins) {
  UnifiedBuffer<std::uint32_t> buffer(10, on_sim());
  buffer.copy_from(counting(10));
  buffer.sync_to_device();
  buffer.host(2, 3)[0] = 1000;
  buffer.mark_device_dirty();
  EXPECT_EQ(buffer.state(), BufferState::device_dirty);
  EXPECT_EQ(buffer.statistics().conflicting_marks, 1U);
  EXPECT_EQ(buffer.to_vector(), counting(10)) << "the device's bytes are the truth";
}

TEST_F(Marks, NoCopyOverwritesUnmarkedWritesThroughKeptPointers) {
  for (auto const tracking : {Tracking::access, Tracking::manual}) {
    auto options = on_sim();
    options.tracking = tracking;
    UnifiedBuffer<std::uint32_t> buffer(100, options);
    buffer.copy_from(counting(100));
    auto const kept = buffer.host();
    buffer.sync_to_device();
    set(sim.default_queue(), buffer.slice(0, 40), 7).wait();
    set(sim.default_queue(), buffer.slice(60), 7).wait();
    std::fill_n(kept.begin() + 40, 20, 5U);
    EXPECT_GT(buffer.core().evict({&sim, Location::device}, {}), 0U)
        << "another buffer, of another thread, needs the device's memory";
    buffer.mark_host_dirty(40, 20);
    auto expected = std::vector<std::uint32_t>(100, 7);
    std::fill_n(expected.begin() + 40, 20, 5U);
    EXPECT_EQ(buffer.to_vector(), expected);
    EXPECT_EQ(device_bytes(buffer, sim), expected);
    EXPECT_EQ(moved(buffer.statistics()), (Moved{800, 2, 320, 2})) << "two copies, around what was written";
  }
}

TEST_F(Marks, NoCopyOverwritesUnmarkedWritesThroughLeases) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  auto window = buffer.slice(40, 20);
  auto const lease = window.device();
  buffer.synchronize();
  buffer.copy_from(std::vector<std::uint32_t>(40, 7), 0);
  buffer.copy_from(std::vector<std::uint32_t>(40, 7), 60);
  std::fill_n(lease.data(), 20, 5U);
  buffer.sync_to_device();
  window.mark_device_dirty();
  auto expected = std::vector<std::uint32_t>(100, 7);
  std::fill_n(expected.begin() + 40, 20, 5U);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

TEST_F(Marks, EqualRangesMatchHoweverTheyAreSpelled) {
  UnifiedBuffer<std::uint32_t> buffer(10, on_sim());
  buffer.copy_from(counting(10));
  buffer.sync_to_device();
  std::ignore = buffer.host(2, 3);
  buffer.mark_device_dirty(2, 3);
  EXPECT_EQ(buffer.statistics().conflicting_marks, 1U);
  EXPECT_EQ(buffer.state(), BufferState::device_dirty);
}

TEST_F(Marks, APartialOverlapConflictsAndChangesNothing) {
  UnifiedBuffer<std::uint32_t> buffer(10, on_sim("field"));
  buffer.copy_from(counting(10));
  buffer.sync_to_device();
  buffer.host(2, 4)[0] = 500;
  try {
    buffer.mark_device_dirty(4, 4);
    FAIL() << "no conflict";
  } catch (CoherenceConflict const& error) {
    EXPECT_EQ(error.buffer, "buffer 'field'");
    EXPECT_EQ(error.earlier.place, "host");
    EXPECT_EQ(error.later.place, sim.id());
    EXPECT_EQ(error.later.begin, 16U);
    EXPECT_EQ(error.later.end, 32U);
    EXPECT_LT(error.earlier.begin, error.earlier.end);
    EXPECT_THAT(error.what(), HasSubstr("[16, 32)"));
  }
  EXPECT_EQ(buffer.state(), BufferState::host_dirty);
  EXPECT_EQ(buffer.statistics().conflicting_marks, 0U);
  auto expected = counting(10);
  expected[2] = 500;
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

TEST_F(Marks, DisjointMarksMerge) {
  UnifiedBuffer<std::uint32_t> buffer(10, on_sim());
  buffer.copy_from(counting(10));
  buffer.sync_to_device();
  buffer.mark_host_dirty(0, 5);
  buffer.mark_device_dirty(5, 5);
  EXPECT_EQ(buffer.state(), BufferState::mixed);
  buffer.sync_to_host();
  EXPECT_EQ(buffer.state(), BufferState::host_dirty);
  buffer.sync_to_device();
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{40 + 20, 2, 20, 1}));
}

TEST_F(Marks, WindowsThatEscapeAreRefused) {
  UnifiedBuffer<std::uint32_t> buffer(10, on_sim());
  buffer.fill(0);
  EXPECT_THROW(buffer.mark_host_dirty(11), InvalidArgument);
  EXPECT_THROW(buffer.mark_host_dirty(5, 6), InvalidArgument);
  EXPECT_THROW(buffer.mark_device_dirty(std::size_t{1} << 63, 2), InvalidArgument);
  EXPECT_THROW(std::ignore = buffer.host(10, 1), InvalidArgument);
  EXPECT_THROW(std::ignore = buffer.at(10), InvalidArgument);
  EXPECT_EQ(buffer.state(), BufferState::host_dirty);
}

TEST_F(Marks, OnTheCpuConflictingMarksAreNoConflict) {
  auto options = on_sim();
  options.device = &device("cpu");
  UnifiedBuffer<std::uint32_t> buffer(10, options);
  buffer.copy_from(counting(10));
  {
    auto const lease = buffer.device_view();
  }
  std::ignore = buffer.host(2, 4);
  buffer.mark_device_dirty(4, 4);
  EXPECT_EQ(buffer.statistics().conflicting_marks, 0U);
  EXPECT_EQ(buffer.to_vector(), counting(10));
}

TEST_F(Marks, AnEventTellsWhenForeignWorkEnds) {
  auto& slow = make_sim({.memory_bytes = 1 << 20, .latency = std::chrono::milliseconds(20)});
  auto options = on_sim();
  options.device = &slow;
  UnifiedBuffer<std::uint32_t> buffer(1000, options);
  buffer.fill(1);
  auto queue = slow.create_queue();
  auto const sevens = std::vector<std::uint32_t>(1000, 7U);
  Event done;
  {
    auto const lease = buffer.device_view(queue);
    done = queue.upload(lease.native(), sevens.data(), 4000);
  }
  buffer.mark_device_dirty(0, all, done);
  EXPECT_THAT(buffer.host_view(), Each(7U));
}

TEST_F(Marks, ReadingWithoutAnEventWaitsForTheDevice) {
  auto& slow = make_sim({.memory_bytes = 1 << 20, .latency = std::chrono::milliseconds(20)});
  auto options = on_sim();
  options.device = &slow;
  UnifiedBuffer<std::uint32_t> buffer(1000, options);
  buffer.fill(1);
  auto queue = slow.create_queue();
  auto const sevens = std::vector<std::uint32_t>(1000, 7U);
  {
    auto const lease = buffer.device(queue);
    queue.upload(lease.native(), sevens.data(), 4000);
  }
  buffer.mark_device_dirty();
  EXPECT_THAT(buffer.host_view(), Each(7U));
}

/// Every documented state, then every mark, against what the documents say comes out.
struct Cell {
  char const* name;
  BufferState from;
  BufferState after_host_mark;
  BufferState after_device_mark;
};

class MarkTable : public BufferTest, public ::testing::WithParamInterface<Cell> {
 protected:
  void bring(UnifiedBuffer<std::uint32_t>& buffer, BufferState wanted) {
    switch (wanted) {
      case BufferState::uninitialized:
        return;
      case BufferState::host_only:
        std::ignore = buffer.host_view();
        break;
      case BufferState::device_only:
        std::ignore = buffer.device_view();
        break;
      case BufferState::synchronized:
        buffer.copy_from(counting(10));
        buffer.sync_to_device();
        break;
      case BufferState::host_dirty:
        buffer.copy_from(counting(10));
        break;
      case BufferState::device_dirty: {
        auto const lease = buffer.device();
        break;
      }
      case BufferState::mixed:
        FAIL();
    }
    ASSERT_EQ(buffer.state(), wanted);
  }
};

TEST_P(MarkTable, EveryCellLeavesEqualSidesAfterASync) {
  auto const [name, from, after_host, after_device] = GetParam();
  for (bool const on_host : {true, false}) {
    UnifiedBuffer<std::uint32_t> buffer(10, on_sim());
    bring(buffer, from);
    auto const mark = [&] { on_host ? buffer.mark_host_dirty() : buffer.mark_device_dirty(); };
    if (from == BufferState::uninitialized) {
      EXPECT_THROW(mark(), BufferNotAllocated);
      EXPECT_EQ(buffer.state(), BufferState::uninitialized);
      continue;
    }
    mark();
    EXPECT_EQ(buffer.state(), on_host ? after_host : after_device);
    buffer.synchronize();
    EXPECT_EQ(buffer.state(), BufferState::synchronized);
    EXPECT_EQ(buffer.to_vector(), device_bytes(buffer, sim));
  }
}

INSTANTIATE_TEST_SUITE_P(
    SixStates, MarkTable,
    ::testing::Values(
        Cell{"uninitialized", BufferState::uninitialized, BufferState::uninitialized, BufferState::uninitialized},
        Cell{"host_only", BufferState::host_only, BufferState::host_dirty, BufferState::device_dirty},
        Cell{"device_only", BufferState::device_only, BufferState::host_dirty, BufferState::device_dirty},
        Cell{"synchronized", BufferState::synchronized, BufferState::host_dirty, BufferState::device_dirty},
        Cell{"host_dirty", BufferState::host_dirty, BufferState::host_dirty, BufferState::device_dirty},
        Cell{"device_dirty", BufferState::device_dirty, BufferState::host_dirty, BufferState::device_dirty}),
    [](auto const& cell) { return cell.param.name; });

}  // namespace
}  // namespace unimem::testing
