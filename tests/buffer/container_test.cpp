#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "core/sizes.hpp"
#include "device/contained_run.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <tuple>
#include <vector>

namespace unimem {
namespace {

using ::testing::HasSubstr;

/// What a process in a real container of 1 GiB does; started anew by the test below, as this very program.
TEST(ContainedBuffers, DISABLED_OneIsTooLargeAndOneIsNot) {
  auto& cpu = device("cpu");
  auto& manager = default_manager();
  ASSERT_EQ(cpu.info().total_bytes, GiB) << "it is in the group";
  for (auto const location : {Location::pinned, Location::host}) {
    try {
      std::ignore = manager.allocate<char>(4 * GiB, {.location = location, .device = &cpu, .name = {}});
      ADD_FAILURE() << "was granted";
    } catch (OutOfMemory const& error) {
      EXPECT_THAT(error.facts().reason, HasSubstr("the container's memory limit of 1 GiB"));
    }
  }
  EXPECT_EQ(manager.statistics().refusals, 2U);
  EXPECT_EQ(manager.statistics().refused_pinnings, 0U) << "ordinary memory has not served either";
  EXPECT_EQ(manager.statistics().active_bytes, 0U);
  {
    std::vector<char> const values(64 * MiB, 9);
    auto const buffer = manager.allocate<char>(values, {.location = Location::pinned, .device = &cpu, .name = {}});
    bool const locked = buffer.is_pinned();
    EXPECT_EQ(buffer.location(), locked ? Location::pinned : Location::host);
    EXPECT_EQ(manager.statistics().refused_pinnings, locked ? 0U : 1U);
    EXPECT_EQ(manager.pool(cpu, buffer.location()).statistics().active_bytes, 64 * MiB);
    EXPECT_LE(manager.available_memory(cpu), GiB - 64 * MiB);
    EXPECT_EQ(buffer.to_vector(), values);
  }
  EXPECT_EQ(manager.statistics().active_bytes, 0U);
  manager.cleanup();
  EXPECT_EQ(manager.statistics().reserved_bytes, 0U);
}

TEST(RealContainer, RefusesBuffersBeyondItsMemoryLimit) {
  run_contained("ContainedBuffers.DISABLED_*");
}

}  // namespace
}  // namespace unimem
