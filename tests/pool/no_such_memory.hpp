#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/device.hpp>
#include <unimem/pool/memory_pool.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace unimem {

/// A location that a device does not serve, by design and on every machine.
struct Nowhere {
  char const* name;
  Device& (*device)();
  Location location;
};

class PoolsWhereThereIsNoSuchMemory : public ::testing::TestWithParam<Nowhere> {};

TEST_P(PoolsWhereThereIsNoSuchMemory, NameTheDeviceAndTheMemory) {
  auto& place = GetParam().device();
  MemoryPool pool{place, GetParam().location};
  for (std::uint64_t refused = 1; refused <= 3; ++refused) {
    try {
      auto const block = pool.acquire(refused * 1000);
      ADD_FAILURE() << "was granted";
    } catch (UnsupportedOperation const& error) {
      EXPECT_EQ(error.operation, std::string(to_string(GetParam().location)) + " memory");
      EXPECT_EQ(error.where, place.id());
    }
    auto const statistics = pool.statistics();
    EXPECT_EQ(statistics.failed_allocations, refused);
    EXPECT_EQ(statistics.total_allocations, 0U);
    EXPECT_EQ(statistics.reserved_bytes, 0U);
    pool.validate();
  }
}

}  // namespace unimem
