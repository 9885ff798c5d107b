#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/graph.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/kernel/native.hpp>

#include "device/gate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace unimem {

/// A device that graphs are captured on.
struct GraphCase {
  std::string name;    ///< letters, digits and underscores
  std::string device;  ///< as `device()` takes it
};

inline std::ostream& operator<<(std::ostream& out, GraphCase const& device) {
  return out << device.name;
}

/// The last argument of INSTANTIATE_TEST_SUITE_P.
inline std::string graph_case_name(::testing::TestParamInfo<GraphCase> const& info) {
  return info.param.name;
}

/// What graphs promise on every device, whether its driver has such a thing or not.
class Graphs : public ::testing::TestWithParam<GraphCase> {
 protected:
  using Words = std::vector<std::uint32_t>;
  using Buffer = UnifiedBuffer<std::uint32_t>;

  static constexpr std::size_t count = 100;

  [[nodiscard]] Buffer empty() {
    BufferOptions options;
    options.manager = &manager;
    options.device = &on;
    return Buffer(count, options);
  }
  [[nodiscard]] Buffer filled(std::uint32_t value) {
    auto buffer = empty();
    buffer.copy_from(Words(count, value));
    return buffer;
  }
  [[nodiscard]] Buffer synchronized(std::uint32_t value) {
    auto buffer = filled(value);
    buffer.sync_to_device();
    return buffer;
  }

  /// x = factor * x + amount.
  void affine(Buffer& x, std::uint32_t factor, std::uint32_t amount) {
    launch(queue, affine_kernel, Range{x.size()}, readwrite(x), factor, amount);
  }
  /// to = from + amount.
  void plus(Buffer const& from, Buffer& to, std::uint32_t amount) {
    launch(queue, plus_kernel, Range{to.size()}, read(from), write(to), amount);
  }

  /// What the device's own memory holds.
  [[nodiscard]] Words on_device(Buffer& buffer) {
    auto const lease = buffer.device_view(on);
    Words words(buffer.size());
    auto other = on.create_queue();
    other.download(words.data(), lease.native(), buffer.size_bytes()).wait();
    return words;
  }

  /// Copies of the buffer, either way.
  [[nodiscard]] static std::uint64_t copies(Buffer const& buffer) {
    auto const statistics = buffer.statistics();
    return statistics.host_to_device_copies + statistics.device_to_host_copies + statistics.device_to_device_copies;
  }

  Device& on = device(GetParam().device);
  MemoryManager manager;
  Queue queue = on.create_queue();
  Kernel affine_kernel = Kernel("affine")
                             .source(R"(UNIMEM_KERNEL affine(UNIMEM_BUFFER(unimem_u32, x), unimem_u32 factor,
                                                             unimem_u32 amount) {
      UNIMEM_GLOBAL unimem_u32* data = UNIMEM_DATA(unimem_u32, x);
      data[UNIMEM_ITEM_X] = data[UNIMEM_ITEM_X] * factor + amount; })")
                             .host([](WorkItem i, std::span<std::uint32_t> x, std::uint32_t factor,
                                      std::uint32_t amount) { x[i.x] = x[i.x] * factor + amount; });
  Kernel plus_kernel =
      Kernel("plus")
          .source(R"(UNIMEM_KERNEL plus(UNIMEM_CONST_BUFFER(unimem_u32, from), UNIMEM_BUFFER(unimem_u32, to),
                                        unimem_u32 amount) {
      UNIMEM_DATA(unimem_u32, to)[UNIMEM_ITEM_X] = UNIMEM_DATA(unimem_u32, from)[UNIMEM_ITEM_X] + amount; })")
          .host([](WorkItem i, std::span<const std::uint32_t> from, std::span<std::uint32_t> to, std::uint32_t amount) {
            to[i.x] = from[i.x] + amount;
          });
};

