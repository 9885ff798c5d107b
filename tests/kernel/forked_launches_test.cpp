#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/launch.hpp>

#include "core/sanitizers.hpp"
#include "core/sizes.hpp"
#include "forked_child.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <span>
#include <thread>
#include <tuple>
#include <vector>

// Launches in children of a process: what is their parent's is refused before anything is compiled.

namespace unimem {
namespace {

constexpr std::size_t count = 1000;

Kernel doubling() {
  return Kernel("doubling").host([](WorkItem i, std::span<float> x) { x[i.x] *= 2; });
}

class ForkedLaunches : public ::testing::Test {
 protected:
  [[nodiscard]] BufferOptions here() {
    BufferOptions options;
    options.manager = &manager;
    options.device = &sim;
    return options;
  }

  Device& sim = make_sim({.memory_bytes = 64 * MiB});
  MemoryManager manager;
};

// The first in this program: no queue was made yet.
TEST_F(ForkedLaunches, InheritedBuffersAreRefusedBeforeCompilation) {
  UnifiedBuffer<float> theirs(count, here());
  theirs.fill(1);
  auto const refused = [&] {
    auto const own = doubling();
    for (auto* const on : {&sim, &device("cpu")}) {
      EXPECT_HERE(is_refused([&] { launch(on->default_queue(), own, Range{count}, readwrite(theirs)); }));
      EXPECT_HERE(!own.is_built(*on));
    }
    EXPECT_HERE(std::as_const(theirs).at(count - 1) == 1);
    return 0;
  };
  EXPECT_EQ(in_child(refused), 0);
}

TEST_F(ForkedLaunches, NothingIsCompiledWhereNoQueueWorks) {
  auto& queue = sim.default_queue();
  queue.record().wait();
  auto const refused = [&] {
    auto const own = doubling();
    auto options = here();
    options.manager = nullptr;
    UnifiedBuffer<float> buffer(count, options);
    buffer.fill(1);
    EXPECT_HERE(is_refused([&] { launch(queue, own, Range{count}, readwrite(buffer)); }));
    EXPECT_HERE(!own.is_built(sim));
    return 0;
  };
  EXPECT_EQ(in_child(refused), 0);
}

TEST_F(ForkedLaunches, KernelsInUseAtTheForkAreBuiltAnew) {
  if (detail::is_sanitized)
    GTEST_SKIP() << "a child that is forked while a thread allocates hangs in the sanitizer's runtime";
  auto const theirs = doubling();
  std::atomic<bool> done{false};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!done) std::ignore = theirs.build(sim).is_built(sim);
    });
  }
  for (int round = 0; round < 60; ++round) {
    auto const ending = ending_of(fork(), [&] {
      EXPECT_HERE(!theirs.is_built(sim));
      EXPECT_HERE(theirs.build(sim).is_built(sim));
      auto const copy = theirs;
      EXPECT_HERE(copy.is_built(sim) && !copy.is_built(device("cpu")));
      return 0;
    });
    EXPECT_EQ(ending, 0);
    if (ending != 0) break;
  }
  done = true;
}

}  // namespace
}  // namespace unimem
