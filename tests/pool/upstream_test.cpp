#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/pool/memory_pool.hpp>
#include <unimem/pool/upstream.hpp>

#include "core/sizes.hpp"
#include "pool/scripted_device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace unimem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// An upstream over the heap that keeps books: what comes back must be what was given, once. Thread-safe but for its
/// hooks, which are set before threads start.
class HeapUpstream final : public Upstream {
 public:
  ~HeapUpstream() override { EXPECT_EQ(live_bytes_, 0U) << "the pool has kept memory of its upstream"; }

  // What the test decides.
  std::function<void(std::size_t call, std::size_t bytes)> on_allocate;       ///< may throw in its place
  std::function<DeviceMemory(std::size_t call, DeviceMemory given)> instead;  ///< what the pool is given
  std::size_t capacity = SIZE_MAX;
  bool throws_when_full = true;  ///< else it gives nothing

  [[nodiscard]] DeviceMemory allocate(std::size_t bytes, Location location, Device& device) override {
    std::lock_guard const lock{mutex_};
    ++calls_;
    if (on_allocate) on_allocate(calls_, bytes);
    if (bytes > capacity - live_bytes_) {
      ++refusals_;
      if (throws_when_full) throw std::bad_alloc{};
      return {};
    }
    Entry entry{std::make_unique_for_overwrite<std::byte[]>(bytes + 2 * slack), {}, location, &device};
    auto const begin = reinterpret_cast<std::uintptr_t>(entry.storage.get());
    entry.memory = {(begin + slack - 1) / slack * slack, 0, bytes};
    if (instead) entry.memory = instead(calls_, entry.memory);
    auto const memory = entry.memory;
    if (memory.object == 0) return memory;
    live_bytes_ += memory.bytes;
    live_.emplace(memory.object, std::move(entry));
    return memory;
  }

  void release(DeviceMemory memory, Location location, Device& device) noexcept override {
    std::lock_guard const lock{mutex_};
    auto const found = live_.find(memory.object);
    if (found == live_.end()) {
      ADD_FAILURE() << "gave back what the upstream has not given";
      return;
    }
    EXPECT_EQ(memory, found->second.memory);
    EXPECT_EQ(location, found->second.location);
    EXPECT_EQ(&device, found->second.device);
    live_bytes_ -= memory.bytes;
    live_.erase(found);
  }

  [[nodiscard]] std::size_t calls() const { return locked(calls_); }
  [[nodiscard]] std::size_t live_bytes() const { return locked(live_bytes_); }
  [[nodiscard]] std::size_t refusals() const { return locked(refusals_); }

  static constexpr std::size_t slack = 256;  ///< that much is aligned

 private:
  struct Entry {
    std::unique_ptr<std::byte[]> storage;
    DeviceMemory memory;
    Location location;
    Device* device;
  };

  [[nodiscard]] std::size_t locked(std::size_t const& number) const {
    std::lock_guard const lock{mutex_};
    return number;
  }

  mutable std::mutex mutex_;
  std::map<std::uintptr_t, Entry> live_;
  std::size_t calls_ = 0;
  std::size_t refusals_ = 0;
  std::size_t live_bytes_ = 0;
};

/// A pool over an upstream, beside a device that must not be asked.
class PoolOverUpstream : public ::testing::Test {
 protected:
  void TearDown() override {
    if (pool == nullptr) return;
    pool->validate();
    EXPECT_EQ(upstream->live_bytes(), pool->statistics().reserved_bytes);
    EXPECT_EQ(device.driver_calls(), 0U);
  }
  [[nodiscard]] std::unique_ptr<MemoryPool> make(PoolOptions options = {}) {
    options.upstream = upstream;
    return std::make_unique<MemoryPool>(device, Location::device, std::move(options));
  }

  ScriptedDevice device{64 * MiB};
  std::shared_ptr<HeapUpstream> upstream = std::make_shared<HeapUpstream>();
  std::unique_ptr<MemoryPool> pool = make();
};

