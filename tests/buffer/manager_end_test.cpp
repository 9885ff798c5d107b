#include <unimem/buffer/buffer_pool.hpp>
#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"

#include <optional>
#include <utility>
#include <vector>

namespace unimem::testing {
namespace {

using ::testing::Each;

/// Buffers whose manager ends before them.
class ManagerEnd : public BufferTest {
 protected:
  using Buffer = UnifiedBuffer<std::uint32_t>;

  [[nodiscard]] BufferOptions on_short_lived(std::string name = {}) {
    BufferOptions options;
    options.manager = &*short_lived;
    options.device = &sim;
    options.name = std::move(name);
    return options;
  }
  /// What the device itself has given away.
  [[nodiscard]] std::size_t taken() const {
    auto const memory = sim.memory_info();
    return memory.total_bytes - memory.free_bytes;
  }

  std::optional<MemoryManager> short_lived{std::in_place};
};

TEST_F(ManagerEnd, BuffersKeepTheirDataOnBothSides) {
  std::optional<Buffer> on_device(std::in_place, 1000, on_short_lived()),
      on_host(std::in_place, 1000, on_short_lived());
  on_host->copy_from(counting(1000));
  set(sim.default_queue(), on_device->slice(0), 9).wait();
  short_lived.reset();
  EXPECT_THAT(on_device->to_vector(), Each(9U));
  EXPECT_EQ(device_bytes(*on_host, sim), counting(1000)) << "took device memory after the end";
  EXPECT_EQ(on_device->clone().to_vector(), on_device->to_vector());
  on_device->resize(2000);
  EXPECT_EQ(on_device->size(), 2000U);
  on_device.reset();
  on_host.reset();
  EXPECT_EQ(taken(), 0U);
}

TEST_F(ManagerEnd, BuffersStillEvictEachOtherWithinLimits) {
  constexpr std::size_t count = std::size_t{1} << 18;  // 1 MiB each
  short_lived->set_limit(sim, std::size_t{2} << 20);
  std::vector<Buffer> buffers;
  for (std::uint32_t i = 0; i < 3; ++i) buffers.emplace_back(count, on_short_lived("b" + std::to_string(i)));
  short_lived.reset();
  for (std::uint32_t i = 0; i < 3; ++i) set(sim.default_queue(), buffers[i].slice(0), i).wait();
  EXPECT_LE(taken(), std::size_t{2} << 20);
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_THAT(buffers[i].to_vector(), Each(i));
  auto options = on_sim();
  options.manager = &buffers.front().core().manager();
  Buffer large(3 * count, options);
  EXPECT_THROW(std::ignore = large.device_view(sim), OutOfMemory) << "a buffer's manager may be asked for by others";
}

TEST_F(ManagerEnd, WhatItHadCachedGoesBackAtOnce) {
  Buffer kept(1000, on_short_lived());
  set(sim.default_queue(), kept.slice(0), 9).wait();
  auto const with_one = taken();
  {
    Buffer gone(std::size_t{1} << 20, on_short_lived());
    set(sim.default_queue(), gone.slice(0), 9).wait();
  }
  ASSERT_GT(taken(), with_one) << "cached";
  short_lived.reset();
  EXPECT_EQ(taken(), with_one);
  EXPECT_THAT(kept.to_vector(), Each(9U));
}

TEST_F(ManagerEnd, ItsCallbacksAreNotCalledAnyMore) {
  constexpr std::size_t count = std::size_t{1} << 18;
  short_lived->set_limit(sim, std::size_t{2} << 20);
  int calls = 0;
  auto const subscription = short_lived->on_pressure([&](PressureChange const&) { ++calls; });
  Buffer first(count, on_short_lived()), second(count, on_short_lived());
  short_lived.reset();
  calls = 0;
  set(sim.default_queue(), first.slice(0), 1).wait();
  set(sim.default_queue(), second.slice(0), 2).wait();
  EXPECT_EQ(taken(), std::size_t{2} << 20) << "as full as can be";
  EXPECT_EQ(calls, 0);
}

TEST_F(ManagerEnd, ABufferPoolGoesOnLending) {
  BufferPoolOptions options;
  options.manager = &*short_lived;
  options.device = &sim;
  BufferPool pool(options);
  short_lived.reset();
  auto lent = pool.acquire<std::uint32_t>(1000);
  set(sim.default_queue(), lent.slice(0), 9).wait();
  EXPECT_THAT(lent.to_vector(), Each(9U));
  pool.release(std::move(lent));
  EXPECT_EQ(pool.stats(false).pooled_buffers, 1U);
}

TEST_F(ManagerEnd, TheLeakReportNamesRemainingBuffers) {
  std::vector<std::string> names;
  ManagerOptions options;
  options.leaks.report_at_end = true;
  options.leaks.report = [&](LeakReport const& report) {
    for (auto const& leak : report.allocations) names.emplace_back(leak.name.view());
  };
  short_lived.emplace(options);
  Buffer left(1000, on_short_lived("left"));
  set(sim.default_queue(), left.slice(0), 9).wait();
  {
    Buffer const gone(1000, on_short_lived("gone"));
  }
  short_lived.reset();
  EXPECT_THAT(names, Each("left"));
  EXPECT_EQ(names.size(), 1U) << "device memory of one buffer, and no second report when that goes";
}

}  // namespace
}  // namespace unimem::testing
