#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

namespace unimem::testing {
namespace {

using ::testing::Each;

class Mappings : public BufferTest {
 protected:
  [[nodiscard]] UnifiedBuffer<std::uint32_t> synchronized() { return BufferTest::synchronized(100, "mapped"); }
};

TEST_F(Mappings, AReadMapOnlyBringsInMissingBytes) {
  auto buffer = synchronized();
  set(sim.default_queue(), buffer.slice(20, 10), 7);
  auto const mapping = buffer.map(MapMode::read, 15, 10);
  auto expected = counting(10, 15);
  std::fill_n(expected.begin() + 5, 5, 7U);
  EXPECT_EQ(std::vector(mapping.begin(), mapping.end()), expected);
  EXPECT_EQ(moved(sim.transfers()), (Moved{400, 1, 20, 1})) << "only what the window lacked";
  EXPECT_EQ(buffer.state(), BufferState::device_dirty);
  {
    auto whole = buffer.map(MapMode::read);
    EXPECT_EQ(buffer.state(), BufferState::synchronized);
    EXPECT_EQ(whole[29], 7U);
    whole.unmap();
  }
  EXPECT_EQ(buffer.state(), BufferState::synchronized) << "nothing counts as written";
  std::ignore = device_bytes(buffer, sim);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400, 1, 40, 2}));
}

TEST_F(Mappings, AWriteMapCountsWhenItIsUnmapped) {
  for (auto const mode : {MapMode::write, MapMode::read_write}) {
    auto buffer = synchronized();
    auto mapping = buffer.map(mode, 10, 5);
    EXPECT_EQ(buffer.state(), BufferState::synchronized) << "not yet";
    EXPECT_EQ(mapping[2], 12U) << "what is not changed stays";
    mapping[0] = 900;
    mapping[4] = 901;
    mapping.unmap();
    EXPECT_EQ(buffer.state(), BufferState::host_dirty);
    auto expected = counting(100);
    expected[10] = 900;
    expected[14] = 901;
    EXPECT_EQ(device_bytes(buffer, sim), expected);
    EXPECT_EQ(buffer.to_vector(), expected);
    EXPECT_EQ(moved(buffer.statistics()), (Moved{400 + 20, 2, 0, 0})) << "the window, and nothing else";
  }
}

TEST_F(Mappings, ADiscardMapBringsNothingIn) {
  auto buffer = synchronized();
  set(sim.default_queue(), buffer.slice(0), 7);
  {
    auto const mapping = buffer.map(MapMode::discard, 50, 50);
    EXPECT_EQ(buffer.state(), BufferState::mixed);
    std::ranges::fill(mapping.elements(), 8U);
  }
  auto expected = std::vector<std::uint32_t>(100, 7U);
  std::fill_n(expected.begin() + 50, 50, 8U);
  EXPECT_EQ(moved(sim.transfers()), (Moved{400, 1, 0, 0}));
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400 + 200, 2, 200, 1}));
}

TEST_F(Mappings, UnmappingTwiceIsUnmappingOnce) {
  auto buffer = synchronized();
  {
    auto mapping = buffer.map(MapMode::write, 0, 1);
    mapping[0] = 5;
    mapping.unmap();
    EXPECT_TRUE(mapping.elements().empty());
    buffer.sync_to_device();
    mapping.unmap();
    EXPECT_EQ(buffer.state(), BufferState::synchronized) << "the second time nothing is written any more";
    auto second = buffer.map(MapMode::write, 1, 1);
    auto taken = std::move(second);
    taken[0] = 6;
    second = {};
    EXPECT_EQ(buffer.state(), BufferState::synchronized) << "what was moved from has nothing to unmap";
    taken = buffer.map(MapMode::read, 2, 1);
    EXPECT_EQ(buffer.state(), BufferState::host_dirty) << "assigning over a mapping unmaps it";
    EXPECT_EQ(taken[0], 2U);
  }
  auto expected = counting(100);
  expected[0] = 5;
  expected[1] = 6;
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400 + 4 + 4, 3, 0, 0}));
}

TEST_F(Mappings, WhileAMappingLivesTheHostSideStays) {
  auto buffer = synchronized();
  auto mapping = buffer.map(MapMode::read);
  try {
    buffer.release_host();
    FAIL() << "the mapping's memory went";
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.value, "host");
  }
  EXPECT_THROW(buffer.resize(50), InvalidArgument);
  EXPECT_EQ(buffer.size(), 100U);
  EXPECT_EQ(mapping.data(), buffer.host_view().data());
  EXPECT_EQ(buffer.to_vector(), counting(100));
  mapping.unmap();
  buffer.release_host();
  EXPECT_EQ(buffer.state(), BufferState::device_only);
  EXPECT_EQ(buffer.to_vector(), counting(100));
}