TEST_F(PoolOverUpstream, TakesAllMemoryThereAndGivesItBack) {
  std::mt19937 random{3};
  std::vector<std::pair<Allocation, unsigned char>> blocks;
  for (int round = 0; round < 400; ++round) {
    if (blocks.size() == 8 || (!blocks.empty() && random() % 3 == 0)) {
      auto const at = blocks.begin() + static_cast<std::ptrdiff_t>(random() % blocks.size());
      auto const* const bytes = static_cast<unsigned char const*>(at->first.data());
      ASSERT_TRUE(std::all_of(bytes, bytes + at->first.size(), [&](auto byte) { return byte == at->second; }));
      blocks.erase(at);
    } else {
      auto& [block, mark] =
          blocks.emplace_back(pool->acquire(1 + random() % (64 * KiB)), static_cast<unsigned char>(round));
      std::fill_n(static_cast<unsigned char*>(block.data()), block.size(), mark);
    }
    ASSERT_EQ(upstream->live_bytes(), pool->statistics().reserved_bytes);
  }
  EXPECT_GT(pool->statistics().pool_hits, 0U);
  blocks.clear();
  pool->trim();
  EXPECT_EQ(upstream->live_bytes(), 0U);
}

TEST_F(PoolOverUpstream, KeepsABlockUntilItsWorkHasEnded) {
  auto [queue, script] = device.scripted_queue();
  auto block = pool->acquire(MiB);
  auto const work = script->work();
  block.release(work);
  pool->trim();
  EXPECT_EQ(script->host_waits, 1);
  EXPECT_TRUE(work.ready());
  EXPECT_EQ(upstream->live_bytes(), 0U);
}

TEST_F(PoolOverUpstream, AsksForNoMoreThanItsLimit) {
  pool->set_max_bytes(8 * MiB);
  auto const five = pool->acquire(5 * MiB);
  auto const calls = upstream->calls();
  EXPECT_THROW((void)pool->acquire(3 * MiB + 1), OutOfMemory);
  EXPECT_EQ(upstream->calls(), calls) << "it is not the upstream's to say";
  auto const three = pool->acquire(3 * MiB);
  EXPECT_EQ(upstream->live_bytes(), 8 * MiB);
  pool->set_max_bytes(64 * MiB);
  EXPECT_THROW((void)pool->acquire(64 * MiB), OutOfMemory);
}

TEST_F(PoolOverUpstream, GivesBackItsCacheWhenFull) {
  for (bool const throws : {true, false}) {
    upstream->capacity = 8 * MiB;
    upstream->throws_when_full = throws;
    auto const before = upstream->refusals();
    pool->acquire(6 * MiB).release();
    auto const block = pool->acquire(4 * MiB);
    EXPECT_EQ(pool->statistics().reserved_bytes, 4 * MiB);
    EXPECT_GT(upstream->refusals(), before);
    try {
      auto const more = pool->acquire(5 * MiB);
      ADD_FAILURE() << "was granted";
    } catch (OutOfMemory const& error) {
      EXPECT_EQ(error.requested(), 5 * MiB);
      EXPECT_EQ(error.live(), 4 * MiB);
      EXPECT_THAT(error.what(), HasSubstr(throws ? "bad_alloc" : "the upstream gave no memory"));
    }
    pool->validate();
  }
}

TEST_F(PoolOverUpstream, IsMadeOfObjects) {
  auto& cpu = unimem::device("cpu");
  PoolOptions options;
  options.upstream = upstream;
  MemoryPool of_objects{cpu, Location::host, options};
  auto const one = of_objects.acquire(1000), other = of_objects.acquire(1000);
  EXPECT_EQ(upstream->calls(), 2U);
  auto const statistics = of_objects.statistics();
  EXPECT_EQ(statistics.slack_bytes, 0U);
  EXPECT_EQ(statistics.reserved_bytes, upstream->live_bytes());
  options.backing = PoolBacking::pages;
  try {
    MemoryPool const of_pages{cpu, Location::host, options};
    ADD_FAILURE() << "an upstream has no pages";
  } catch (UnsupportedOperation const& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("PoolBacking::pages"), HasSubstr("upstream")));
  }
  pool.reset();
}

TEST_F(PoolOverUpstream, KeepsTheUpstreamWhileInUse) {
  auto block = pool->acquire(MiB);
  std::weak_ptr<Upstream> const watched = upstream;
  pool.reset();
  upstream.reset();
  EXPECT_FALSE(watched.expired());
  block.release();
  EXPECT_TRUE(watched.expired());
}

