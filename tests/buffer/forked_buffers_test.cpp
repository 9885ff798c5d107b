#include <unimem/buffer/double_buffer.hpp>
#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "core/sanitizers.hpp"
#include "core/sizes.hpp"
#include "forked_child.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

// Children of a process whose other threads were in the middle of buffers when it forked: they have the host's data,
// and make buffers of their own.

namespace unimem {
namespace {

constexpr std::size_t count = 5000;

using Buffer = UnifiedBuffer<std::uint32_t>;

class ForkedBuffers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (detail::is_sanitized)
      GTEST_SKIP() << "a child that is forked while a thread allocates hangs in the sanitizer's runtime";
  }

  [[nodiscard]] BufferOptions options(char const* name) {
    BufferOptions result;
    result.manager = &manager;
    result.device = &sim;
    result.name = name;
    return result;
  }

  /// Forks again and again while three threads do `work`, whatever they are in the middle of.
  template <class Work, class InChild>
  void fork_during(Work const& work, InChild const& in_child, int rounds = 60) {
    std::atomic<bool> done{false};
    std::vector<std::jthread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&, i] {
        while (!done) work(i);
      });
    }
    for (int round = 0; round < rounds; ++round) {
      auto const ending = ending_of(fork(), in_child);
      EXPECT_EQ(ending, 0);
      if (ending != 0) break;
    }
    done = true;
  }

  /// A buffer of a child's own, from its beginning to its end, and what it is refused of its parent's.
  int use_own() {
    EXPECT_HERE(is_refused([&] { Buffer(count, options("theirs")); }));
    EXPECT_HERE(is_refused([&] { std::ignore = manager.usage(); }));
    EXPECT_HERE(is_refused([&] { std::ignore = manager.pool(device("cpu"), Location::host).statistics(); }));
    auto& own_manager = default_manager();
    EXPECT_HERE(own_manager.usage().total.live_bytes == 0);  // whatever the parent's has
    {
      auto of_default = options("own");
      of_default.manager = nullptr;
      Buffer own(count, std::move(of_default));
      own.fill(3);
      own.host()[7] = 9;
      EXPECT_HERE(std::as_const(own).at(7) == 9 && std::as_const(own).at(count - 1) == 3);
      own.resize(2 * count);
      auto const copy = own.clone();
      EXPECT_HERE(copy.at(7) == 9);
      EXPECT_HERE(is_refused([&] { own.sync_to_device(); }));
      auto const live = own_manager.usage().total.live_bytes;
      EXPECT_HERE(live == 3 * count * sizeof(std::uint32_t) || live == 4 * count * sizeof(std::uint32_t));
      own.core().validate();
    }
    EXPECT_HERE(own_manager.usage().total.live_bytes == 0);
    std::ignore = own_manager.statistics();
    own_manager.pool(device("cpu"), Location::host).validate();
    own_manager.cleanup();
    own_manager.pool(device("cpu"), Location::host).validate();
    return 0;
  }

  Device& sim = make_sim({.memory_bytes = 64 * MiB});
  MemoryManager manager;
};

TEST_F(ForkedBuffers, WorkInAChildOfABusyParent) {
  Buffer kept(count, options("kept"));
  kept.fill(5);
  fork_during(
      [&](int i) {
        auto theirs = options(i == 0 ? "" : "theirs");
        if (i == 2) theirs.manager = nullptr;  // the default one
        Buffer one(static_cast<std::size_t>(i + 1) * count, std::move(theirs));
        one.fill(1);
        one.host()[0] = 2;
        std::ignore = manager.usage();
      },
      [&] {
        EXPECT_HERE(std::as_const(kept).at(count - 1) == 5);
        kept.host()[1] = 6;
        EXPECT_HERE(std::as_const(kept).at(1) == 6);
        return use_own();
      });
  EXPECT_EQ(std::as_const(kept).at(1), 5U);
  EXPECT_EQ(manager.usage().total.live_bytes, count * sizeof(std::uint32_t));
}

