#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "buffer/spilling_fixture.hpp"
#include "core/failing_allocations.hpp"

#include <algorithm>
#include <cstddef>
#include <new>
#include <tuple>

// What somebody has written in place cannot be refused any more: it gets on record, whatever memory there is.

namespace unimem::testing {
namespace {

class MappingsOutOfMemory : public BufferTest {
 protected:
  using Buffer = UnifiedBuffer<std::uint32_t>;

  /// Counting elements on both sides, but for `window`, which the host alone has set to 9 with no memory to record it.
  [[nodiscard]] Buffer with_unrecorded_write() {
    auto buffer = synchronized();
    auto mapping = buffer.map(MapMode::write, first, count);
    std::ranges::fill(mapping, 9U);
    fail_allocation(1);
    mapping.unmap();
    EXPECT_FALSE(allocation_is_to_fail()) << "recording it needed none";
    fail_allocation(0);
    return buffer;
  }

  [[nodiscard]] static std::vector<std::uint32_t> expected() {
    auto elements = counting(100);
    std::fill_n(elements.begin() + first, count, 9U);
    return elements;
  }

  void expect_written(Buffer& buffer) {
    EXPECT_EQ(device_bytes(buffer, sim), expected());
    EXPECT_EQ(buffer.to_vector(), expected());
    buffer.core().validate();
  }

