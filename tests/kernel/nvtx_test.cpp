#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/graph.hpp>
#include <unimem/kernel/launch.hpp>

#include "core/nvtx.hpp"
#include "core/nvtx_tool.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <thread>

// What a tool that listens to NVTX is shown of launches and transfers.

namespace unimem {
namespace {

using ::testing::ElementsAre;

bool const has_tool = [] {
  setenv("NVTX_INJECTION64_PATH", UNIMEM_NVTX_TOOL, 1);
  return true;
}();

class RangesOfATool : public ::testing::Test {
 protected:
  RangesOfATool() {
    EXPECT_TRUE(has_tool);
    detail::NvtxRange const first{[] { return std::string("first"); }};
  }

  /// What the tool has been told since the last call.
  [[nodiscard]] std::vector<std::string> told() {
    auto const all = testing::told_to_tool(UNIMEM_NVTX_TOOL);
    std::vector<std::string> fresh(all.begin() + static_cast<std::ptrdiff_t>(seen), all.end());
    seen = all.size();
    return fresh;
  }

  [[nodiscard]] UnifiedBuffer<std::uint32_t> buffer(std::string name) {
    BufferOptions options;
    options.manager = &manager;
    options.device = &sim;
    options.name = std::move(name);
    return UnifiedBuffer<std::uint32_t>(100, options);
  }

  Device& sim = make_sim({});
  MemoryManager manager;
  Kernel increment = Kernel("increment").host([](WorkItem i, std::span<std::uint32_t> x) { ++x[i.x]; });
  std::size_t seen = 0;
};

TEST_F(RangesOfATool, AreNamedAfterKernelsAndBuffers) {
  EXPECT_THAT(told(), ::testing::Contains("domain unimem"));
  auto x = buffer("weights"), y = buffer("");
  x.fill(1);
  y.fill(2);
  EXPECT_THAT(told(), ElementsAre()) << "nothing has moved";
  auto const id = std::string(sim.id());
  launch(increment, Range{100}, readwrite(x));
  EXPECT_THAT(told(), ElementsAre("push increment", "push weights: host to " + id, "pop", "pop"));
  launch(increment, Range{100}, readwrite(x));
  EXPECT_THAT(told(), ElementsAre("push increment", "pop")) << "it is there already";
  EXPECT_EQ(x.to_vector(), std::vector<std::uint32_t>(100, 3));
  EXPECT_THAT(told(), ElementsAre("push weights: " + id + " to host", "pop"));
  y.sync_to_device();
  EXPECT_THAT(told(), ElementsAre("push kernel/nvtx_test.cpp:49: host to " + id, "pop"));
}

TEST_F(RangesOfATool, ShowAGraphAsOne) {
  auto x = buffer("x");
  x.fill(1);
  x.sync_to_device();
  auto& queue = sim.default_queue();
  auto const graph = capture(queue, [&] {
    for (int i = 0; i < 3; ++i) launch(queue, increment, Range{100}, readwrite(x));
  });
  static_cast<void>(told());
  graph.launch(queue).wait();
  EXPECT_THAT(told(), ElementsAre("push a graph of 3 launches", "pop"));
}

TEST_F(RangesOfATool, EndAlsoWhereALaunchIsRefused) {
  auto x = buffer("x");
  static_cast<void>(told());
  EXPECT_THROW(launch(increment, Range{100}, readwrite(x), 2.0F), KernelError);
  EXPECT_THAT(told(), ElementsAre("push increment", "pop"));
  {
    detail::NvtxRange const unnamed{[]() -> std::string { throw std::runtime_error("no memory for a name"); }};
  }
  EXPECT_THAT(told(), ElementsAre()) << "a range that cannot be named is none";
}

TEST_F(RangesOfATool, AreEachThreadsOwn) {
  static_cast<void>(told());
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 100; ++i) detail::NvtxRange const range{[] { return std::string("shared"); }};
      });
    }
  }
  auto const all = told();
  EXPECT_EQ(std::ranges::count(all, "push shared"), 400);
  EXPECT_EQ(std::ranges::count(all, "pop"), 400);
}

}  // namespace
}  // namespace unimem
