#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/pool/detail/address_book.hpp>
#include <unimem/pool/idle_trimmer.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "core/sanitizers.hpp"
#include "core/sizes.hpp"
#include "forked_child.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

// Children of a process whose other threads were in the middle of a pool when it forked: they are refused that pool,
// keep what they hold of it, and make pools of their own.

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

/// Everything a program does with a pool that its process has made.
int use_own_pool() {
  MemoryPool pool{device("cpu"), Location::host};
  for (int again = 0; again < 3; ++again) {
    std::vector<Allocation> held;
    std::size_t bytes = 0;
    for (std::size_t const size : {64 * std::size_t{1}, 900 * std::size_t{1}, 10 * KiB, 200 * KiB, 2 * MiB}) {
      held.push_back(pool.acquire(size));
      std::memset(held.back().data(), 0x5A, size);
      bytes += held.back().capacity();
    }
    EXPECT_HERE(pool.statistics().active_allocations == held.size());
    EXPECT_HERE(pool.statistics().active_bytes == bytes);
    pool.validate();
  }
  EXPECT_HERE(pool.statistics().active_bytes == 0);
  pool.trim();
  std::thread([&] { static_cast<void>(pool.acquire(KiB)); }).join();
  EXPECT_HERE(pool.statistics().active_allocations == 0);
  pool.validate();
  return 0;
}

/// What a child may do with its parent's pool, and with what it holds of it: a block of `mine` if it has an address.
int use_inherited(MemoryPool& pool, Allocation mine) {
  for (std::size_t const size : {64 * std::size_t{1}, KiB, 3 * MiB}) {
    EXPECT_HERE(is_refused([&] { static_cast<void>(pool.acquire(size)); }));
  }
  EXPECT_HERE(is_refused([&] { static_cast<void>(pool.acquire_cached(KiB)); }));
  EXPECT_HERE(is_refused([&] { static_cast<void>(pool.statistics()); }));
  EXPECT_HERE(is_refused([&] { static_cast<void>(pool.fragmentation()); }));
  EXPECT_HERE(is_refused([&] { pool.trim(); }));
  EXPECT_HERE(is_refused([&] { pool.trim_idle(); }));
  EXPECT_HERE(is_refused([&] { pool.set_max_bytes(MiB); }));
  EXPECT_HERE(is_refused([&] { pool.validate(); }));
  if (pool.location() == Location::host) {
    EXPECT_HERE(static_cast<unsigned char*>(mine.data())[0] == 0x11);
    std::memset(mine.data(), 0x22, mine.size());
  }
  auto const capacity = mine.capacity();
  EXPECT_HERE(capacity >= KiB);
  mine = {};  // goes nowhere
  EXPECT_HERE(is_refused([&] { static_cast<void>(pool.acquire(KiB)); }));
  std::thread([&] { static_cast<void>(is_refused([&] { static_cast<void>(pool.acquire(KiB)); })); }).join();
  return use_own_pool();
}

class ForkedPool : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (detail::is_sanitized)
      GTEST_SKIP() << "a child that is forked while a thread allocates hangs in the sanitizer's runtime";
  }

  /// A block that shows whether another process or another owner has written to it.
  static Allocation marked(MemoryPool& pool) {
    auto block = pool.acquire(KiB);
    if (pool.location() == Location::host) std::memset(block.data(), 0x11, block.size());
    return block;
  }
  static void check_after(MemoryPool& pool, Allocation mine) {
    pool.validate();
    EXPECT_EQ(pool.statistics().active_allocations, 1U);
    if (pool.location() == Location::host) {
      auto const* const data = static_cast<unsigned char const*>(mine.data());
      EXPECT_TRUE(std::all_of(data, data + mine.size(), [](auto byte) { return byte == 0x11; }));
    }
  }
};

