#include <unimem/core/error.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "buffer/buffer_fixture.hpp"
#include "device/gate.hpp"

#include <atomic>
#include <cstdint>
#include <optional>
#include <random>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

// Device memory of buffers that moves together while nobody has its address.

namespace unimem::testing {
namespace {

using Numbers = UnifiedBuffer<std::uint32_t>;

class Defragmenting : public BufferTest {
 protected:
  /// Buffers of so many elements on the simulated device, of which every `keep`-th stays, with contents that only the
  /// device has: its number and on.
  [[nodiscard]] std::vector<Numbers> scattered(std::size_t elements = 6000, std::size_t count = 256,
                                               std::size_t keep = 8) {
    std::vector<Numbers> all, kept;
    for (std::size_t i = 0; i < count; ++i) {
      auto& buffer = all.emplace_back(elements, on_sim());
      buffer.copy_from(counting(elements, static_cast<std::uint32_t>(i)));
      add(sim.default_queue(), buffer.slice(0), 1000).wait();
    }
    for (std::size_t i = 0; i < count; i += keep) kept.push_back(std::move(all[i]));
    all.clear();
    manager.cleanup();
    kept_each = keep;
    return kept;
  }
  void expect_contents(std::vector<Numbers>& buffers) {
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      auto const first = static_cast<std::uint32_t>(i * kept_each) + 1000;
      ASSERT_EQ(device_bytes(buffers[i], sim), counting(buffers[i].size(), first)) << i;
      ASSERT_EQ(buffers[i].to_vector(), counting(buffers[i].size(), first)) << i;
      buffers[i].core().validate();
    }
    pool().validate();
  }
  [[nodiscard]] MemoryPool& pool() { return manager.pool(sim, Location::device); }
  [[nodiscard]] std::size_t reserved() { return pool().statistics().reserved_bytes; }

  std::size_t kept_each = 0;
};

TEST_F(Defragmenting, MovesBuffersTogetherAndKeepsEveryByte) {
  auto buffers = scattered();
  auto const before = reserved();
  auto const moved_before = sim.transfers();
  auto const report = manager.defragment(sim);
  EXPECT_GT(report.blocks_moved, 10U);
  EXPECT_EQ(report.bytes_copied, report.blocks_moved * buffers[0].size_bytes());
  EXPECT_GT(report.seconds, 0.0);
  auto const moved = sim.transfers().since(moved_before);
  EXPECT_EQ(moved.device_to_device_bytes, report.bytes_copied) << "and nothing else moved";
  EXPECT_EQ(moved.device_to_device_copies, report.blocks_moved);
  EXPECT_EQ(moved.host_to_device_bytes + moved.device_to_host_bytes, 0U);
  for (auto const& buffer : buffers) EXPECT_EQ(buffer.state(), BufferState::device_dirty);
  manager.cleanup();
  EXPECT_LE(reserved(), before / 2);
  expect_contents(buffers);
}

TEST_F(Defragmenting, ComesBeforeAnyEviction) {
  auto buffers = scattered();
  auto const live = pool().statistics().active_bytes;
  manager.set_limit(sim, reserved());
  auto const moved_before = sim.transfers();
  constexpr std::size_t size = std::size_t{256} << 10;
  ASSERT_LT(live + size, reserved());
  Numbers large(size / sizeof(std::uint32_t), on_sim());
  set(sim.default_queue(), large.slice(0), 7).wait();
  EXPECT_EQ(manager.statistics().defragmentations, 1U);
  EXPECT_EQ(manager.statistics().reclaims, 0U);
  auto const moved = sim.transfers().since(moved_before);
  EXPECT_GT(moved.device_to_device_bytes, 0U);
  EXPECT_LE(moved.device_to_device_bytes, 8 * size);
  EXPECT_EQ(moved.device_to_host_bytes, 0U);
  for (auto const& buffer : buffers) EXPECT_TRUE(buffer.valid_on(sim));
  expect_contents(buffers);
  EXPECT_EQ(large.to_vector(), std::vector(large.size(), 7U));
}

TEST_F(Defragmenting, MovesNothingWhereEverythingIsLeased) {
  auto buffers = scattered();
  manager.set_limit(sim, reserved());
  std::vector<DeviceSpan<const std::uint32_t>> leases;
  for (auto const& buffer : buffers) leases.push_back(buffer.device_view(sim));
  Numbers large((std::size_t{256} << 10) / sizeof(std::uint32_t), on_sim());
  try {
    set(sim.default_queue(), large.slice(0), 7).wait();
    FAIL() << "what is free lies in pieces beside what is leased";
  } catch (OutOfMemory const& refused) {
    EXPECT_GE(refused.facts().leased, buffers.size() * buffers[0].size_bytes());
  }
  EXPECT_EQ(manager.statistics().defragmentations, 0U);
  leases.clear();
  set(sim.default_queue(), large.slice(0), 7).wait();
  EXPECT_EQ(manager.statistics().defragmentations, 1U);
  expect_contents(buffers);
}

TEST_F(Defragmenting, ComesToAnEnd) {
  auto buffers = scattered();
  int rounds = 0;
  while (manager.defragment(sim).blocks_moved != 0) ASSERT_LT(++rounds, 20);
  auto const moved_before = sim.transfers();
  EXPECT_EQ(manager.defragment(sim).bytes_moved, 0U);
  EXPECT_EQ(sim.transfers().since(moved_before), TransferCounters{});
  expect_contents(buffers);
}

TEST_F(Defragmenting, EmptiesSlabsOfSmallBuffers) {
  auto buffers = scattered(250, 800, 16);
  auto const before = reserved();
  EXPECT_GT(manager.defragment(sim).blocks_moved, 20U);
  manager.cleanup();
  EXPECT_LT(reserved(), before / 2);
  expect_contents(buffers);
}

TEST_F(Defragmenting, LeavesWhatIsLeasedWhereItIs) {
  auto buffers = scattered();
  {
    std::vector<DeviceSpan<const std::uint32_t>> leases;
    std::vector<DeviceMemory> places;
    for (auto const& buffer : buffers) {
      leases.push_back(buffer.device_view(sim));
      places.push_back(leases.back().native());
    }
    EXPECT_EQ(manager.defragment(sim).blocks_moved, 0U);
    for (std::size_t i = 0; i < leases.size(); ++i) {
      ASSERT_EQ(std::as_const(buffers[i]).device_view(sim).native(), places[i]);
    }
  }
  EXPECT_GT(manager.defragment(sim).blocks_moved, 10U);
  expect_contents(buffers);
}

TEST_F(Defragmenting, LeavesBuffersWithPendingWorkInPlace) {
  auto buffers = scattered();
  auto queue = sim.create_queue();
  {
    std::optional<Gate> gate{queue};
    std::vector<Event> pending;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      pending.push_back(set(queue, buffers[i].slice(0, 1), static_cast<std::uint32_t>(i * kept_each) + 1000));
    }
    EXPECT_EQ(manager.defragment(sim).blocks_moved, 0U);
    EXPECT_FALSE(pending.front().ready());
    gate.reset();
    queue.synchronize();
  }
  EXPECT_GT(manager.defragment(sim).blocks_moved, 10U);
  expect_contents(buffers);
}

