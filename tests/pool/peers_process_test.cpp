#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/pool/memory_pool.hpp>
#include <unimem/pool/pool_resource.hpp>

#include "core/sizes.hpp"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory_resource>
#include <thread>
#include <vector>

// Bugs that other pools have had with processes that end, or fork, while a pool lives.

namespace unimem {
namespace {

using namespace std::chrono_literals;
using ::testing::ExitedWithCode;

class BugsOfPeersAtExit : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

using BugsOfPeersAtExitDeathTest = BugsOfPeersAtExit;

TEST_F(BugsOfPeersAtExitDeathTest, AContainerOverAPoolInStaticStorage) {
  auto const scenario = [] {
    static MemoryPool pool{device("cpu"), Location::host};
    static PoolResource resource{pool};
    static std::pmr::vector<std::pmr::vector<int>> rows(100, &resource);
    for (auto& row : rows) row.assign(1000, 7);
    std::exit(rows[99][999]);  // NOLINT(concurrency-mt-unsafe)
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "^$");
}

TEST_F(BugsOfPeersAtExitDeathTest, APoolThatIsNeverDestroyed) {
  auto const scenario = [] {
    static auto& pool = *new MemoryPool(make_sim({.memory_bytes = 16 * MiB, .latency = 20ms}), Location::device);
    static auto& held = *new Allocation(pool.acquire(MiB));
    static std::vector<std::uint64_t> const words(1024);
    auto block = pool.acquire(8192);
    block.release(pool.device().default_queue().upload(block.memory(), words.data(), 8192));
    std::exit(held.size() == MiB ? 7 : 1);  // NOLINT(concurrency-mt-unsafe)
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "^$");
}

TEST_F(BugsOfPeersAtExitDeathTest, APoolThatThreadsGoOnUsing) {
  auto const scenario = [] {
    // Of the heap: no thread may use what exit destroys under it.
    static auto& pool = *new MemoryPool(device("cpu"), Location::host);
    static std::atomic<int> working{0};
    for (int i = 0; i < 3; ++i) {
      std::thread([] {
        for (std::size_t bytes = 1;; bytes = bytes * 7 % 100'003 + 1) {
          auto const block = pool.acquire(bytes);
          *static_cast<unsigned char*>(block.data()) = 1;
          if (bytes == 1) ++working;
        }
      }).detach();
    }
    while (working < 3) std::this_thread::yield();
    std::exit(7);  // NOLINT(concurrency-mt-unsafe)
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "^$");
}

TEST_F(BugsOfPeersAtExitDeathTest, ABlockThatOutlivesItsPool) {
  auto const scenario = [] {
    static Allocation held;
    static MemoryPool pool{device("cpu"), Location::host};  // destroyed first
    held = pool.acquire(1000);
    std::exit(7);  // NOLINT(concurrency-mt-unsafe)
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "") << "which the pool complains of";
}

TEST(BugsOfPeersAtFork, AChildIsRefusedItsParentsPool) {
  MemoryPool pool{device("cpu"), Location::host};
  PoolResource resource{pool};
  auto block = pool.acquire(1000);
  pool.acquire(5000).release();
  std::pmr::vector<int> numbers(1000, 3, &resource);
  auto const child = fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    int refusals = 0;
    try {
      numbers.resize(5000, 4);
    } catch (UnsupportedOperation const&) {
      ++refusals;
    }
    block.release();  // goes nowhere
    try {
      static_cast<void>(pool.acquire(1000));
    } catch (UnsupportedOperation const&) {
      ++refusals;
    }
    bool const right = std::ranges::count(numbers, 3) == 1000;
    numbers = {};  // nor does this
    _exit(right && refusals == 2 ? 7 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(std::ranges::count(numbers, 3), 1000) << "the parent goes on as if nothing had been";
  EXPECT_EQ(pool.statistics().active_allocations, 2U);
  pool.validate();
}

}  // namespace
}  // namespace unimem
