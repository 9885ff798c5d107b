#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/pool/detail/address_book.hpp>
#include <unimem/pool/idle_trimmer.hpp>
#include <unimem/pool/memory_pool.hpp>
#include <unimem/pool/upstream.hpp>

#include "core/sizes.hpp"
#include "forked_child.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <latch>
#include <memory>
#include <memory_resource>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// Children of a process whose other threads were in the middle of a pool when it forked: they have the pool whole.

namespace unimem {
namespace {

using namespace std::chrono_literals;

constexpr int rounds = 60;

struct Case {
  char const* name;
  std::function<std::unique_ptr<MemoryPool>()> make;
};

std::unique_ptr<MemoryPool> on_sim(PoolOptions options) {
  return std::make_unique<MemoryPool>(make_sim({.memory_bytes = 256 * MiB}), Location::device, std::move(options));
}

std::vector<Case> cases() {
  return {
      {"of_the_host", [] { return std::make_unique<MemoryPool>(device("cpu"), Location::host); }},
      {"of_pages", [] { return on_sim({.backing = PoolBacking::pages}); }},
      {"of_allocations", [] { return on_sim({.backing = PoolBacking::allocations}); }},
      {"that_is_small", [] { return on_sim({.max_bytes = 16 * MiB, .backing = PoolBacking::pages}); }},
      {"that_keeps_little", [] { return on_sim({.release_threshold = MiB}); }},
      {"that_looks_at_ages", [] { return on_sim({.trim_interval = 1ms}); }},
      {"that_erases",
       [] {
         return std::make_unique<MemoryPool>(device("cpu"), Location::host, PoolOptions{.zero_on_release = true});
       }},
  };
}

/// What the threads of the parent go on doing.
void use(MemoryPool& pool, unsigned seed, std::atomic<bool> const& done) {
  constexpr std::array sizes{64 * std::size_t{1}, KiB, 8 * KiB, 100 * KiB, MiB, 3 * MiB, 5 * MiB};
  std::minstd_rand random{seed};
  std::array<Allocation, 16> held;
  while (!done) {
    auto const what = random() % 100;
    try {
      if (what == 0) pool.trim(MiB);
      if (what == 1) static_cast<void>(pool.statistics());
      if (what == 2) pool.trim_idle();
      auto& one = held[random() % held.size()];
      one = {};
      if (what > 30) one = pool.acquire(sizes[random() % sizes.size()] + random() % KiB);
    } catch (OutOfMemory const&) {  // the others have it
      held = {};
    }
  }
}

/// Threads that go on until this goes.
class Busy {
 public:
  Busy() = default;
  Busy(Busy const&) = delete;
  Busy& operator=(Busy const&) = delete;
  ~Busy() { done_ = true; }

  template <class Work>
  void start(Work work) {
    threads_.emplace_back([this, work = std::move(work)] { work(done_); });
  }

 private:
  std::atomic<bool> done_{false};
  std::vector<std::jthread> threads_;
};

/// Everything a program does with a pool, alone.
int use_alone(MemoryPool& pool) {
  auto const before = pool.statistics();
  pool.validate();
  for (int again = 0; again < 3; ++again) {
    std::vector<Allocation> held;
    std::size_t bytes = 0;
    for (std::size_t const size : {64 * std::size_t{1}, 900 * std::size_t{1}, 10 * KiB, 200 * KiB, 2 * MiB}) {
      try {
        held.push_back(pool.acquire(size));
      } catch (OutOfMemory const&) {  // the threads of the parent have it for ever
        continue;
      }
      if (auto* const data = held.back().data()) std::memset(data, 0x5A, size);
      bytes += held.back().capacity();
    }
    auto const now = pool.statistics();
    EXPECT_HERE(now.active_allocations == before.active_allocations + held.size());
    EXPECT_HERE(now.active_bytes == before.active_bytes + bytes);
    pool.validate();
  }
  EXPECT_HERE(pool.statistics().active_bytes == before.active_bytes);
  pool.trim();
  pool.validate();
  std::thread([&] { static_cast<void>(pool.acquire_cached(KiB)); }).join();
  EXPECT_HERE(pool.statistics().active_allocations == before.active_allocations);
  pool.validate();
  return 0;
}

class ForkedPool : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a child that is forked while a thread allocates hangs in the sanitizer's runtime";
#endif
  }
};

TEST_P(ForkedPool, IsWholeInAChildOfBusyThreads) {
  auto const pool = GetParam().make();
  {
    Busy busy;
    for (unsigned i = 1; i <= 4; ++i) busy.start([&, i](auto const& done) { use(*pool, i, done); });
    for (int round = 0; round < rounds; ++round) {
      ASSERT_EQ(ending_of(fork(), [&] { return use_alone(*pool); }), 0);
      static_cast<void>(pool->acquire_cached(KiB));  // this thread has magazines of its own
    }
  }
  pool->validate();
  EXPECT_EQ(pool->statistics().active_allocations, 0U);
}

TEST_P(ForkedPool, IsWholeInAChildOfEndingThreads) {
  auto const pool = GetParam().make();
  {
    Busy busy;
    for (int i = 0; i < 2; ++i) {
      busy.start([&](auto const& done) {
        while (!done) std::thread([&] { static_cast<void>(pool->acquire(10 * KiB)); }).join();
      });
    }
    for (int round = 0; round < rounds; ++round) ASSERT_EQ(ending_of(fork(), [&] { return use_alone(*pool); }), 0);
  }
  pool->validate();
  EXPECT_EQ(pool->statistics().active_allocations, 0U);
}

