#include <unimem/kernel/launch.hpp>

#include "buffer/buffer_fixture.hpp"

#include <algorithm>
#include <cstdlib>

namespace unimem::testing {
namespace {

using ::testing::HasSubstr;

// Read once, at the first buffer.
[[maybe_unused]] bool const checking = setenv("UNIMEM_CHECK", "1", 1) == 0;

/// UNIMEM_CHECK=1 notices what users forgot to say.
class Check : public BufferTest {
 protected:
  Event increment(UnifiedBuffer<std::uint32_t>& buffer) { return increment_on(sim, buffer); }
  static Event increment_on(Device& where, UnifiedBuffer<std::uint32_t>& buffer) {
    static Kernel const kernel = Kernel("increment").host([](WorkItem i, std::span<std::uint32_t> x) { x[i.x] += 1; });
    return launch(where.default_queue(), kernel, Range{buffer.size()}, readwrite(buffer));
  }

  /// What the library writes to standard error while `work` runs.
  template <class Work>
  static std::string complaints(Work const& work) {
    ::testing::internal::CaptureStderr();
    work();
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(Check, UnmarkedWritesByKeptPointersAreReported) {
  UnifiedBuffer<std::uint32_t> buffer(10'000, on_sim("samples"));
  auto const said = complaints([&] {
    auto const h = buffer.host();
    std::ranges::fill(h, 1U);
    increment(buffer).wait();
    h[5'000] = 1'000;  // stale, and nobody says so
    increment(buffer).wait();
  });
  EXPECT_THAT(said, HasSubstr("samples"));
  EXPECT_THAT(said, HasSubstr("[16384, 20480)"));
  EXPECT_THAT(said, HasSubstr("a host view that may be written of bytes [0, 40000)"));
  EXPECT_EQ(buffer.statistics().unmarked_writes, 1U);
  buffer.reset();
  EXPECT_EQ(buffer.statistics().unmarked_writes, 0U);
}

TEST_F(Check, AnUnmarkedWriteToDeviceDataIsReported) {
  static Kernel const ones = Kernel("ones").host([](WorkItem i, std::span<std::uint32_t> x) { x[i.x] = 1; });
  UnifiedBuffer<std::uint32_t> buffer(10'000, on_sim("samples"));
  launch(sim.default_queue(), ones, Range{buffer.size()}, write(buffer));
  auto const said = complaints([&] {
    const_cast<std::uint32_t&>(buffer.host_view()[5'000]) = 1'000;  // by the first pointer there was
    increment(buffer).wait();
  });
  EXPECT_THAT(said, HasSubstr("[16384, 20480)"));
  EXPECT_EQ(buffer.statistics().unmarked_writes, 1U);
  EXPECT_EQ(buffer.to_vector()[5'000], 1'001U);
}

TEST_F(Check, AnUnmarkedWriteToWrappedMemoryIsReported) {
  std::vector<std::uint32_t> memory(10'000, 1);
  auto buffer = manager.wrap(memory.data(), memory.size(), Location::host, Ownership::borrow());
  auto const said = complaints([&] {
    buffer.sync_to_device(sim);
    memory[5'000] = 7;
    buffer.sync_to_device(sim);
  });
  EXPECT_THAT(said, HasSubstr("[16384, 20480)"));
  EXPECT_EQ(buffer.statistics().unmarked_writes, 1U);
  EXPECT_EQ(device_bytes(buffer, sim)[5'000], 7U);
}

TEST_F(Check, AReportedWriteReachesTheDevice) {
  UnifiedBuffer<std::uint32_t> buffer(10'000, on_sim("samples"));
  auto const said = complaints([&] {
    auto const h = buffer.host();
    std::ranges::fill(h, 1U);
    buffer.sync_to_device();
    h[0] = 7;
    buffer.sync_to_device();
  });
  EXPECT_THAT(said, HasSubstr("[0, 4096)"));
  EXPECT_EQ(device_bytes(buffer, sim)[0], 7U) << "once seen it is not ignored";
}

TEST_F(Check, ReportsAreCountedPerBuffer) {
  UnifiedBuffer<std::uint32_t> buffer(10'000, on_sim("samples"));
  for (std::uint64_t round = 1; round <= 3; ++round) {
    std::ignore = complaints([&] {
      auto const h = buffer.host();
      std::ranges::fill(h, 1U);
      buffer.sync_to_device();
      h[0] = 7;
      h[5'000] = 7;
      buffer.sync_to_device();
    });
    EXPECT_EQ(buffer.statistics().unmarked_writes, 2 * round);
    round == 1 ? buffer.free() : buffer.resize(10'000 + round);
    EXPECT_EQ(buffer.statistics().unmarked_writes, 2 * round) << "memory has gone, the buffer has not";
  }
}

TEST_F(Check, AMarkedWriteIsNotReported) {
  UnifiedBuffer<std::uint32_t> buffer(10'000, on_sim("samples"));
  buffer.fill(1);
  auto const h = buffer.host();
  buffer.sync_to_device();
  buffer.fill(3, 5'000, 10);  // on the device
  auto const before = buffer.statistics().host_to_device_bytes;
  auto const said = complaints([&] {
    h[4'990] = 7;  // in the same 4 KiB
    buffer.mark_host_dirty(4'990, 1);
  });
  EXPECT_EQ(said, "");
  EXPECT_EQ(buffer.statistics().unmarked_writes, 0U);
  auto expected = std::vector<std::uint32_t>(10'000, 1);
  expected[4'990] = 7;
  std::fill_n(expected.begin() + 5'000, 10, 3U);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(buffer.statistics().host_to_device_bytes - before, 4U) << "what was marked, and not its block";
}

TEST_F(Check, UnmarkedWritesAfterHostKernelsAreReported) {
  UnifiedBuffer<std::uint32_t> buffer(10'000, on_sim("samples"));
  auto const said = complaints([&] {
    auto const h = buffer.host();
    std::ranges::fill(h, 1U);
    increment_on(device("cpu"), buffer).wait();
    increment(buffer).wait();
    std::ignore = buffer.host_view();
    h[5'000] = 1'000;
    increment(buffer).wait();
  });
  EXPECT_THAT(said, HasSubstr("[16384, 20480)"));
  EXPECT_EQ(buffer.statistics().unmarked_writes, 1U);
  EXPECT_EQ(buffer.to_vector()[5'000], 1'001U);
}

TEST_F(Check, WritesOfHostKernelsAreNotReported) {
  UnifiedBuffer<std::uint32_t> buffer(10'000, on_sim("samples"));
  auto const said = complaints([&] {
    std::ranges::fill(buffer.host(), 1U);
    increment(buffer);
    for (int i = 0; i < 3; ++i) {
      increment_on(device("cpu"), buffer);
      increment_on(device("cpu"), buffer).wait();
      increment(buffer);
      std::ignore = buffer.to_vector();
    }
  });
  EXPECT_EQ(said, "");
  EXPECT_THAT(buffer.to_vector(), ::testing::Each(11U));
}

TEST_F(Check, WhatIsDeclaredIsNotReported) {
  UnifiedBuffer<std::uint32_t> buffer(10'000, on_sim("samples"));
  auto const said = complaints([&] {
    auto const h = buffer.host();
    std::ranges::fill(h, 1U);
    buffer.sync_to_device();
    buffer.host(0, 1)[0] = 7;
    increment(buffer).wait();
    std::ignore = buffer.host_view();
    buffer.host()[1] = 8;
    buffer.copy_from(counting(100), 50);
    buffer.fill(3, 0, 10);
    buffer.sync_to_host();
    increment(buffer);
    std::ignore = buffer.to_vector();
    auto mapped = buffer.map(MapMode::write, 0, 100);
    mapped[3] = 1;
    mapped.unmap();
    buffer.sync_to_device();
    buffer.release_host();
    std::ignore = buffer.to_vector();
  });
  EXPECT_EQ(said, "");
  EXPECT_EQ(buffer.statistics().unmarked_writes, 0U);
}

}  // namespace
}  // namespace unimem::testing
