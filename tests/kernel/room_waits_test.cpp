#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "buffer/spilling_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

// Host kernels that look at the operands of operations that make room: on a device of its own memory, and in the host's
// memory, from which buffers go to files. What an operation evicts may be what such a kernel works on.

namespace unimem {
namespace {

using ::testing::Each;

constexpr std::size_t elements = std::size_t{32} << 10;
constexpr std::size_t size = elements * sizeof(int);

class RoomForWork : public ::testing::TestWithParam<char const*> {
 protected:
  /// For so many buffers, where kernels work.
  void room_for(double buffers) {
    manager.set_limit(on, in_files ? Location::host : Location::device, static_cast<std::size_t>(buffers * size));
  }

  UnifiedBuffer<int> made(int value) {
    BufferOptions options;
    options.manager = &manager;
    options.device = &on;
    UnifiedBuffer<int> buffer(elements, options);
    buffer.fill(value);
    return buffer;
  }

  [[nodiscard]] std::uint64_t evictions() const {
    auto const counts = manager.statistics();
    return in_files ? counts.host_reclaims : counts.reclaims;
  }

  /// For work on what is cached.
  [[nodiscard]] std::uint64_t pool_waits() {
    return manager.pool(on, in_files ? Location::host : Location::device).statistics().waits;
  }

