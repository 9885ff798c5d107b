#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/pool/upstream.hpp>

#include "core/sizes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <tuple>
#include <vector>

// A limit of the host's memory while threads take pageable and pinned memory all the time.

namespace unimem {
namespace {

constexpr unsigned thread_count = 4;

/// Runs `work(thread)` on all threads at once.
template <class Work>
void on_threads(Work work) {
  std::barrier start{thread_count};
  std::vector<std::jthread> threads;
  for (unsigned t = 0; t < thread_count; ++t) {
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      work(t);
    });
  }
}

std::span<std::uint64_t> words(Allocation const& block) {
  return {static_cast<std::uint64_t*>(block.data()), block.size() / 8};
}

/// The device's memory, and the most of it that was ever out at all locations: books of its own, which nobody reads
/// while they are wrong.
class CountingUpstream final : public Upstream {
 public:
  [[nodiscard]] DeviceMemory allocate(std::size_t bytes, Location location, Device& device) override {
    std::this_thread::yield();  // others get their turn while memory is on its way
    auto const memory = device.allocate(bytes, location);
    auto const live = live_ += bytes;
    auto peak = peak_.load();
    while (peak < live && !peak_.compare_exchange_weak(peak, live)) {
    }
    return memory;
  }
  void release(DeviceMemory memory, Location location, Device& device) noexcept override {
    live_ -= memory.bytes;
    device.release(memory, location);
    std::this_thread::yield();
  }
  [[nodiscard]] std::size_t live() const { return live_; }
  [[nodiscard]] std::size_t peak() const { return peak_; }

 private:
  std::atomic<std::size_t> live_{0}, peak_{0};
};

/// What every thread does: holds a few blocks of its own number, here and there, of sizes that now and then are more
/// than there is. Returns how often it was refused.
std::uint64_t work_near(std::size_t limit, MemoryManager& manager, unsigned thread, unsigned operations) {
  auto& cpu = device("cpu");
  std::mt19937 random{thread};
  std::vector<Allocation> held;
  std::uint64_t refused = 0;
  auto const drop = [&] {
    auto const at = random() % held.size();
    auto const mine = words(held[at]);
    ASSERT_EQ(std::ranges::count(mine, mine[0]), static_cast<std::ptrdiff_t>(mine.size())) << "seed " << thread;
    ASSERT_EQ(mine[0] >> 56, thread) << "seed " << thread;
    held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
  };
  for (std::uint64_t i = 0; i < operations; ++i) {
    if (held.size() < 4 && random() % 2 == 0) {
      auto const location = random() % 2 == 0 ? Location::host : Location::pinned;
      auto const bytes = 8 * (1 + random() % (limit / 8 / (std::size_t{3} << random() % 10)));
      try {
        held.push_back(manager.acquire(cpu, location, bytes));
        std::ranges::fill(words(held.back()), std::uint64_t{thread} << 56 | i);
      } catch (OutOfMemory const&) {
        ++refused;
      }
    } else if (!held.empty()) {
      drop();
    }
    if (::testing::Test::HasFatalFailure()) break;
  }
  return refused;
}

/// All is given back, and the whole limit can be had again.
void expect_whole(MemoryManager& manager, std::size_t limit) {
  auto& cpu = device("cpu");
  for (auto const location : {Location::host, Location::pinned}) {
    manager.pool(cpu, location).validate();
    EXPECT_EQ(manager.pool(cpu, location).statistics().active_allocations, 0U);
  }
  EXPECT_EQ(manager.acquire(cpu, Location::host, limit).size(), limit);
  EXPECT_THROW(std::ignore = manager.acquire(cpu, Location::pinned, limit + 1), OutOfMemory);
  std::ignore = manager.cleanup();
  EXPECT_EQ(manager.statistics().reserved_bytes, 0U);
}

TEST(HostLimitThreads, NeverAllocateMoreThanTheLimit) {
  constexpr std::size_t limit = 2 * MiB;
  auto const upstream = std::make_shared<CountingUpstream>();
  MemoryManager manager{{.pools = {.upstream = upstream}}};
  manager.set_limit(device("cpu"), limit);
  std::atomic<std::uint64_t> refused{0};
  on_threads([&](unsigned thread) { refused += work_near(limit, manager, thread, 1'500); });
  EXPECT_LE(upstream->peak(), limit);
  EXPECT_GT(upstream->peak(), limit / 2) << "or nothing was near it";
  EXPECT_EQ(manager.statistics().refusals, refused);
  EXPECT_EQ(manager.statistics().reserved_bytes, upstream->live());
  EXPECT_GT(manager.statistics().cache_trims, 0U);
  expect_whole(manager, limit);
}

TEST(HostLimitThreads, NeverSeeMoreReservedThanTheLimit) {
  constexpr std::size_t limit = 24 * MiB + 4'096;  // pageable memory is of pages, pinned is not
  MemoryManager manager;
  manager.set_limit(device("cpu"), limit);
  std::atomic<bool> over{false};
  std::atomic<std::uint64_t> looks{0};
  std::jthread const watch{[&] {
    while (!over || looks == 0) {
      auto const seen = manager.statistics();
      ASSERT_LE(seen.reserved_bytes, limit);
      ASSERT_LE(seen.active_bytes, limit);
      ++looks;
      looks.notify_all();
    }
  }};
  on_threads([&](unsigned thread) { work_near(limit, manager, thread, 400); });
  over = true;
  looks.wait(0);
  expect_whole(manager, limit);
}

TEST(HostLimitThreads, AreNotRefusedWhileAllFit) {
  // Each takes up to a quarter, by turns of either kind, in sizes that do not fit each other's cached blocks: what it
  // takes is what others' pools give back, or are just giving back.
  constexpr std::size_t quarter = 256 * KiB;
  auto const upstream = std::make_shared<CountingUpstream>();
  MemoryManager manager{{.pools = {.upstream = upstream}}};
  auto& cpu = device("cpu");
  manager.set_limit(cpu, thread_count * quarter);
  on_threads([&](unsigned thread) {
    std::mt19937 random{thread};
    for (int i = 0; i < 2'000; ++i) {
      auto const location = random() % 2 == 0 ? Location::host : Location::pinned;
      auto const block = manager.acquire(cpu, location, 8 + random() % (quarter - 8));
      words(block).front() = thread;
      ASSERT_EQ(words(block).front(), thread);
    }
  });
  EXPECT_EQ(manager.statistics().refusals, 0U);
  EXPECT_LE(upstream->peak(), thread_count * quarter);
  expect_whole(manager, thread_count * quarter);
}

TEST(HostLimitThreads, NeverExceedALimitBeingLowered) {
  constexpr std::size_t high = 2 * MiB, low = MiB;
  auto const upstream = std::make_shared<CountingUpstream>();
  MemoryManager manager{{.pools = {.upstream = upstream}}};
  auto& cpu = device("cpu");
  std::atomic<unsigned> running{thread_count - 1};
  on_threads([&](unsigned thread) {
    if (thread != 0) {
      work_near(high, manager, thread, 1'500);
      --running;
      return;
    }
    for (bool lower = true; running != 0; lower = !lower) {
      auto const wanted = lower ? low : high;
      try {
        manager.set_limit(cpu, wanted);
      } catch (InvalidArgument const&) {
        continue;  // that much is in use
      }
      ASSERT_EQ(manager.total_memory(cpu), wanted);
      ASSERT_LE(manager.statistics().reserved_bytes, wanted);
      ASSERT_LE(upstream->live(), wanted);
    }
  });
  manager.set_limit(cpu, low);
  expect_whole(manager, low);
}

}  // namespace
}  // namespace unimem
