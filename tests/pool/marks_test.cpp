#include <unimem/pool/memory_pool.hpp>

#include "core/sizes.hpp"
#include "pool/scripted_device.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

namespace unimem {
namespace {

constexpr auto no_end = std::numeric_limits<std::size_t>::max();

TEST(PoolMarks, AreNeverLeftIfNobodySetsAny) {
  ScriptedDevice device{64 * MiB};
  MemoryPool pool{device, Location::device};
  auto const all = pool.acquire(64 * MiB);
  EXPECT_FALSE(pool.has_left_marks());
  EXPECT_EQ(pool.bytes_in_use(), 64 * MiB);
}

TEST(PoolMarks, AreLeftAtTheirBounds) {
  ScriptedDevice device{64 * MiB};
  MemoryPool pool{device, Location::device};
  auto first = pool.acquire(8 * MiB);
  EXPECT_FALSE(pool.set_marks(8 * MiB, 16 * MiB));
  auto second = pool.acquire(8 * MiB - 4096);
  EXPECT_FALSE(pool.has_left_marks());
  auto third = pool.acquire(4096);
  EXPECT_TRUE(pool.has_left_marks()) << "it is the upper mark";

  EXPECT_FALSE(pool.set_marks(8 * MiB, no_end));
  second.release();
  third.release();
  EXPECT_EQ(pool.bytes_in_use(), 8 * MiB);
  EXPECT_FALSE(pool.has_left_marks()) << "it is the lower mark";
  first.release();
  EXPECT_EQ(pool.bytes_in_use(), 0U) << "what this thread keeps is not in use";
  EXPECT_TRUE(pool.has_left_marks());
}

TEST(PoolMarks, SetWhereTheyAreLeftAlreadySaySo) {
  ScriptedDevice device{64 * MiB};
  MemoryPool pool{device, Location::device};
  auto const block = pool.acquire(8 * MiB);
  EXPECT_TRUE(pool.set_marks(0, 8 * MiB));
  EXPECT_TRUE(pool.set_marks(8 * MiB + 1, no_end));
  EXPECT_TRUE(pool.has_left_marks());
  EXPECT_FALSE(pool.set_marks(0, 8 * MiB + 1));
  EXPECT_FALSE(pool.has_left_marks()) << "they are others now";
}

}  // namespace
}  // namespace unimem