TEST_F(PoolOverUpstream, SaysWhatWasThrownAndKeepsItInside) {
  upstream->on_allocate = [](std::size_t, std::size_t) { throw std::runtime_error("the shelf is bare"); };
  try {
    auto const block = pool->acquire(1000);
    ADD_FAILURE() << "was granted";
  } catch (DeviceError const& error) {
    EXPECT_EQ(error.backend, "upstream");
    EXPECT_THAT(error.what(), HasSubstr("the shelf is bare"));
    EXPECT_THROW(std::rethrow_if_nested(error), std::runtime_error);
  }
  upstream->on_allocate = [](std::size_t, std::size_t) { throw IoError("pages.bin", 28, "growing it"); };
  EXPECT_THROW((void)pool->acquire(1000), IoError) << "errors of the library pass through";
  upstream->on_allocate = nullptr;
}

TEST_F(PoolOverUpstream, RefusesMemoryThatItsDeviceDoesNotKnow) {
  auto& sim = make_sim({.memory_bytes = 64 * MiB});
  PoolOptions options;
  options.upstream = upstream;
  MemoryPool of_sim{sim, Location::device, options};
  EXPECT_THROW((void)of_sim.acquire(1000), DeviceError) << "memory of the host is none of this device's";
  EXPECT_EQ(upstream->live_bytes(), 0U);
  EXPECT_EQ(of_sim.statistics().failed_allocations, 1U);
  of_sim.validate();
}

TEST_F(PoolOverUpstream, ServesThreadsAtOnce) {
  upstream->on_allocate = [](std::size_t call, std::size_t) {
    if (call % 7 == 0) throw std::bad_alloc{};
  };
  {
    std::vector<std::jthread> threads;
    for (unsigned thread = 0; thread < 3; ++thread) {
      threads.emplace_back([this, thread] {
        std::mt19937 random{thread};
        std::vector<Allocation> blocks;
        for (int round = 0; round < 2'000; ++round) {
          try {
            blocks.push_back(pool->acquire(1 + random() % (MiB / 2)));
            static_cast<unsigned char*>(blocks.back().data())[0] = 1;
          } catch (OutOfMemory const&) {
            blocks.clear();
          }
          if (blocks.size() == 16) blocks.erase(blocks.begin(), blocks.begin() + 8);
        }
      });
    }
  }
  pool->validate();
  upstream->on_allocate = nullptr;
  pool->trim();
  EXPECT_EQ(upstream->live_bytes(), 0U);
}

/// What an upstream may do wrong, and what the one who asked the pool gets to know of it.
struct Misdeed {
  char const* name;
  std::function<void()> throws;
  std::function<DeviceMemory(DeviceMemory)> gives;
  bool out_of_memory = false;  ///< else a DeviceError
};

/// A small scenario that takes, returns, trims and fills up, in which one call of the upstream goes wrong.
class UpstreamFaults : public ::testing::TestWithParam<Misdeed> {};