  bool in_files = std::string_view(GetParam()) == "cpu";
  Device& on = in_files ? device("cpu") : make_sim({});
  testing::Directory const directory;
  MemoryManager manager{ManagerOptions{.spill = {.directory = in_files ? directory.path() : ""}}};
  Queue queue = on.create_queue(), second = on.create_queue();
  Kernel add = Kernel("add").host([](WorkItem i, std::span<int> data) { ++data[i.x]; });
  Kernel set = Kernel("set").host([](WorkItem i, std::span<int> data) { data[i.x] = 7; });
};

/// The eviction waits for the very kernel that looks.
TEST_P(RoomForWork, LooksAtAnEvictingOperandAreAnswered) {
  room_for(1.5);
  for (int round = 0; round < 5; ++round) {
    auto victim = made(1), operand = made(2);
    std::promise<void> runs;
    std::atomic<bool> launches{false};
    std::string seen = "nothing";
    auto const kernel = Kernel("looks").host([&](WorkItem, std::span<int> data) {
      runs.set_value();
      while (!launches) std::this_thread::yield();
      auto const end = std::chrono::steady_clock::now() + std::chrono::milliseconds{40};
      try {
        while (std::chrono::steady_clock::now() < end) {
          static_cast<void>(operand.is_allocated());
          static_cast<void>(operand.valid_on_host());
        }
      } catch (UnsupportedOperation const& error) {
        seen = error.what();
      }
      ++data[0];
    });
    auto const event = launch(queue, kernel, Range{1}, readwrite(victim));
    runs.get_future().wait();
    auto const before = evictions();
    std::jthread user{[&] {
      launches = true;
      launch(second, add, Range{elements}, readwrite(operand)).wait();
    }};
    user.join();
    event.wait();
    EXPECT_EQ(seen, "nothing") << round;
    EXPECT_THAT(operand.to_vector(), Each(3)) << round;
    EXPECT_EQ(victim.to_vector()[0], 2) << round;
    EXPECT_GT(evictions(), before) << round << ": nothing was to be shown";
  }
}

/// Several threads, each with buffers of its own, two of which are operands together, and room for some of all.
TEST_P(RoomForWork, LooksAreAnsweredWhileManyMakeRoom) {
  constexpr std::size_t users = 4, each = 3;
  for (unsigned seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    room_for(in_files ? 9.5 : 3.5);
    std::vector<UnifiedBuffer<int>> buffers;
    for (std::size_t i = 0; i < users * each; ++i) buffers.push_back(made(0));
    std::atomic<int> refused{0}, wrong{0};
    auto const kernel = Kernel("looks at all").host([&](WorkItem, std::span<int> one, std::span<int> other) {
      for (auto const& buffer : buffers) {
        try {
          static_cast<void>(buffer.is_allocated());
          static_cast<void>(buffer.valid_on_host());
        } catch (UnsupportedOperation const&) {
          ++refused;
        }
      }
      ++one[elements - 1];
      ++other[elements - 1];
    });
    auto const use = [&](std::size_t user) {
      std::mt19937 random(seed * users + static_cast<unsigned>(user));
      auto const own = std::span(buffers).subspan(user * each, each);
      std::array<int, each> truth{};
      auto own_queue = on.create_queue();
      for (int step = 0; step < 60; ++step) {
        auto const one = random() % each, other = (one + 1 + random() % (each - 1)) % each;
        launch(own_queue, kernel, Range{1}, readwrite(own[one]), readwrite(own[other]));
        ++truth[one];
        ++truth[other];
        auto const look = random() % each;
        if (random() % 2 == 0 && own[look].to_vector()[elements - 1] != truth[look]) ++wrong;
      }
      for (std::size_t i = 0; i < each; ++i) wrong += own[i].to_vector()[elements - 1] != truth[i] ? 1 : 0;
    };
    auto const before = evictions();
    std::vector<std::jthread> threads;
    for (std::size_t user = 0; user < users; ++user) threads.emplace_back(use, user);
    threads.clear();
    EXPECT_EQ(refused, 0);
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(evictions(), before) << "nothing was to be shown";
  }
  EXPECT_EQ(manager.statistics().refusals, 0U);
}

/// The memory of a buffer that has gone comes back with the very kernel that looks.
TEST_P(RoomForWork, LooksAreAnsweredWhileCachedMemoryComes) {
  room_for(1.5);
  for (int round = 0; round < 5; ++round) {
    std::optional gone = made(1);
    BufferOptions options;
    options.manager = &manager;
    options.device = &on;
    UnifiedBuffer<int> operand(3 * elements / 4, options);  // no block of the other's size would serve
    std::promise<void> runs;
    std::atomic<bool> launches{false};
    std::string seen = "nothing";
    auto const kernel = Kernel("looks").host([&](WorkItem, std::span<int>) {
      runs.set_value();
      while (!launches) std::this_thread::yield();
      auto const end = std::chrono::steady_clock::now() + std::chrono::milliseconds{40};
      try {
        while (std::chrono::steady_clock::now() < end) {
          static_cast<void>(operand.is_allocated());
          static_cast<void>(operand.valid_on_host());
        }
      } catch (UnsupportedOperation const& error) {
        seen = error.what();
      }
    });
    auto const event = launch(queue, kernel, Range{1}, readwrite(*gone));
    runs.get_future().wait();
    gone.reset();
    auto const before = pool_waits();
    std::jthread user{[&] {
      launches = true;
      launch(second, set, Range{operand.size()}, write(operand)).wait();
    }};
    user.join();
    event.wait();
    EXPECT_EQ(seen, "nothing") << round;
    EXPECT_THAT(operand.to_vector(), Each(7)) << round;
    EXPECT_GT(pool_waits(), before) << round << ": nothing was to be shown";
  }
  EXPECT_EQ(manager.statistics().refusals, 0U);
}

/// Several threads, each of which has some buffers for good, and leaves the memory of others behind with kernels.
TEST_P(RoomForWork, LooksAreAnsweredWhileMuchIsCached) {
  constexpr std::size_t users = 4, each = 2;
  for (unsigned seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    room_for(in_files ? 8.5 : 5.5);
    std::vector<UnifiedBuffer<int>> buffers;
    for (std::size_t i = 0; i < users * each; ++i) buffers.push_back(made(0));
    std::atomic<int> refused{0}, wrong{0};
    auto const kernel = Kernel("looks at all").host([&](WorkItem, std::span<int> data) {
      for (auto const& buffer : buffers) {
        try {
          static_cast<void>(buffer.is_allocated());
          static_cast<void>(buffer.valid_on_host());
        } catch (UnsupportedOperation const&) {
          ++refused;
        }
      }
      ++data[0];
    });
    auto const use = [&](std::size_t user) {
      std::mt19937 random(seed * users + static_cast<unsigned>(user));
      auto const own = std::span(buffers).subspan(user * each, each);
      std::array<int, each> truth{};
      auto own_queue = on.create_queue();
      for (int step = 0; step < 60; ++step) {
        BufferOptions options;
        options.manager = &manager;
        options.device = &on;
        UnifiedBuffer<int> passing(elements / 2 + random() % (elements / 2), options);
        launch(own_queue, kernel, Range{1}, write(passing));
        auto const one = random() % each;
        launch(own_queue, kernel, Range{1}, readwrite(own[one]));
        ++truth[one];
        if (random() % 4 == 0 && own[one].to_vector()[0] != truth[one]) ++wrong;
      }
      for (std::size_t i = 0; i < each; ++i) wrong += own[i].to_vector()[0] != truth[i] ? 1 : 0;
    };
    auto const before = pool_waits();
    std::vector<std::jthread> threads;
    for (std::size_t user = 0; user < users; ++user) threads.emplace_back(use, user);
    threads.clear();
    EXPECT_EQ(refused, 0);
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(pool_waits(), before) << "nothing was to be shown";
  }
  EXPECT_EQ(manager.statistics().refusals, 0U);
}

/// Between two devices that do not reach each other copies go by way of host memory, for which buffers go to files.
class RoomBetweenDevices : public ::testing::Test {
 protected:
  void room_for(double buffers) {
    auto& host = device("cpu");
    manager.set_limit(host, Location::pinned, 1);
    manager.set_limit(host, Location::host, static_cast<std::size_t>(buffers * size));
  }

