#include <unimem/device/sim.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "core/failing_allocations.hpp"
#include "core/sizes.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <new>

namespace unimem::testing {
namespace {

TEST(ManagerOutOfMemory, APoolMadeAfterAFailureIsWatched) {
  auto& sim = make_sim({.memory_bytes = 64 * MiB});
  bool made = false;
  for (std::size_t n = 1; !made; ++n) {
    SCOPED_TRACE(::testing::Message() << "allocation " << n << " fails");
    MemoryManager manager;
    std::atomic<int> calls{0};
    auto const subscription = manager.on_pressure([&](PressureChange const&) { ++calls; });
    fail_allocation(n);
    try {
      static_cast<void>(manager.pool(sim, Location::device));
      fail_allocation(0);
      made = true;
      EXPECT_GT(n, 3U) << "some have failed";
    } catch (std::bad_alloc const&) {
      EXPECT_TRUE(manager.statistics().pools.empty()) << "nothing is left of it";
    }
    auto const block = manager.acquire(sim, Location::device, 60 * MiB);
    manager.settle_pressure();
    EXPECT_EQ(calls, 1);
  }
}

}  // namespace
}  // namespace unimem::testing