TEST_P(UpstreamFaults, NoFailedCallLeaks) {
  auto const& misdeed = GetParam();
  for (std::size_t wrong = 1; wrong <= 12; ++wrong) {
    SCOPED_TRACE(::testing::Message() << "call " << wrong << " goes wrong");
    ScriptedDevice device{32 * MiB};
    auto [queue, script] = device.scripted_queue();
    auto const upstream = std::make_shared<HeapUpstream>();
    std::size_t failures = 0, refused = 0;
    upstream->on_allocate = [&](std::size_t call, std::size_t) {
      if (call != wrong) return;
      ++failures;
      if (misdeed.throws) misdeed.throws();
    };
    upstream->instead = [&](std::size_t call, DeviceMemory given) {
      return call == wrong && misdeed.gives ? misdeed.gives(given) : given;
    };
    PoolOptions options;
    options.max_bytes = 16 * MiB;
    options.upstream = upstream;
    MemoryPool pool{device, Location::device, options};
    std::vector<Allocation> held;
    for (std::size_t const bytes :
         {300 * KiB, 3 * MiB, 5 * MiB, 70 * KiB, 2 * MiB, 9 * MiB, 4 * MiB, 40 * KiB, 6 * MiB}) {
      auto const before = pool.statistics();
      auto const refuse = [&] {
        ++refused;
        auto const after = pool.statistics();
        EXPECT_EQ(after.active_bytes, before.active_bytes);
        EXPECT_EQ(after.total_allocations, before.total_allocations);
        EXPECT_EQ(after.failed_allocations, before.failed_allocations + 1);
        held.clear();
      };
      try {
        held.push_back(pool.acquire(bytes, {.queue = &queue}));
        auto* const begin = static_cast<unsigned char*>(held.back().data());
        begin[0] = begin[bytes - 1] = 1;
      } catch (OutOfMemory const& error) {
        EXPECT_EQ(error.requested(), bytes);
        refuse();
      } catch (DeviceError const& error) {
        EXPECT_FALSE(misdeed.out_of_memory);
        EXPECT_EQ(error.backend, "upstream");
        refuse();
      }
      pool.validate();
      ASSERT_EQ(upstream->live_bytes(), pool.statistics().reserved_bytes);
      if (held.size() == 3) {
        held[1].release(script->work());
        held.erase(held.begin() + 1);
      }
    }
    EXPECT_EQ(failures, upstream->calls() >= wrong ? 1U : 0U);
    // Room that was thought to be missing may just have been found by giving back; what is wrong is always told.
    EXPECT_GE(refused, misdeed.out_of_memory ? 0U : failures);
    EXPECT_EQ(device.driver_calls(), 0U);
    held.clear();
    pool.trim();
    EXPECT_EQ(upstream->live_bytes(), 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Misdeeds, UpstreamFaults,
    ::testing::Values(
        Misdeed{"BadAlloc", [] { throw std::bad_alloc{}; }, nullptr, true},
        Misdeed{"OutOfMemory", [] { throw OutOfMemory({.where = "elsewhere", .holders = {}, .reason = "planned"}); },
                nullptr, true},
        Misdeed{"NoMemory", nullptr, [](DeviceMemory) { return DeviceMemory{}; }, true},
        Misdeed{"AForeignException", [] { throw std::logic_error("planned"); }, nullptr},
        Misdeed{"NoExceptionAtAll", [] { throw 42; }, nullptr},  // NOLINT(*-std-exception-baseclass)
        Misdeed{"Misaligned", nullptr,
                [](DeviceMemory given) { return DeviceMemory{given.object + 8, 0, given.bytes}; }},
        Misdeed{"TooShort", nullptr, [](DeviceMemory given) { return DeviceMemory{given.object, 0, given.bytes - 1}; }},
        Misdeed{"TooLong", nullptr, [](DeviceMemory given) { return DeviceMemory{given.object, 0, given.bytes + 1}; }}),
    [](auto const& misdeed) { return misdeed.param.name; });

/// A resource of the standard library's that counts.
class CountingResource final : public std::pmr::memory_resource {
 public:
  std::size_t live_bytes = 0;

 private:
  [[nodiscard]] void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    auto* const memory = std::pmr::new_delete_resource()->allocate(bytes, alignment);
    live_bytes += bytes;
    return memory;
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    live_bytes -= bytes;
    std::pmr::new_delete_resource()->deallocate(memory, bytes, alignment);
  }
  [[nodiscard]] bool do_is_equal(std::pmr::memory_resource const& other) const noexcept override {
    return this == &other;
  }
};

TEST(ResourceUpstreams, MakeAPoolOfAnyMemoryResource) {
  CountingResource resource;
  {
    PoolOptions options;
    options.upstream = std::make_shared<ResourceUpstream>(resource);
    MemoryPool pool{device("cpu"), Location::host, options};
    auto block = pool.acquire(100'000);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data()) % device("cpu").info().alignment, 0U);
    std::fill_n(static_cast<unsigned char*>(block.data()), block.size(), static_cast<unsigned char>(7));
    EXPECT_EQ(resource.live_bytes, pool.statistics().reserved_bytes);
    block.release();
    block = pool.acquire(100'000);
    EXPECT_EQ(pool.statistics().pool_hits, 1U);
    EXPECT_EQ(resource.live_bytes, block.capacity());
  }
  EXPECT_EQ(resource.live_bytes, 0U);
}

TEST(ResourceUpstreams, AreRefusedWhereTheirMemoryWouldNotDo) {
  PoolOptions options;
  options.upstream = std::make_shared<ResourceUpstream>(*std::pmr::new_delete_resource());
  MemoryPool pinned{device("cpu"), Location::pinned, options};
  EXPECT_THROW((void)pinned.acquire(1000), UnsupportedOperation) << "nobody would lock its pages";
  MemoryPool of_sim{make_sim(), Location::device, options};
  EXPECT_THROW((void)of_sim.acquire(1000), UnsupportedOperation);
  EXPECT_EQ(of_sim.statistics().reserved_bytes, 0U);
}

}  // namespace
}  // namespace unimem