TEST_P(Graphs, RunCapturedLaunchesAgain) {
  auto x = synchronized(1), y = synchronized(5);
  auto const moved = copies(x) + copies(y);
  auto const graph = capture(queue, [&] {
    affine(x, 2, 1);
    plus(x, y, 10);
    affine(x, 1, 1);
  });
  EXPECT_EQ(graph.size(), 3U);
  EXPECT_EQ(&graph.device(), &on);
  queue.synchronize();
  EXPECT_EQ(on_device(x), Words(count, 1)) << "nothing has run";
  EXPECT_EQ(x.to_vector(), Words(count, 1));
  EXPECT_EQ(y.to_vector(), Words(count, 5));
  std::uint32_t expected_x = 1, expected_y = 5;
  for (int round = 0; round < 10; ++round) {
    graph.launch(queue);
    expected_x = 2 * expected_x + 1;
    expected_y = expected_x + 10;
    ++expected_x;
  }
  EXPECT_EQ(on_device(x), Words(count, expected_x));
  EXPECT_EQ(on_device(y), Words(count, expected_y));
  EXPECT_EQ(copies(x) + copies(y), moved);
  EXPECT_EQ(x.state(), BufferState::device_dirty);
  EXPECT_EQ(x.to_vector(), Words(count, expected_x));
  EXPECT_EQ(y.to_vector(), Words(count, expected_y));
  x.core().validate();
}

TEST_P(Graphs, PassResultsBetweenLaunches) {
  auto x = synchronized(3), between = empty(), y = empty();
  auto const graph = capture(queue, [&] {
    plus(x, between, 1);
    affine(between, 10, 0);
    plus(between, y, 2);
  });
  graph.launch(queue).wait();
  EXPECT_EQ(y.to_vector(), Words(count, 42));
  EXPECT_EQ(between.to_vector(), Words(count, 40));
  EXPECT_EQ(x.state(), BufferState::synchronized) << "it was only read";
}

TEST_P(Graphs, BringHostWritesIn) {
  auto x = synchronized(1), y = empty();
  auto const graph = capture(queue, [&] { plus(x, y, 1); });
  graph.launch(queue);
  auto const before = x.statistics().host_to_device_bytes;
  x.copy_from(Words(10, 7), 20);
  graph.launch(queue);
  auto expected = Words(count, 2);
  std::fill_n(expected.begin() + 20, 10, 8U);
  EXPECT_EQ(y.to_vector(), expected);
  if (!on.shares_storage_with_host()) {
    EXPECT_EQ(x.statistics().host_to_device_bytes - before, 40U);
  }
  // And what the host wrote over it is gone.
  y.copy_from(Words(count, 1000));
  graph.launch(queue);
  EXPECT_EQ(y.to_vector(), expected);
}

TEST_P(Graphs, TakeTheirTurnAmongLaunchesOfAnyQueue) {
  auto x = synchronized(0);
  auto other = on.create_queue();
  auto const graph = capture(queue, [&] {
    affine(x, 3, 1);
    affine(x, 1, 2);
  });
  std::uint32_t expected = 0;
  for (std::uint32_t round = 0; round < 20; ++round) {
    graph.launch(round % 2 == 0 ? queue : other);
    launch(round % 3 == 0 ? queue : other, affine_kernel, Range{count}, readwrite(x), 1U, round);
    expected = expected * 3 + 3 + round;
  }
  EXPECT_EQ(x.to_vector(), Words(count, expected));
}

TEST_P(Graphs, PartsOfBuffersAreWhatTheyAre) {
  auto x = synchronized(1), y = synchronized(1);
  auto const graph = capture(queue, [&] {
    launch(queue, affine_kernel, Range{10}, readwrite(x, 50, 10), 1U, 5U);
    launch(queue, plus_kernel, Range{10}, read(x, 50, 10), write(y.slice(0, 10)), 1U);
  });
  auto const before = x.statistics().device_to_host_bytes;
  graph.launch(queue);
  graph.launch(queue);
  auto expected = Words(count, 1);
  std::fill_n(expected.begin() + 50, 10, 11U);
  EXPECT_EQ(x.to_vector(), expected);
  if (!on.shares_storage_with_host()) {
    EXPECT_EQ(x.statistics().device_to_host_bytes - before, 40U) << "what was written, and no more";
  }
  expected.assign(count, 1);
  std::fill_n(expected.begin(), 10, 12U);
  EXPECT_EQ(y.to_vector(), expected);
}