TEST_P(ForkedPool, CanEndInAChild) {
  auto pool = GetParam().make();
  auto mine = pool->acquire(KiB);
  {
    Busy busy;
    for (unsigned i = 1; i <= 3; ++i) busy.start([&, i](auto const& done) { use(*pool, i, done); });
    for (int round = 0; round < rounds; ++round) {
      auto const ending = ending_of(fork(), [&] {
        set_log_level(LogLevel::off);  // that blocks of the parent's threads outlive it
        pool.reset();
        if (auto* const data = mine.data()) std::memset(data, 1, mine.size());
        mine = {};
        return 0;
      });
      ASSERT_EQ(ending, 0);
    }
  }
  pool->validate();
  EXPECT_EQ(pool->statistics().active_allocations, 1U);
}

TEST_P(ForkedPool, IsWholeInAChildOfAChild) {
  auto const pool = GetParam().make();
  Busy busy;
  for (unsigned i = 1; i <= 3; ++i) busy.start([&, i](auto const& done) { use(*pool, i, done); });
  for (int round = 0; round < rounds / 3; ++round) {
    ASSERT_EQ(ending_of(fork(), [&] { return ending_of(fork(), [&] { return use_alone(*pool); }); }), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Pools, ForkedPool, ::testing::ValuesIn(cases()),
                         [](auto const& made) { return made.param.name; });

/// The heap as a pool's upstream, and a way into the middle of a release.
class HookedUpstream final : public Upstream {
 public:
  std::function<void()> on_release;

  [[nodiscard]] DeviceMemory allocate(std::size_t bytes, Location location, Device& device) override {
    return heap_.allocate(bytes, location, device);
  }
  void release(DeviceMemory memory, Location location, Device& device) noexcept override {
    if (on_release) on_release();
    heap_.release(memory, location, device);
  }

 private:
  ResourceUpstream heap_{*std::pmr::new_delete_resource()};
};

/// A pool that gives back each block that is released, and whose end is that of its upstream.
class ForkedInARelease : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "pools are not held over forks there";
#endif
    auto made = std::make_shared<HookedUpstream>();
    hooked = made.get();
    upstream = made;
    PoolOptions options;
    options.release_threshold = 0;
    options.upstream = std::move(made);
    pool = std::make_unique<MemoryPool>(device("cpu"), Location::host, std::move(options));
  }

  HookedUpstream* hooked = nullptr;
  std::weak_ptr<Upstream> upstream;
  std::unique_ptr<MemoryPool> pool;
};

TEST_F(ForkedInARelease, APoolEndsInTheChild) {
  std::latch entered{1}, forked{1};
  hooked->on_release = [&] {
    entered.count_down();
    forked.wait();
  };
  auto block = pool->acquire(KiB);
  std::jthread releasing{[&] { block.release(); }};
  entered.wait();
  auto const ending = in_child([&] {
    pool.reset();
    EXPECT_HERE(upstream.expired());
    return 0;
  });
  forked.count_down();
  releasing.join();
  EXPECT_EQ(ending, 0);
  pool.reset();
  EXPECT_TRUE(upstream.expired()) << "and in the parent";
}

TEST_F(ForkedInARelease, APoolOutlivesTheReleaseThatForked) {
  pid_t child = -1;
  bool stayed = false;
  hooked->on_release = [&] {
    child = fork_while_others_sleep();
    if (child != 0) return;
    alarm(30);
    pool.reset();
    stayed = !upstream.expired();
  };
  auto block = pool->acquire(KiB);
  block.release();
  auto const ending = ending_of(child, [&] {
    EXPECT_HERE(stayed);
    EXPECT_HERE(upstream.expired());
    return 0;
  });
  EXPECT_EQ(ending, 0);
  EXPECT_FALSE(upstream.expired()) << "the parent has it still";
  EXPECT_EQ(pool->statistics().reserved_bytes, 0U);
  pool->validate();
}

TEST(ForkedAddressBook, FindsTheParentsAddresses) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a child that is forked while a thread allocates hangs in the sanitizer's runtime";
#endif
  MemoryPool pool{device("cpu"), Location::host};
  detail::AddressBook book{pool, "book", {}};
  auto* const kept = book.acquire(KiB, 16, nullptr);
  {
    Busy busy;
    busy.start([&](auto const& done) {
      while (!done) book.release(book.acquire(KiB, 16, nullptr), KiB, 16, {});
    });
    for (int round = 0; round < rounds; ++round) {
      auto const ending = ending_of(fork(), [&] {
        auto* const other = book.acquire(KiB, 16, nullptr);
        book.release(other, KiB, 16, {});
        book.release(kept, KiB, 16, {});
        book.validate();
        EXPECT_HERE(book.statistics().refused_deallocations == 0);
        return 0;
      });
      ASSERT_EQ(ending, 0);
    }
  }
  book.release(kept, KiB, 16, {});
}

TEST(ForkedPoolKeeper, EndsInAChild) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a child that is forked while a thread allocates hangs in the sanitizer's runtime";
#endif
  MemoryPool pool{device("cpu"), Location::host};
  auto trimmer = std::make_unique<IdleTrimmer>(pool, 50us);
  for (int round = 0; round < rounds; ++round) {
    auto const ending = ending_of(fork(), [&] {
      trimmer.reset();
      return use_alone(pool);
    });
    ASSERT_EQ(ending, 0);
  }
}

}  // namespace
}  // namespace unimem
