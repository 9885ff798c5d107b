#include <unimem/buffer/double_buffer.hpp>
#include <unimem/core/name.hpp>

#include "buffer/buffer_fixture.hpp"
#include "core/sizes.hpp"

#include <cstdint>
#include <source_location>
#include <string>
#include <tuple>
#include <vector>

// Where in a program a buffer was made, which stands for its name if it has none.

namespace unimem::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// What a line of this file is called.
std::string at(unsigned line) {
  return "buffer/sites_test.cpp:" + std::to_string(line);
}

class Sites : public BufferTest {
 protected:
  /// What of the buffers made so far is on the host, by name.
  [[nodiscard]] UsageCounts on_host(std::string const& name) const {
    for (auto const& line : manager.usage().lines) {
      if (line.location == Location::host && line.name == name) return line.counts;
    }
    return {};
  }
};

TEST_F(Sites, StandForTheNameOfNamelessBuffers) {
  std::vector<UnifiedBuffer<int>> many;
  auto const line = __LINE__ + 1;
  for (int i = 0; i < 3; ++i) many.push_back(UnifiedBuffer<int>(100, on_sim()));
  for (auto& one : many) one.fill(1);
  UnifiedBuffer<int> single({10, 10}, on_sim());
  auto const line_of_single = __LINE__ - 1;
  single.fill(1);
  EXPECT_EQ(on_host(at(line)).allocations, 3U);
  EXPECT_EQ(on_host(at(line)).live_bytes, 1200U);
  EXPECT_EQ(on_host(at(line_of_single)).live(), 1U);
  EXPECT_EQ(manager.usage().lines.size(), 2U);
  EXPECT_THAT(single.name(), IsEmpty()) << "the buffer itself has no name for that";
  single.sync_to_device();
  for (auto const& one : manager.usage().lines) {
    if (one.location == Location::device) {
      EXPECT_EQ(one.name, at(line_of_single));
    }
  }
}

TEST_F(Sites, AreNotTakenForNamedBuffers) {
  UnifiedBuffer<int> buffer(100, on_sim("named"));
  buffer.fill(1);
  ASSERT_EQ(manager.usage().lines.size(), 1U);
  EXPECT_EQ(manager.usage().lines[0].name, "named");
}

TEST_F(Sites, AreTheCallersHoweverBuffersAreMade) {
  std::vector const values{1, 2, 3};
  auto const allocated = manager.allocate<int>(3, {.location = Location::host, .device = &sim, .name = {}});
  EXPECT_EQ(on_host(at(__LINE__ - 1)).live(), 1U);
  auto const copied =
      manager.allocate<int>(std::span(values), {.location = Location::host, .device = &sim, .name = {}});
  EXPECT_EQ(on_host(at(__LINE__ - 1)).live(), 1U);
  DoubleBuffer<int> both(3, on_sim());
  auto const line_of_both = __LINE__ - 1;
  both.back()->fill(1);
  EXPECT_EQ(on_host(at(line_of_both)).live(), 1U);
  auto const cloned = copied.clone();
  EXPECT_EQ(cloned.to_vector(), values);
  EXPECT_EQ(on_host(at(line_of_both - 2)).live(), 2U) << "a clone is of the place that its original is of";
}

TEST_F(Sites, StayTheSameForAllTheBuffersMemory) {
  auto const line = __LINE__ + 1;
  UnifiedBuffer<int> buffer(100, on_sim());
  buffer.fill(1);
  buffer.resize(200);
  buffer.free();
  buffer.fill(2);
  buffer.sync_to_device();
  for (auto const& one : manager.usage().lines) EXPECT_EQ(one.name, at(line)) << to_string(one.location);
  EXPECT_EQ(on_host(at(line)).allocations, 3U);
}

TEST_F(Sites, ThatNobodyKnowsAreNoName) {
  auto const made = BufferCore::make(100, on_sim());
  made->allocate(true, false);
  UnifiedBuffer<int> also(25, on_sim(), std::source_location{});
  also.fill(1);
  EXPECT_EQ(on_host("").live(), 2U);
}

TEST_F(Sites, AreInTheLeakReport) {
  auto const line = __LINE__ + 1;
  UnifiedBuffer<int> leaked(1000, on_sim());
  leaked.fill(1);
  auto const report = manager.leak_report();
  ASSERT_EQ(report.allocations.size(), 1U);
  EXPECT_EQ(report.allocations[0].name.view(), at(line));
  EXPECT_THAT(report.text(), HasSubstr("'" + at(line) + "'"));
}

TEST_F(Sites, AreHoldersInOutOfMemoryErrors) {
  auto const line = __LINE__ + 1;
  UnifiedBuffer<std::uint8_t> held(40 * MiB, on_sim());
  auto const lease = held.device_view();
  UnifiedBuffer<std::uint8_t> wanted(30 * MiB, on_sim("wanted"));
  try {
    wanted.allocate(false, true);
    FAIL() << "30 MiB beside 40 that are leased, of 64";
  } catch (OutOfMemory const& error) {
    ASSERT_EQ(error.facts().holders.size(), 1U);
    EXPECT_EQ(error.facts().holders[0].name, at(line));
    EXPECT_EQ(error.facts().holders[0].bytes, 40 * MiB);
    EXPECT_THAT(error.what(), HasSubstr("40 MiB in 1 allocation of " + at(line)));
  }
}

TEST_F(Sites, TeachWhereTheNextBufferMadeThereBelongs) {
  auto const made_here = [&](Placement placement) {
    return manager.allocate<std::uint8_t>(MiB, {.placement = placement, .device = &sim, .name = {}});
  };
  auto const line = __LINE__ - 2;
  auto const wanted = [&](unsigned place) { return manager.place(sim, {.bytes = MiB}, Name(at(place))); };
  EXPECT_EQ(wanted(line).rule, PlacementRule::medium);
  for (int i = 0; i < 3; ++i) {
    auto buffer = made_here(Placement::device_local);
    for (int k = 0; k < 4; ++k) {
      std::ignore = buffer.host();
      buffer.mark_host_dirty();
    }
  }
  EXPECT_EQ(wanted(line).rule, PlacementRule::never_on_device) << wanted(line).why();
  auto const next = made_here(Placement::automatic);
  EXPECT_EQ(next.location(), Location::host);
  EXPECT_THAT(next.placement()->why(), HasSubstr("none on a device"));
  auto const elsewhere = manager.allocate<std::uint8_t>(MiB, {.device = &sim, .name = {}});
  EXPECT_EQ(elsewhere.location(), Location::device) << "of another place nothing is known";
}

}  // namespace
}  // namespace unimem::testing