TEST_P(Graphs, CaptureRefusesLaunchesThatNeedCopies) {
  auto x = synchronized(1), y = filled(5);
  auto const refusal = [&](auto const& launches) -> std::string {
    try {
      std::ignore = capture(queue, launches);
    } catch (UnsupportedOperation const& error) {
      return error.what();
    }
    return {};
  };
  EXPECT_THAT(refusal([&] {
                affine(x, 2, 0);
                affine(y, 2, 0);
              }),
              ::testing::HasSubstr("not up to date on " + std::string(on.id())));
  EXPECT_NE(refusal([&] {
              try {
                affine(y, 2, 0);
              } catch (UnsupportedOperation const&) {
                affine(x, 2, 0);
              }
            }),
            "")
      << "also where somebody has caught it";
  EXPECT_EQ(x.state(), BufferState::synchronized);
  EXPECT_EQ(y.state(), BufferState::host_dirty);
  // What is overwritten need not be there.
  auto const graph = capture(queue, [&] { plus(x, y, 1); });
  graph.launch(queue);
  EXPECT_EQ(y.to_vector(), Words(count, 2));
  EXPECT_EQ(x.to_vector(), Words(count, 1));
}

TEST_P(Graphs, RefuseOtherUsesDuringCapture) {
  auto x = synchronized(1), y = synchronized(2);
  std::vector<std::function<void()>> const uses{
      [&] { std::ignore = std::as_const(x).host_view(); },
      [&] { std::ignore = x.host(); },
      [&] { x.sync_to_host(); },
      [&] { x.sync_to_device(); },
      [&] { x.synchronize(); },
      [&] { x.fill(9); },
      [&] { x.copy_from(Words(count, 9)); },
      [&] { x.mark_host_dirty(); },
      [&] { std::ignore = x.device_view(on); },
      [&] { std::ignore = x.device_view(queue); },
      [&] { std::ignore = x.prefetch(); },
      [&] { copy(x, y); },
      [&] { x.release_device(); },
      [&] { x.discard(); },
      [&] { x.free(); },
      [&] { x.reset(); },
  };
  auto const graph = capture(queue, [&] {
    affine(x, 2, 0);
    for (std::size_t i = 0; i < uses.size(); ++i) EXPECT_THROW(uses[i](), UnsupportedOperation) << i;
    EXPECT_EQ(y.to_vector(), Words(count, 2)) << "one that is not captured is as ever";
    affine(x, 1, 1);
  });
  EXPECT_EQ(x.to_vector(), Words(count, 1));
  EXPECT_EQ(y.to_vector(), Words(count, 2));
  EXPECT_EQ(x.state(), BufferState::synchronized);
  graph.launch(queue);
  EXPECT_EQ(x.to_vector(), Words(count, 3));
}

TEST_P(Graphs, ExceptionsEndTheCapture) {
  auto x = synchronized(1);
  EXPECT_THROW(std::ignore = capture(queue,
                                     [&] {
                                       affine(x, 2, 0);
                                       throw std::domain_error("no more of this");
                                     }),
               std::domain_error);
  EXPECT_EQ(x.state(), BufferState::synchronized);
  EXPECT_EQ(x.to_vector(), Words(count, 1));
  affine(x, 2, 0);
  EXPECT_EQ(x.to_vector(), Words(count, 2)) << "it runs and is not captured";
  EXPECT_NO_THROW(x.release_device()) << "nothing is leased";
}

TEST_P(Graphs, CaptureOneQueuesLaunches) {
  auto x = synchronized(1);
  auto other = on.create_queue();
  auto const refused = [&](std::function<void()> const& launches) {
    EXPECT_THROW(std::ignore = capture(queue, launches), UnsupportedOperation);
    EXPECT_EQ(x.to_vector(), Words(count, 1));
    x.sync_to_device();
  };
  refused([&] { launch(other, affine_kernel, Range{count}, readwrite(x), 2U, 0U); });
  refused([&] { launch(affine_kernel, Range{count}, readwrite(x), 2U, 0U); });
  refused([&] { std::ignore = capture(other, [&] { affine(x, 2, 0); }); });
  refused([&] { with_native(queue, [](void*, DeviceMemory) { FAIL(); }, readwrite(x)); });
  auto const graph = capture(queue, [&] { affine(x, 2, 0); });
  refused([&] { graph.launch(queue); });
  EXPECT_THROW(std::ignore = capture(queue, nullptr), InvalidArgument);
  graph.launch(other);
  EXPECT_EQ(x.to_vector(), Words(count, 2));
}