TEST_F(ForkedBuffers, KeepHostDataDespiteTheParentsDeviceWork) {
  Buffer kept(count, options("kept"));
  kept.fill(5);
  std::optional<Queue> queue = sim.create_queue();
  queue->record().wait();  // background work has begun
  fork_during(
      [&](int) {
        Buffer one(count, options("theirs"));
        one.fill(1);
        one.sync_to_device();
        std::ignore = one.device_view();
        one.mark_device_dirty();
        one.sync_to_host();
        queue->record().wait();
      },
      [&] {
        EXPECT_HERE(std::as_const(kept).at(count - 1) == 5);
        EXPECT_HERE(is_refused([&] { kept.sync_to_device(); }));
        EXPECT_HERE(std::as_const(kept).at(0) == 5);
        queue.reset();
        return use_own();
      });
}

/// What does not fit the device is used there in windows: what only they have stays the parent's.
TEST_F(ForkedBuffers, WindowsOfTheParentStayThere) {
  constexpr std::size_t words = MiB, slice = words / 16;  // 4 MiB
  manager.set_limit(sim, MiB);
  auto& of_kept = make_sim({.memory_bytes = MiB});
  MemoryManager its_own;  // whoever needs room in the other one looks at each of its buffers, if only for a moment
  auto const raise_slice = [&](Buffer& of, std::size_t at) {
    auto part = of.slice(at * slice, slice);
    auto const lease = part.device();
    for (std::size_t i = 0; i < slice; ++i) ++lease.data()[i];
  };
  auto on_its_own = options("kept");
  on_its_own.device = &of_kept;
  on_its_own.manager = &its_own;
  Buffer kept(words, on_its_own);
  kept.fill(5);
  raise_slice(kept, 1);
  fork_during(
      [&](int) {
        Buffer one(words, options("theirs"));
        one.fill(1);
        for (std::size_t at = 0; at < 8; ++at) raise_slice(one, at);
        EXPECT_EQ(std::as_const(one).at(slice), 2U);
      },
      [&] {
        EXPECT_HERE(std::as_const(kept).at(slice - 1) == 5);
        EXPECT_HERE(is_refused([&] { std::ignore = std::as_const(kept).at(slice); }));
        EXPECT_HERE(is_refused([&] { raise_slice(kept, 2); }));
        EXPECT_HERE(std::as_const(kept).at(2 * slice) == 5);
        kept.host_overwrite()[slice] = 7;
        EXPECT_HERE(std::as_const(kept).at(slice) == 7);
        std::ignore = Buffer(std::move(kept));  // gone
        return use_own();
      },
      20);
  EXPECT_EQ(std::as_const(kept).at(slice), 6U);
  raise_slice(kept, 1);
  EXPECT_EQ(std::as_const(kept).at(slice), 7U);
}

TEST_F(ForkedBuffers, DoubleBuffersTakeNoLockOfTheParents) {
  DoubleBuffer<std::uint32_t> theirs(count, options("theirs"));
  fork_during(
      [&](int i) {
        if (i == 0 && theirs.try_back() != nullptr) theirs.publish();
        if (i == 1 && theirs.try_front() != nullptr) theirs.release();
        std::ignore = theirs.closed();
      },
      [&] {
        EXPECT_HERE(is_refused([&] { std::ignore = theirs.try_back(); }));
        EXPECT_HERE(is_refused([&] { std::ignore = theirs.try_front(); }));
        theirs.close();
        return theirs.closed() ? 0 : 1;
      });
}

TEST_F(ForkedBuffers, BusyInTheParentAreUsedOrRefused) {
  Buffer theirs(64 * count, options("theirs"));
  std::atomic<std::uint32_t> last{0};
  fork_during(
      [&](int i) {
        if (i == 0) theirs.fill(++last);
        if (i != 0) std::this_thread::yield();
      },
      [&] {
        auto const use = [&] {
          theirs.host()[0] = 1;
          std::ignore = std::as_const(theirs).at(64 * count - 1);
          theirs.core().validate();
        };
        try {
          use();
        } catch (UnsupportedOperation const& error) {
          EXPECT_HERE(error.where == "a forked child process");
          // By its name, or for want of memory if it has none on the host yet.
          bool const has_memory = error.operation != "using a memory manager";
          EXPECT_HERE(!has_memory || std::string(error.what()).find("'theirs'") != std::string::npos);
          EXPECT_HERE(is_refused(use));
        }
        std::ignore = theirs.state();
        std::ignore = theirs.tracking();
        std::ignore = theirs.statistics();
        std::ignore = Buffer(std::move(theirs));  // gone
        return use_own();
      });
}

}  // namespace
}  // namespace unimem