TEST_F(Mappings, AMappingOutlivesItsBuffer) {
  std::optional<Mapping<std::uint32_t>> mapping;
  {
    auto buffer = synchronized();
    mapping = buffer.map(MapMode::read_write);
  }
  EXPECT_EQ((*mapping)[99], 99U);
  (*mapping)[99] = 1;
  auto& pool = manager.pool(device("cpu"), Location::host);
  EXPECT_GE(pool.statistics().active_bytes, 400U);
  mapping.reset();
  EXPECT_EQ(pool.statistics().active_bytes, 0U);
  EXPECT_EQ(manager.pool(sim, Location::device).statistics().active_bytes, 0U);
}

TEST_F(Mappings, UnmappingAfterAFreeWritesNothing) {
  auto buffer = synchronized();
  auto mapping = buffer.map(MapMode::write);
  mapping[0] = 12345;
  buffer.free();
  mapping.unmap();
  EXPECT_EQ(buffer.state(), BufferState::uninitialized);

  auto again = buffer.map(MapMode::write);
  again[0] = 12345;
  buffer.free();
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  auto const before = moved(buffer.statistics());
  again.unmap();
  EXPECT_EQ(buffer.state(), BufferState::synchronized) << "the new data was not written";
  EXPECT_EQ(buffer.to_vector(), counting(100));
  EXPECT_EQ(device_bytes(buffer, sim), counting(100));
  EXPECT_EQ(moved(buffer.statistics()), before);
}

TEST_F(Mappings, ADeviceWriteInsideTheWindowConflicts) {
  auto buffer = synchronized();
  auto mapping = buffer.map(MapMode::write, 0, 50);
  mapping[0] = 5;
  set(sim.default_queue(), buffer.slice(25, 50), 7);
  try {
    mapping.unmap();
    FAIL() << "two writers of the same elements";
  } catch (CoherenceConflict const& error) {
    EXPECT_EQ(error.buffer, "buffer 'mapped'");
    EXPECT_EQ(error.earlier.place, sim.id());
    EXPECT_EQ(error.earlier.begin, 100U);
    EXPECT_EQ(error.earlier.end, 300U);
    EXPECT_EQ(error.later.place, "host");
    EXPECT_EQ(error.later.begin, 0U);
    EXPECT_EQ(error.later.end, 200U);
  }
  EXPECT_EQ(buffer.state(), BufferState::mixed) << "what the device did not write counts";
  auto expected = counting(100);
  expected[0] = 5;
  std::fill_n(expected.begin() + 25, 50, 7U);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(buffer.to_vector(), expected);
  mapping.unmap();
}

TEST_F(Mappings, BetweenSeveralConflictsWhatTheHostWroteCounts) {
  auto buffer = synchronized();
  auto mapping = buffer.map(MapMode::write, 10, 80);
  std::ranges::fill(mapping.elements(), 5U);
  for (std::size_t const at : {0U, 30U, 60U, 85U}) set(sim.default_queue(), buffer.slice(at, 12), 7);
  EXPECT_THROW(mapping.unmap(), CoherenceConflict);
  auto expected = counting(100);
  std::fill_n(expected.begin() + 10, 80, 5U);
  for (int const at : {0, 30, 60, 85}) std::fill_n(expected.begin() + at, 12, 7U);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(buffer.to_vector(), expected);
}

TEST_F(Mappings, TheNextAccessRaisesADestructorsConflict) {
  auto buffer = synchronized();
  {
    auto const mapping = buffer.map(MapMode::write, 0, 50);
    set(sim.default_queue(), buffer.slice(25, 50), 7);
  }
  EXPECT_THROW(std::ignore = buffer.host_view(), CoherenceConflict);
  EXPECT_THAT(buffer.slice(25, 50).to_vector(), Each(7U)) << "once";
}

TEST_F(Mappings, AMapCoveringDeviceWritesOverrulesThem) {
  auto buffer = synchronized();
  {
    auto const mapping = buffer.map(MapMode::write);
    set(sim.default_queue(), buffer.slice(25, 50), 7);
    std::ranges::fill(mapping.elements(), 8U);
  }
  EXPECT_EQ(buffer.statistics().conflicting_marks, 1U) << "and it is counted";
  EXPECT_THAT(buffer.to_vector(), Each(8U));
  EXPECT_THAT(device_bytes(buffer, sim), Each(8U));
}

