#include <unimem/buffer/buffer_pool.hpp>
#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/pool/pool_resource.hpp>

#include "core/sizes.hpp"
#include "weights/least_instructions.hpp"

#include <gtest/gtest.h>

#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory_resource>
#include <string>
#include <vector>

// What buffers and blocks may weigh: instructions of the calling thread, and bytes of the heap by malloc's own figures.

namespace unimem::testing {
namespace {

/// Of the heap, what each of many costs that `make()` returns, the handle excluded.
template <class Make>
std::size_t heap_bytes(Make const& make) {
  constexpr std::size_t many = 200;
  std::vector<decltype(make())> held;
  held.reserve(many);
  for (int i = 0; i < 3; ++i) held.push_back(make());  // what all of them share
  held.clear();
  auto const before = ::mallinfo2().uordblks;
  for (std::size_t i = 0; i < many; ++i) held.push_back(make());
  return (::mallinfo2().uordblks - before) / many;
}

class BufferWeight : public ::testing::Test {
 protected:
  [[nodiscard]] UnifiedBuffer<float> made() { return UnifiedBuffer<float>(1'024, options); }
  [[nodiscard]] UnifiedBuffer<float> written() {
    auto buffer = made();
    buffer.fill(1);
    return buffer;
  }
  [[nodiscard]] UnifiedBuffer<float> copied() {
    auto buffer = written();
    buffer.sync_to_device();
    return buffer;
  }

  Device& sim = make_sim({.memory_bytes = 64 * MiB});
  MemoryManager manager;
  BufferOptions const options{.manager = &manager, .device = &sim};
};

TEST_F(BufferWeight, MadeWrittenAndDestroyed) {
  auto const once = [&] {
    auto buffer = made();
    buffer.host_overwrite()[0] = 1;
  };
  for (int i = 0; i < 10; ++i) once();
  auto const counted = least_instructions(once);
  if (!counted) GTEST_SKIP() << "no thread can be traced here";
  RecordProperty("instructions", std::to_string(*counted));
  EXPECT_LE(*counted, 4'700U);
}

TEST_F(BufferWeight, TakenFromAPoolOfBuffersAndGivenBack) {
  BufferPool pool({.manager = &manager, .device = &sim});
  auto const pair = [&] {
    auto buffer = pool.acquire<float>(1'024);
    pool.release(buffer);
  };
  for (int i = 0; i < 10; ++i) pair();
  auto const counted = least_instructions(pair);
  if (!counted) GTEST_SKIP() << "no thread can be traced here";
  RecordProperty("instructions", std::to_string(*counted));
  EXPECT_LE(*counted, 2'500U);
}

TEST_F(BufferWeight, BytesOfTheHeap) {
  auto const without_memory = heap_bytes([&] { return made(); });
  auto const on_host = heap_bytes([&] { return written(); });
  auto const on_device_too = heap_bytes([&] { return copied(); });
  if (without_memory == 0) GTEST_SKIP() << "this heap is not malloc's own";
  RecordProperty("without_memory", std::to_string(without_memory));
  RecordProperty("on_host", std::to_string(on_host));
  RecordProperty("on_device_too", std::to_string(on_device_too));
  EXPECT_LE(without_memory, 1'000U);
  EXPECT_LE(on_host, 1'700U);
  EXPECT_LE(on_device_too, 3'200U);
}

TEST(PoolWeight, AWarmPairOfAnySize) {
  MemoryPool pool{device("cpu"), Location::host};
  for (auto const bytes : {std::size_t{100}, 4 * KiB, MiB, 16 * MiB}) {
    auto const pair = [&] { static_cast<void>(pool.acquire(bytes)); };
    for (int i = 0; i < 1'000; ++i) pair();
    auto const counted = least_instructions(pair);
    if (!counted) GTEST_SKIP() << "no thread can be traced here";
    RecordProperty("instructions_" + std::to_string(bytes), std::to_string(*counted));
    EXPECT_LE(*counted, 150U) << bytes;
  }
}

TEST(PoolWeight, ANodeOfAListOfTheStandardLibrary) {
  MemoryPool pool{device("cpu"), Location::host};
  PoolResource resource{pool};
  constexpr std::size_t nodes = 100'000;
  auto const before = ::mallinfo2().uordblks;
  std::pmr::list<std::uint64_t> const numbers(nodes, 7, &resource);
  auto const heap = ::mallinfo2().uordblks - before;
  if (heap == 0) GTEST_SKIP() << "this heap is not malloc's own";
  auto const each = (heap + pool.statistics().active_bytes) / nodes;
  RecordProperty("bytes", std::to_string(each));
  EXPECT_LE(each, 64U) << "24 of them are the node's own";
}

}  // namespace
}  // namespace unimem::testing
