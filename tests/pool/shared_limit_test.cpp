#include "pool/shared_limit.hpp"

#include <unimem/core/error.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "core/sizes.hpp"
#include "pool/scripted_device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <thread>
#include <tuple>

// Pools that share a limit, on a device that counts for itself.

namespace unimem {
namespace {

using detail::LimitShare;
using detail::SharedLimit;
using ::testing::HasSubstr;

/// Two pools of one device that may have `limit` bytes together, and ask each other for what is cached.
class TwoPools {
 public:
  TwoPools(Device& device, std::size_t limit, PoolBacking backing)
      : whole{std::make_shared<SharedLimit>("both", limit)} {
    for (std::size_t i = 0; i < 2; ++i) {
      auto share = std::make_shared<LimitShare>(whole, [this, i](std::size_t wanted, bool may_wait) {
        ++asked;
        asked.notify_all();
        auto& other = *pools[1 - i];
        if (other.bytes_in_use() + wanted > whole->bytes()) return false;
        detail::give_way(other, may_wait);
        return true;
      });
      pools[i].emplace(device, Location::device, PoolOptions{.backing = backing}, std::move(share));
    }
  }
  [[nodiscard]] MemoryPool& first() { return *pools[0]; }
  [[nodiscard]] MemoryPool& second() { return *pools[1]; }
  [[nodiscard]] std::size_t reserved() {
    std::array<MemoryPool*, 2> const both{&first(), &second()};
    auto const counts = detail::statistics_of(both, *whole);
    return counts[0].reserved_bytes + counts[1].reserved_bytes;
  }