TEST_P(ForkedPool, IsRefusedToAChildOfBusyThreads) {
  auto const pool = GetParam().make();
  auto mine = marked(*pool);
  {
    Busy busy;
    for (unsigned i = 1; i <= 4; ++i) busy.start([&, i](auto const& done) { use(*pool, i, done); });
    for (int round = 0; round < rounds; ++round) {
      ASSERT_EQ(ending_of(fork(), [&] { return use_inherited(*pool, std::move(mine)); }), 0);
      static_cast<void>(pool->acquire_cached(KiB));  // this thread has magazines of its own
    }
  }
  check_after(*pool, std::move(mine));
}

TEST_P(ForkedPool, IsRefusedToAChildOfEndingThreads) {
  auto const pool = GetParam().make();
  auto mine = marked(*pool);
  {
    Busy busy;
    for (int i = 0; i < 2; ++i) {
      busy.start([&](auto const& done) {
        while (!done) std::thread([&] { static_cast<void>(pool->acquire(10 * KiB)); }).join();
      });
    }
    for (int round = 0; round < rounds; ++round) {
      ASSERT_EQ(ending_of(fork(), [&] { return use_inherited(*pool, std::move(mine)); }), 0);
    }
  }
  check_after(*pool, std::move(mine));
}

TEST_P(ForkedPool, EndsInAChildForNothing) {
  auto pool = GetParam().make();
  auto mine = marked(*pool);
  {
    Busy busy;
    for (unsigned i = 1; i <= 3; ++i) busy.start([&, i](auto const& done) { use(*pool, i, done); });
    for (int round = 0; round < rounds; ++round) {
      auto const ending = ending_of(fork(), [&] {
        pool.reset();
        if (mine.device().shares_storage_with_host()) {
          std::memset(mine.data(), 1, mine.size());
        } else {
          EXPECT_HERE(is_refused([&] { static_cast<void>(mine.data()); }));
        }
        mine = {};
        return use_own_pool();
      });
      ASSERT_EQ(ending, 0);
    }
  }
  check_after(*pool, std::move(mine));
}

TEST_P(ForkedPool, IsRefusedToAChildOfAChild) {
  auto const pool = GetParam().make();
  auto mine = marked(*pool);
  Busy busy;
  for (unsigned i = 1; i <= 3; ++i) busy.start([&, i](auto const& done) { use(*pool, i, done); });
  for (int round = 0; round < rounds / 3; ++round) {
    auto const in_grandchild = [&] { return use_inherited(*pool, std::move(mine)); };
    ASSERT_EQ(ending_of(fork(), [&] { return ending_of(fork(), in_grandchild); }), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Pools, ForkedPool, ::testing::ValuesIn(cases()),
                         [](auto const& made) { return made.param.name; });

TEST(ForkedAddressBook, IsRefusedToAChild) {
  if (detail::is_sanitized)
    GTEST_SKIP() << "a child that is forked while a thread allocates hangs in the sanitizer's runtime";
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
        EXPECT_HERE(is_refused([&] { static_cast<void>(book.acquire(KiB, 16, nullptr)); }));
        EXPECT_HERE(is_refused([&] { static_cast<void>(book.statistics()); }));
        EXPECT_HERE(is_refused([&] { book.validate(); }));
        std::memset(kept, 1, KiB);
        book.release(kept, KiB, 16, {});
        MemoryPool own{device("cpu"), Location::host};
        detail::AddressBook of_child{own, "book", {}};
        of_child.release(of_child.acquire(KiB, 16, nullptr), KiB, 16, {});
        of_child.validate();
        return of_child.statistics().live_allocations == 0 ? 0 : 1;
      });
      ASSERT_EQ(ending, 0);
    }
  }
  book.release(kept, KiB, 16, {});
}

TEST(ForkedIdleTrimmer, EndsInAChild) {
  if (detail::is_sanitized)
    GTEST_SKIP() << "a child that is forked while a thread allocates hangs in the sanitizer's runtime";
  MemoryPool pool{device("cpu"), Location::host};
  auto trimmer = std::make_unique<IdleTrimmer>(pool, 50us);
  for (int round = 0; round < rounds; ++round) {
    auto const ending = ending_of(fork(), [&] {
      trimmer.reset();
      return use_own_pool();
    });
    ASSERT_EQ(ending, 0);
  }
}

}  // namespace
}  // namespace unimem