TEST_F(Mappings, CopiesNeverOverwriteAnOpenMap) {
  // The device has newer bytes on both sides of the window, and one copy would be cheaper than two.
  using Buffer = UnifiedBuffer<std::uint32_t>;
  struct Way {
    char const* name;
    std::function<void(Buffer&)> go;
  };
  std::array const ways{
      Way{"release_device", [](Buffer& of) { of.release_device(); }},
      Way{"synchronize", [](Buffer& of) { of.synchronize(); }},
      Way{"host_view", [](Buffer& of) { std::ignore = of.host_view(); }},
      Way{"to_vector", [](Buffer& of) { std::ignore = of.to_vector(); }},
      Way{"sync_to_host_async", [](Buffer& of) { of.sync_to_host_async().wait(); }},
      Way{"eviction",
          [this](Buffer& of) {
            EXPECT_GT(of.core().evict({&sim, Location::device}, {}), 0U) << "somebody needs the device's memory";
          }},
  };
  for (auto const& [name, go] : ways) {
    SCOPED_TRACE(name);
    for (auto const mode : {MapMode::write, MapMode::discard}) {
      auto buffer = synchronized();
      set(sim.default_queue(), buffer.slice(0, 40), 7).wait();
      set(sim.default_queue(), buffer.slice(60), 7).wait();
      auto mapping = buffer.map(mode, 40, 20);
      std::ranges::fill(mapping.elements(), 5U);
      go(buffer);
      mapping.unmap();
      auto expected = std::vector<std::uint32_t>(100, 7);
      std::fill_n(expected.begin() + 40, 20, 5U);
      EXPECT_EQ(buffer.to_vector(), expected);
      EXPECT_EQ(device_bytes(buffer, sim), expected);
      EXPECT_EQ(buffer.statistics().device_to_host_bytes, 320U) << "not across the window";
    }
  }
}

TEST_F(Mappings, CopiesCrossAClosedMapAgain) {
  auto buffer = synchronized();
  buffer.map(MapMode::write, 40, 20).unmap();
  buffer.sync_to_device();
  set(sim.default_queue(), buffer.slice(0, 40), 7);
  set(sim.default_queue(), buffer.slice(60), 7).wait();
  std::ignore = buffer.host_view();
  EXPECT_EQ(moved(buffer.statistics()), (Moved{480, 2, 400, 1}));
}

TEST_F(Mappings, UnderManualTrackingAMapIsDeclarationEnough) {
  auto options = on_sim();
  options.tracking = Tracking::manual;
  UnifiedBuffer<std::uint32_t> buffer(10, options);
  buffer.copy_from(counting(10));
  buffer.sync_to_device();
  buffer.map(MapMode::write, 3, 1)[0] = 99;
  EXPECT_EQ(buffer.state(), BufferState::host_dirty);
  EXPECT_EQ(device_bytes(buffer, sim)[3], 99U);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{44, 2, 0, 0}));
}

TEST_F(Mappings, ACpuMapIsTheDevicesOwnMemory) {
  auto options = on_sim();
  options.device = &device("cpu");
  UnifiedBuffer<std::uint32_t> buffer(10, options);
  buffer.copy_from(counting(10));
  {
    auto const lease = buffer.device();
    lease.data()[1] = 11;
    EXPECT_EQ(buffer.map(MapMode::read).data(), lease.data());
  }
  buffer.map(MapMode::write)[2] = 22;
  EXPECT_EQ(buffer.device_view().data()[1], 11U);
  EXPECT_EQ(buffer.device_view().data()[2], 22U);
  EXPECT_EQ(moved(buffer.statistics()), Moved{});
}

TEST_F(Mappings, NeverLeadToMemoryReleasedMeanwhile) {
  auto buffer = synchronized();
  std::atomic<bool> over{false};
  std::atomic<std::size_t> let_go{0};
  std::thread other([&] {
    while (!over) {
      try {
        buffer.release_host();
        ++let_go;
      } catch (Error const&) {  // it is being looked at
      }
    }
  });
  std::size_t wrong = 0;
  for (int i = 0; i < 2000 || (let_go < 100 && i < 1'000'000); ++i) {
    wrong += std::as_const(buffer).to_vector() == counting(100) ? 0 : 1;
    auto const mapping = buffer.map(MapMode::read);
    wrong += mapping.data() != nullptr && std::ranges::equal(mapping, counting(100)) ? 0 : 1;
  }
  over = true;
  other.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_GE(let_go, 100U);
}

}  // namespace
}  // namespace unimem::testing
