#include "core/failing_allocations.hpp"
#include "device/sim/fresh_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace unimem::detail {
namespace {

constexpr std::size_t granule = FreshMemory::granule_bytes;

/// Memory of eight granules, whose first byte is at a granule's.
class FreshMemoryOutOfMemory : public ::testing::Test {
 protected:
  [[nodiscard]] std::uintptr_t address(std::size_t granules) const { return base + granules * granule; }
  [[nodiscard]] std::span<std::byte> bytes(std::size_t from, std::size_t to) const {
    return {reinterpret_cast<std::byte*>(address(from)), (to - from) * granule};
  }
  [[nodiscard]] bool all(std::size_t from, std::size_t to, std::byte value) const {
    return std::ranges::all_of(bytes(from, to), [=](std::byte each) { return each == value; });
  }
  void remove_without_memory(std::size_t from, std::size_t to) {
    unimem::testing::fail_allocation(1);
    fresh.remove(address(from), (to - from) * granule);
    EXPECT_FALSE(unimem::testing::allocation_is_to_fail()) << "it was in want of memory";
    unimem::testing::fail_allocation(0);
  }

  static constexpr std::byte old{0x11};
  std::vector<std::byte> room = std::vector<std::byte>(9 * granule, old);
  std::uintptr_t base = (reinterpret_cast<std::uintptr_t>(room.data()) + granule - 1) / granule * granule;
  FreshMemory fresh;
};

TEST_F(FreshMemoryOutOfMemory, RemovingFromTheMiddleWritesTheShorterSide) {
  for (bool const before : {true, false}) {
    std::ranges::fill(room, old);
    fresh.add(base, 8 * granule);
    std::size_t const gone = before ? 2 : 5;
    remove_without_memory(gone, gone + 1);
    EXPECT_TRUE(before ? all(0, 2, FreshMemory::poison) : all(6, 8, FreshMemory::poison))
        << "what it counts as touched is poisoned";
    EXPECT_TRUE(before ? all(2, 8, old) : all(0, 6, old)) << "nothing else is written, what is gone least of all";
    fresh.before_access(address(gone), granule);
    EXPECT_TRUE(all(gone, gone + 1, old)) << "it is no longer known";
    fresh.before_access(base, 8 * granule);
    EXPECT_TRUE(before ? all(3, 8, FreshMemory::poison) : all(0, 5, FreshMemory::poison))
        << "the longer side is, still";
  }
}

}  // namespace
}  // namespace unimem::detail