  static constexpr std::size_t first = 10, count = 5;
};

TEST_F(MappingsOutOfMemory, AFailureAtUnmappingLosesNoWrite) {
  std::size_t failed = 0;
  for (auto const mode : {MapMode::write, MapMode::read_write, MapMode::discard}) {
    bool reached = true;
    for (std::size_t n = 1; reached; ++n) {
      ASSERT_LT(n, 200U) << "it never passes";
      SCOPED_TRACE(::testing::Message() << "mode " << static_cast<int>(mode) << ", allocation " << n << " fails");
      auto buffer = synchronized();
      auto mapping = buffer.map(mode, first, count);
      std::ranges::fill(mapping, 9U);
      fail_allocation(n);
      EXPECT_NO_THROW(mapping.unmap());
      reached = !allocation_is_to_fail();
      fail_allocation(0);
      EXPECT_TRUE(mapping.elements().empty());
      EXPECT_EQ(buffer.state(), BufferState::host_dirty);
      expect_written(buffer);
      EXPECT_EQ(moved(buffer.statistics()), (Moved{400 + 4 * count, 2, 0, 0})) << "the window, and nothing else";
      failed += reached ? 1 : 0;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(failed, 1U);
}

TEST_F(MappingsOutOfMemory, TheNextOperationRecordsItOrIsRefused) {
  auto buffer = with_unrecorded_write();
  ByteRange const whole{0, buffer.size_bytes()};
  fail_allocation(1);
  EXPECT_THROW(std::ignore = buffer.core().fetch(whole), std::bad_alloc);
  fail_allocation(1);
  EXPECT_THROW(buffer.sync_to_device(), std::bad_alloc) << "it does not take the old copy for current";
  fail_allocation(0);
  buffer.sync_to_device();
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  expect_written(buffer);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400 + 4 * count, 2, 0, 0}));
}

TEST_F(MappingsOutOfMemory, LeasesAndStateReflectAnUnrecordedWrite) {
  auto buffer = synchronized();
  auto& queue = sim.default_queue();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(buffer.device_view(queue).size(), 100U);  // the second without the lock
  auto mapping = buffer.map(MapMode::write, first, count);
  std::ranges::fill(mapping, 9U);
  fail_allocation(1);
  mapping.unmap();
  fail_allocation(0);
  {
    auto const lease = buffer.device_view(queue);
    std::vector<std::uint32_t> seen(100);
    queue.download(seen.data(), lease.native(), buffer.size_bytes()).wait();
    EXPECT_EQ(seen, expected());
  }
  EXPECT_EQ(with_unrecorded_write().state(), BufferState::host_dirty);
  auto asynchronous = with_unrecorded_write();
  asynchronous.synchronize_async().wait();
  EXPECT_EQ(asynchronous.state(), BufferState::synchronized);
  expect_written(asynchronous);
}

TEST_F(MappingsOutOfMemory, EvictionAndReleasePreserveAnUnrecordedWrite) {
  auto buffer = with_unrecorded_write();
  fail_allocation(1);
  EXPECT_THROW(std::ignore = buffer.core().evict({&sim, Location::device}, {}), std::bad_alloc);
  fail_allocation(0);
  EXPECT_GT(buffer.core().evict({&sim, Location::device}, {}), 0U);
  EXPECT_EQ(buffer.to_vector(), expected());

  auto on_device = with_unrecorded_write();
  on_device.release_host();
  EXPECT_EQ(on_device.to_vector(), expected());
  auto alone = with_unrecorded_write();
  alone.release_device();
  EXPECT_EQ(alone.to_vector(), expected());
}

TEST_F(MappingsOutOfMemory, SeveralAreRecordedTogether) {
  auto buffer = synchronized();
  auto one = buffer.map(MapMode::write, 0, 10), two = buffer.map(MapMode::write, 40, 10),
       three = buffer.map(MapMode::write, 90, 10);
  for (auto* const mapping : {&one, &two, &three}) {
    std::ranges::fill(*mapping, 9U);
    fail_allocation(1);
    EXPECT_NO_THROW(mapping->unmap());
  }
  fail_allocation(0);
  auto elements = counting(100);
  for (auto const at : {0, 40, 90}) std::fill_n(elements.begin() + at, 10, 9U);
  EXPECT_EQ(device_bytes(buffer, sim), elements);
  EXPECT_EQ(buffer.to_vector(), elements);
}

TEST_F(MappingsOutOfMemory, OfDataThatIsGoneNothingIsRecorded) {
  auto buffer = with_unrecorded_write();
  buffer.free();
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  EXPECT_EQ(device_bytes(buffer, sim), counting(100));

  auto recycled = with_unrecorded_write();
  EXPECT_TRUE(recycled.core().recycle(false));
  EXPECT_EQ(recycled.state(), BufferState::uninitialized);
}

TEST_F(MappingsOutOfMemory, AConflictIsToldByTheNextAccess) {
  auto buffer = synchronized();
  auto mapping = buffer.map(MapMode::write, 0, 50);
  mapping[0] = 9;
  set(sim.default_queue(), buffer.slice(25, 50), 7).wait();
  fail_allocation(1);
  EXPECT_NO_THROW(mapping.unmap());
  fail_allocation(0);
  EXPECT_THROW(std::ignore = buffer.core().fetch({0, 400}), CoherenceConflict);
  auto elements = counting(100);
  elements[0] = 9;
  std::fill_n(elements.begin() + 25, 50, 7U);
  EXPECT_EQ(device_bytes(buffer, sim), elements) << "what the device did not write counts";
  EXPECT_EQ(buffer.to_vector(), elements);
}

/// Another buffer may give what is needed. That the write is not on record when the host's memory is to go takes a
/// second failure.
TEST_F(MappingsOutOfMemory, EvictionLeavesWhatIsNotOnRecord) {
  Directory const directory;
  MemoryManager spilling{ManagerOptions{.spill = {.directory = directory.path()}}};
  auto options = on_sim();
  options.manager = &spilling;
  Buffer buffer(words, options);
  buffer.copy_from(filled(1U));
  buffer.sync_to_device();
  auto mapping = buffer.map(MapMode::write, first, count);
  std::ranges::fill(mapping, 9U);
  fail_allocation(1);
  mapping.unmap();
  fail_allocation(1);
  EXPECT_EQ(buffer.core().evict({&device("cpu"), Location::host}, {}), 0U);
  EXPECT_FALSE(allocation_is_to_fail());
  fail_allocation(0);
  spilling.set_limit(device("cpu"), Location::host, words * sizeof(std::uint32_t));
  EXPECT_EQ(buffer.core().evict({&sim, Location::device}, {}), words * sizeof(std::uint32_t));
  EXPECT_EQ(spilling.statistics().refusals, 0U);
  spilling.set_limit(device("cpu"), Location::host, 64 * MiB);
  EXPECT_THROW(std::ignore = buffer.to_vector(), std::bad_alloc) << "what the first eviction met";
  auto written = filled(1U);
  std::fill_n(written.begin() + first, count, 9U);
  EXPECT_EQ(buffer.core().evict({&device("cpu"), Location::host}, {}), words * sizeof(std::uint32_t));
  EXPECT_EQ(buffer.to_vector(), written);
  EXPECT_EQ(device_bytes(buffer, sim), written);
}

}  // namespace
}  // namespace unimem::testing