TEST_P(Graphs, MayBeLaunchedFromSeveralThreads) {
  auto x = synchronized(0);
  auto const graph = capture(queue, [&] {
    affine(x, 1, 1);
    affine(x, 1, 2);
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      auto own = on.create_queue();
      for (int j = 0; j < 25; ++j) graph.launch(own).wait();
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(x.to_vector(), Words(count, 300));
}

TEST_P(Graphs, RefuseWrongLaunches) {
  auto x = synchronized(1);
  auto const wrong = [&] {
    auto const graph = capture(queue, [&] { launch(queue, affine_kernel, Range{count}, readwrite(x)); });
    graph.launch(queue);  // where only the driver knows what a kernel takes
  };
  EXPECT_THROW(wrong(), KernelError);
  EXPECT_EQ(x.to_vector(), Words(count, 1));
  EXPECT_EQ(x.state(), BufferState::synchronized);
}

TEST_P(Graphs, WithoutLaunchesHaveNothingToDo) {
  auto x = synchronized(1);
  auto const nothing = capture(queue, [] {});
  EXPECT_EQ(nothing.size(), 0U);
  EXPECT_TRUE(nothing.launch(queue).ready());
  auto const no_items = capture(queue, [&] { launch(queue, affine_kernel, Range{0}, readwrite(x), 2U, 0U); });
  no_items.launch(queue).wait();
  EXPECT_EQ(x.to_vector(), Words(count, 1));
}

TEST_P(Graphs, KeepTheirBuffersMemoryWhereItIs) {
  auto x = synchronized(1);
  {
    auto const graph = capture(queue, [&] { affine(x, 2, 0); });
    EXPECT_THROW(x.release_device(), InvalidArgument) << "it is leased";
    graph.launch(queue);
  }
  x.release_device();
  EXPECT_EQ(x.to_vector(), Words(count, 2));
}

TEST_P(Graphs, OutliveTheirBuffers) {
  if (works_in_the_submitting_thread(on)) GTEST_SKIP() << "submitting behind a gate would never come back";
  std::optional<Buffer> gone{synchronized(1)};
  auto freed = synchronized(1), result = empty();
  auto with_gone = capture(queue, [&] { plus(*gone, result, 1); });
  auto const with_freed = capture(queue, [&] { affine(freed, 2, 0); });
  {
    Gate const gate{queue};
    with_gone.launch(queue);
    with_freed.launch(queue);
    gone.reset();
  }
  EXPECT_EQ(result.to_vector(), Words(count, 2)) << "it was in flight";
  EXPECT_THROW(with_gone.launch(queue), UnsupportedOperation);
  freed.free();
  auto other = synchronized(77);
  freed.copy_from(Words(count, 5));
  EXPECT_THROW(with_freed.launch(queue), UnsupportedOperation);
  EXPECT_EQ(freed.to_vector(), Words(count, 5));
  EXPECT_EQ(other.to_vector(), Words(count, 77));
  EXPECT_EQ(result.to_vector(), Words(count, 2));
  // Another one in its place.
  with_gone = capture(queue, [&] { plus(other, result, 3); });
  with_gone.launch(queue);
  EXPECT_EQ(result.to_vector(), Words(count, 80));
}

TEST_P(Graphs, AMovedFromGraphIsAnError) {
  auto x = synchronized(1);
  auto graph = capture(queue, [&] { affine(x, 2, 0); });
  auto const kept = std::move(graph);
  EXPECT_THROW(graph.launch(queue), InvalidArgument);  // NOLINT(bugprone-use-after-move): that is what is tested
  EXPECT_EQ(graph.size(), 0U);
  kept.launch(queue);
  EXPECT_EQ(x.to_vector(), Words(count, 2));
  auto& elsewhere = on.id() == "cpu" ? device("sim:memory=1MiB") : device("cpu");
  EXPECT_THROW(kept.launch(elsewhere.default_queue()), UnsupportedOperation);
}

}  // namespace unimem