  std::shared_ptr<SharedLimit> whole;
  std::atomic<unsigned> asked{0};
  std::array<std::optional<MemoryPool>, 2> pools;
};

std::size_t out_of(Device& device) {
  auto const memory = device.memory_info();
  return memory.total_bytes - memory.free_bytes;
}

TEST(SharedLimits, BoundObjectsOfAllPoolsTogether) {
  ScriptedDevice device{64 * MiB};
  TwoPools both{device, 8 * MiB, PoolBacking::allocations};
  auto const held = both.first().acquire(6 * MiB);
  try {
    std::ignore = both.second().acquire(3 * MiB);
    FAIL() << "3 MiB beside 6 of 8";
  } catch (OutOfMemory const& error) {
    EXPECT_EQ(error.limit(), 2 * MiB) << "what the other leaves";
    EXPECT_THAT(error.facts().reason, HasSubstr("both"));
  }
  EXPECT_EQ(both.second().acquire(2 * MiB).size(), 2 * MiB);
  EXPECT_EQ(device.peak_bytes(), 8 * MiB);
  EXPECT_EQ(both.whole->left(), 0U) << "what is cached counts";
}

TEST(SharedLimits, BoundPagesOfAllPoolsTogether) {
  auto& sim = make_sim({.memory_bytes = 64 * MiB});
  {
    TwoPools both{sim, 32 * MiB + 8'192, PoolBacking::pages};
    auto const held = both.first().acquire(20 * MiB);
    EXPECT_THROW(std::ignore = both.second().acquire(13 * MiB), OutOfMemory);
    EXPECT_LE(out_of(sim), 32 * MiB + 8'192);
    auto const rest = both.second().acquire(12 * MiB + 8'192);
    EXPECT_EQ(out_of(sim), 32 * MiB + 8'192);
    EXPECT_EQ(both.reserved(), out_of(sim));
    EXPECT_THROW(std::ignore = both.first().acquire(1), OutOfMemory);
    both.first().validate();
    both.second().validate();
  }
  EXPECT_EQ(out_of(sim), 0U);
}

TEST(SharedLimits, RefusePagesBeforeTheSourceIsAsked) {
  auto& sim = make_sim({.memory_bytes = 64 * MiB});
  auto& source = *sim.pages();
  auto const page = source.page_bytes();
  auto const whole = std::make_shared<SharedLimit>("both", 3 * page);
  LimitShare share{whole, [](std::size_t, bool) { return false; }};
  detail::SharedPages pages{source, share};
  auto const range = pages.reserve(8 * page);
  pages.populate(range.part(0, 2 * page));
  EXPECT_EQ(whole->left(), page);
  EXPECT_THROW(pages.populate(range.part(2 * page, 2 * page)), OutOfMemory);
  EXPECT_EQ(out_of(sim), 2 * page);
  EXPECT_EQ(whole->left(), page) << "what was refused is not taken";
  pages.map(range.part(2 * page, page), pages.create_pages(page));
  EXPECT_THROW(std::ignore = pages.create_pages(page), OutOfMemory);
  EXPECT_THROW(pages.populate(range.part(0, page)), OutOfMemory);
  pages.discard(range.part(0, 2 * page));
  EXPECT_EQ(whole->left(), 2 * page);
  EXPECT_ANY_THROW(pages.populate(range.part(2 * page, page))) << "something is mapped there";
  EXPECT_EQ(whole->left(), 2 * page) << "what the source refuses is given back";
  pages.free_pages(pages.unmap(range.part(2 * page, page)));
  EXPECT_EQ(whole->left(), 3 * page);
  EXPECT_EQ(out_of(sim), 0U);
  pages.give_up(range);
}

TEST(SharedLimits, HaveCachedBlocksGivenBackForOthers) {
  for (auto const backing : {PoolBacking::allocations, PoolBacking::pages}) {
    auto& sim = make_sim({.memory_bytes = 64 * MiB});
    TwoPools both{sim, 32 * MiB, backing};
    both.first().acquire(30 * MiB).release();
    EXPECT_EQ(both.second().acquire(20 * MiB).size(), 20 * MiB) << to_string(backing);
    EXPECT_LE(out_of(sim), 32 * MiB);
    EXPECT_EQ(both.first().acquire(32 * MiB).size(), 32 * MiB) << to_string(backing);
    EXPECT_EQ(both.asked, 2U);
  }
}

TEST(SharedLimits, AreAskedOnlyForGrowthThatTheyRefuse) {
  ScriptedDevice device{64 * MiB};
  TwoPools both{device, 8 * MiB, PoolBacking::allocations};
  both.second().acquire(4 * MiB).release();
  for (int i = 0; i < 100; ++i) both.first().acquire(4 * MiB).release();
  EXPECT_EQ(both.whole->left(), 0U);
  EXPECT_EQ(both.whole->returns(), 0U) << "what is cached is taken from nobody";
  EXPECT_EQ(both.asked, 0U);
  both.first().set_max_bytes(6 * MiB);
  EXPECT_THROW(std::ignore = both.first().acquire(7 * MiB), OutOfMemory);
  device.on_allocate = [](std::size_t bytes) {
    throw OutOfMemory({.where = "scripted:0", .requested = bytes, .holders = {}, .reason = "refused"});
  };
  both.second().trim();
  EXPECT_THROW(std::ignore = both.first().acquire(MiB), OutOfMemory);
  EXPECT_EQ(both.asked, 0U) << "by its own limit, and by the driver";
}

TEST(SharedLimits, HaveBackWhatTheDriverDoesNotGive) {
  ScriptedDevice device{64 * MiB};
  TwoPools both{device, 8 * MiB, PoolBacking::allocations};
  device.on_allocate = [](std::size_t) { throw DeviceError("scripted:0", "allocate", 7, "refused"); };
  EXPECT_THROW(std::ignore = both.first().acquire(8 * MiB), DeviceError);
  EXPECT_EQ(both.whole->left(), 8 * MiB);
  device.on_allocate = nullptr;
  EXPECT_EQ(both.second().acquire(8 * MiB).size(), 8 * MiB);
}

TEST(SharedLimits, WithoutWaitingPendingBlocksOfOthersStay) {
  ScriptedDevice device{64 * MiB};
  auto const [queue, script] = device.scripted_queue();
  TwoPools both{device, 8 * MiB, PoolBacking::allocations};
  both.first().acquire(6 * MiB).release(script->work());
  EXPECT_EQ(both.second().acquire_without_waiting(4 * MiB), std::nullopt);
  EXPECT_EQ(script->host_waits, 0);
  EXPECT_EQ(both.second().acquire_without_waiting(2 * MiB)->size(), 2 * MiB);
  auto const held = both.second().acquire(4 * MiB);
  EXPECT_EQ(script->host_waits, 1);
  EXPECT_THROW(std::ignore = both.first().acquire_without_waiting(5 * MiB), OutOfMemory) << "nothing to wait for";
}

TEST(SharedLimits, AreOfBlocksThatOutliveTheirPool) {
  ScriptedDevice device{64 * MiB};
  TwoPools both{device, 8 * MiB, PoolBacking::allocations};
  auto block = both.first().acquire(6 * MiB);
  both.pools[0].reset();
  EXPECT_EQ(both.whole->left(), 2 * MiB);
  block.release();
  EXPECT_EQ(both.whole->left(), 8 * MiB);
}

TEST(SharedLimits, AreWaitedForWhileAnotherThreadGivesBack) {
  ScriptedDevice device{64 * MiB};
  std::atomic<bool> on_its_way{false};
  TwoPools both{device, 8 * MiB, PoolBacking::allocations};
  both.first().acquire(6 * MiB).release();
  device.on_release = [&](DeviceMemory) {
    on_its_way = true;
    on_its_way.notify_all();
    both.asked.wait(0);  // what is on its way is in no cache by then
  };
  std::jthread const giving{[&] { both.first().trim(); }};
  on_its_way.wait(false);
  EXPECT_EQ(both.second().acquire(8 * MiB).size(), 8 * MiB);
  EXPECT_LE(device.peak_bytes(), 8 * MiB);
}

}  // namespace
}  // namespace unimem
