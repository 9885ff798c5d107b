#include "kernel/graph_conformance.hpp"

#include <unimem/device/sim.hpp>

#include <cstring>

// Graphs where the driver has none: their launches are submitted one by one.

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(Host, Graphs, ::testing::Values(GraphCase{"cpu", "cpu"}, GraphCase{"sim", "sim:memory=16MiB"}),
                         graph_case_name);

TEST(GraphsOfSeveralSubmissions, FailAsAWhole) {
  auto& sim = make_sim({});
  MemoryManager manager;
  BufferOptions options;
  options.manager = &manager;
  options.device = &sim;
  UnifiedBuffer<std::uint32_t> x(100, options), y(100, options);
  for (auto* const buffer : {&x, &y}) {
    buffer->fill(1);
    buffer->sync_to_device();
  }
  auto queue = sim.create_queue();
  auto const add = Kernel("add").host([](WorkItem i, std::span<std::uint32_t> data) { ++data[i.x]; });
  auto const graph = capture(queue, [&] {
    launch(queue, add, Range{100}, readwrite(x));
    launch(queue, add, Range{100}, readwrite(y));
    launch(queue, add, Range{100}, readwrite(x));
  });
  for (unsigned nth = 1; nth <= 3; ++nth) {
    SCOPED_TRACE(nth);
    set_sim_faults(sim, {.fail_run = nth});
    EXPECT_NE(graph.launch(queue).wait_for_error(), nullptr);
    set_sim_faults(sim, {});
    for (auto* const buffer : {&x, &y}) {
      EXPECT_THROW(std::ignore = buffer->host_view(), Error);
      EXPECT_EQ(buffer->to_vector(), std::vector<std::uint32_t>(100, 1)) << "the last good copy";
      buffer->sync_to_device();
      buffer->core().validate();
    }
  }
  graph.launch(queue).wait();
  EXPECT_EQ(x.to_vector(), std::vector<std::uint32_t>(100, 3));
  EXPECT_EQ(y.to_vector(), std::vector<std::uint32_t>(100, 2));
}

}  // namespace
}  // namespace unimem
