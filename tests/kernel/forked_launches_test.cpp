#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/launch.hpp>

#include "core/sanitizers.hpp"
#include "core/sizes.hpp"
#include "forked_child.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
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

TEST_F(ForkedLaunches, BytesBeingWrittenAreRefusedEachTime) {
  UnifiedBuffer<float> theirs(count, here()), kept(count, here());
  theirs.fill(1);
  kept.fill(1);
  std::atomic<bool> goes_on{false};
  auto const writes = Kernel("writes").host([&](WorkItem i, std::span<const float> from, std::span<float> to) {
    goes_on.wait(false);
    to[i.x] = from[i.x] + 1;
  });
  auto const half = count / 2;
  auto const done = launch(sim.default_queue(), writes, Range{half}, read(kept), readwrite(theirs.slice(0, half)));
  auto const& seen = theirs;
  std::vector<float> some(10, 7);
  std::array<std::function<void()>, 12> const ways{[&] { std::ignore = seen.to_vector(); },
                                                   [&] { std::ignore = seen.host_view(); },
                                                   [&] { std::ignore = theirs.host(); },
                                                   [&] { std::ignore = theirs.host_overwrite(10, 10); },
                                                   [&] { std::ignore = theirs.map(MapMode::read); },
                                                   [&] { seen.copy_to(some, 10); },
                                                   [&] { theirs.copy_from(some, 100); },
                                                   [&] { theirs.fill(3, 50, 5); },
                                                   [&] { theirs.sync_to_host(); },
                                                   [&] { theirs.mark_host_dirty(10, 3); },
                                                   [&] { theirs.resize(5); },
                                                   [&] { theirs.release_device(); }};
  for (std::size_t first = 0; first < ways.size(); ++first) {
    auto const refused = [&] {
      EXPECT_HERE(is_refused(ways[first]));
      for (auto const& way : ways) EXPECT_HERE(is_refused(way));
      EXPECT_HERE(seen.at(half) == 1);
      std::vector<float> rest(count - half);
      seen.copy_to(rest, half);
      EXPECT_HERE(rest.front() == 1 && rest.back() == 1);
      EXPECT_HERE(std::as_const(kept).at(0) == 1);
      kept.host()[0] = 5;
      EXPECT_HERE(std::as_const(kept).at(0) == 5);
      return 0;
    };
    EXPECT_EQ(in_child(refused), 0) << first;
  }
  goes_on = true;
  goes_on.notify_all();
  done.wait();
  EXPECT_EQ(seen.at(0), 2);
  EXPECT_EQ(seen.at(half), 1);
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