  UnifiedBuffer<int> made(Device& on, int value) {
    BufferOptions options;
    options.manager = &manager;
    options.device = &on;
    UnifiedBuffer<int> buffer(elements, options);
    buffer.fill(value);
    return buffer;
  }
  UnifiedBuffer<int> only_on(Device& on, int value) {
    auto buffer = made(on, value);
    buffer.sync_to_device();
    buffer.release_host();
    return buffer;
  }

  testing::Directory const directory;
  MemoryManager manager{ManagerOptions{.spill = {.directory = directory.path()}}};
  Device &island = make_sim({.peer = false}), &islet = make_sim({.peer = false});
  Kernel add = Kernel("add").host([](WorkItem i, std::span<int> data) { ++data[i.x]; });
};

/// What goes to a file is what the kernel works on.
TEST_F(RoomBetweenDevices, LooksAtAnOperandOnItsWayAreAnswered) {
  room_for(1.5);
  auto queue = device("cpu").create_queue(), there = islet.create_queue();
  for (int round = 0; round < 5; ++round) {
    auto operand = only_on(island, 2);
    auto victim = made(device("cpu"), 1);
    std::promise<void> runs;
    std::atomic<bool> launches{false};
    std::string seen = "nothing";
    auto const kernel = Kernel("looks").host([&](WorkItem, std::span<int> data) {
      runs.set_value();
      while (!launches) std::this_thread::yield();
      auto const end = std::chrono::steady_clock::now() + std::chrono::milliseconds{40};
      try {
        while (std::chrono::steady_clock::now() < end) {
          static_cast<void>(operand.is_allocated());
          static_cast<void>(operand.valid_on_host());
        }
      } catch (UnsupportedOperation const& error) {
        seen = error.what();
      }
      ++data[0];
    });
    auto const event = launch(queue, kernel, Range{1}, readwrite(victim));
    runs.get_future().wait();
    auto const before = manager.statistics().host_reclaims;
    std::jthread user{[&] {
      launches = true;
      launch(there, add, Range{elements}, readwrite(operand)).wait();
    }};
    user.join();
    event.wait();
    EXPECT_EQ(seen, "nothing") << round;
    EXPECT_GT(manager.statistics().host_reclaims, before) << round << ": nothing was to be shown";
    EXPECT_FALSE(operand.valid_on_host()) << round;
    EXPECT_THAT(operand.to_vector(), Each(3)) << round;
    EXPECT_EQ(victim.to_vector()[0], 2) << round;
  }
  EXPECT_EQ(manager.statistics().refusals, 0U);
}

/// Each thread has a buffer that goes to and fro, and two in the host's memory.
TEST_F(RoomBetweenDevices, LooksAreAnsweredWhileManyGoAcross) {
  constexpr std::size_t users = 4;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    room_for(7.5);
    std::vector<UnifiedBuffer<int>> travel, stay;
    for (std::size_t i = 0; i < users; ++i) travel.push_back(only_on(island, 0));
    for (std::size_t i = 0; i < 2 * users; ++i) stay.push_back(made(device("cpu"), 0));
    std::atomic<int> refused{0}, wrong{0};
    auto const kernel = Kernel("looks at all").host([&](WorkItem, std::span<int> data) {
      for (auto const& buffer : travel) {
        try {
          static_cast<void>(buffer.is_allocated());
          static_cast<void>(buffer.valid_on_host());
        } catch (UnsupportedOperation const&) {
          ++refused;
        }
      }
      ++data[elements - 1];
    });
    auto const use = [&](std::size_t user) {
      std::mt19937 random(seed * users + static_cast<unsigned>(user));
      auto queue = device("cpu").create_queue(), one = island.create_queue(), other = islet.create_queue();
      std::array<int, 2> truth{};
      int there = 0;
      for (int step = 0; step < 40; ++step) {
        auto const which = random() % 2;
        launch(queue, kernel, Range{1}, readwrite(stay[2 * user + which]));
        ++truth[which];
        launch(step % 2 == 0 ? other : one, add, Range{elements}, readwrite(travel[user]));
        ++there;
        if (random() % 4 == 0 && stay[2 * user + which].to_vector()[elements - 1] != truth[which]) ++wrong;
      }
      for (std::size_t i = 0; i < 2; ++i) wrong += stay[2 * user + i].to_vector()[elements - 1] != truth[i] ? 1 : 0;
      wrong += travel[user].to_vector()[elements / 2] != there ? 1 : 0;
    };
    auto const before = manager.statistics().host_reclaims;
    std::vector<std::jthread> threads;
    for (std::size_t user = 0; user < users; ++user) threads.emplace_back(use, user);
    threads.clear();
    EXPECT_EQ(refused, 0);
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(manager.statistics().host_reclaims, before) << "nothing was to be shown";
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, RoomForWork, ::testing::Values("cpu", "sim"),
                         [](auto const& info) { return std::string(info.param); });

}  // namespace
}  // namespace unimem