TEST_F(Defragmenting, KeepsWithinItsBudgetAndStopsWhenAsked) {
  auto buffers = scattered();
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(manager.defragment(sim, {.stop = stop.get_token()}).blocks_moved, 0U);
  auto const each = buffers[0].size_bytes();
  EXPECT_EQ(manager.defragment(sim, {.max_copied_bytes = each - 1}).blocks_moved, 0U);
  auto const report = manager.defragment(sim, {.max_copied_bytes = 3 * each + 4096});
  EXPECT_GE(report.blocks_moved, 1U);
  EXPECT_LE(report.blocks_moved, 3U);
  expect_contents(buffers);
}

/// A buffer that is used while it is copied stays where it is.
TEST_F(Defragmenting, CountsCopiesMadeInVain) {
  for (int round = 0; round < 3; ++round) {
    auto buffers = scattered();
    auto const before = sim.transfers().device_to_device_bytes;
    PoolDefragmentation report;
    auto const most = 4 * buffers[0].size_bytes();
    {
      std::jthread const user{[&](std::stop_token const& stop) {
        while (!stop.stop_requested()) {
          for (auto& buffer : buffers) buffer.will_use(sim);
        }
      }};
      report = manager.defragment(sim, {.max_copied_bytes = most});
    }
    EXPECT_EQ(report.bytes_copied, sim.transfers().device_to_device_bytes - before);
    EXPECT_LE(report.bytes_copied, most);
    expect_contents(buffers);
  }
}

TEST_F(Defragmenting, LosesNothingWhenACopyFails) {
  auto buffers = scattered();
  set_sim_faults(sim, {.fail_call = 1});
  EXPECT_THROW(manager.defragment(sim), DeviceError);
  set_sim_faults(sim, {});
  expect_contents(buffers);
  EXPECT_GT(manager.defragment(sim).blocks_moved, 10U);
  expect_contents(buffers);
}

TEST_F(Defragmenting, MovesNothingWhereBlocksAreAllocations) {
  EXPECT_EQ(manager.defragment(other).blocks_moved, 0U);
  ManagerOptions options;
  options.pools.backing = PoolBacking::allocations;
  MemoryManager of_objects{options};
  std::vector<Numbers> buffers;
  for (int i = 0; i < 8; ++i) {
    auto placed = on_sim();
    placed.manager = &of_objects;
    buffers.emplace_back(6000, placed).copy_from(counting(6000));
    buffers.back().sync_to_device();
  }
  buffers.erase(buffers.begin(), buffers.begin() + 4);
  EXPECT_EQ(of_objects.defragment(sim).blocks_moved, 0U);
}

TEST_F(Defragmenting, MayHappenWhileBuffersAreUsed) {
  std::atomic<bool> over{false};
  std::jthread const mover{[&] {
    while (!over) manager.defragment(sim);
  }};
  {
    std::vector<std::jthread> users;
    for (unsigned thread = 1; thread <= 2; ++thread) {
      users.emplace_back([&, thread] {
        std::mt19937 random{thread};
        auto queue = sim.create_queue();
        std::vector<std::pair<Numbers, std::uint32_t>> mine;
        for (std::uint32_t round = 0; round < 200; ++round) {
          if (mine.size() < 12) {
            auto& [buffer, value] = mine.emplace_back(Numbers(100 + random() % 6000, on_sim()), round);
            buffer.fill(value);
          }
          auto& [buffer, value] = mine[random() % mine.size()];
          auto const more = static_cast<std::uint32_t>(random() % 7);
          add(queue, buffer.slice(0), more);
          value += more;
          if (random() % 3 == 0) {
            ASSERT_EQ(buffer.to_vector(), std::vector<std::uint32_t>(buffer.size(), value));
          }
          if (mine.size() == 12 && random() % 2 == 0)
            mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(random() % 12));
        }
        for (auto& [buffer, value] : mine) {
          ASSERT_EQ(buffer.to_vector(), std::vector<std::uint32_t>(buffer.size(), value));
        }
      });
    }
  }
  over = true;
}

}  // namespace
}  // namespace unimem::testing
