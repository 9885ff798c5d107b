#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "core/sizes.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

// What a core dump shows of pools: nothing of those that overwrite what is released, all of others.

namespace unimem {
namespace {

/// Whether every byte of a stretch of memory is in mappings that core dumps leave out (`dd`, proc_pid_smaps(5)).
bool is_left_out(void const* memory, std::size_t bytes) {
  auto at = reinterpret_cast<std::uintptr_t>(memory);
  auto const end = at + bytes;
  std::ifstream maps{"/proc/self/smaps"};
  bool here = false;
  std::uintptr_t until = 0;
  for (std::string line; at < end && std::getline(maps, line);) {
    if (line.starts_with("VmFlags:")) {
      if (!here) continue;
      if (line.find(" dd") == std::string::npos) return false;
      at = until;
      continue;
    }
    std::uintptr_t first = 0, last = 0;
    char dash = 0;
    std::istringstream words{line};
    if (!(words >> std::hex >> first >> dash >> last) || dash != '-') continue;
    here = first <= at && at < last;
    until = last;
  }
  return at >= end;
}

struct Home {
  char const* name;
  Location location;
  PoolBacking backing;
};

class Undumped : public ::testing::TestWithParam<Home> {
 protected:
  [[nodiscard]] static PoolOptions options(bool zero_on_release) {
    return {.zero_on_release = zero_on_release, .backing = GetParam().backing};
  }
};

TEST_P(Undumped, IsEveryOverwrittenBlock) {
  MemoryPool erasing{device("cpu"), GetParam().location, options(true)};
  MemoryPool plain{device("cpu"), GetParam().location, options(false)};
  for (auto const bytes : {std::size_t{1}, std::size_t{300}, 5 * KiB, 64 * KiB - 1, 64 * KiB, 200 * KiB}) {
    auto const secret = erasing.acquire(bytes), other = plain.acquire(bytes);
    EXPECT_TRUE(is_left_out(secret.data(), secret.capacity())) << bytes;
    EXPECT_FALSE(is_left_out(other.data(), other.capacity())) << bytes;
    auto const beside = std::make_unique<std::byte[]>(bytes);
    EXPECT_FALSE(is_left_out(beside.get(), bytes)) << "what is the program's own is shown";
  }
}

TEST_P(Undumped, StaysSoWhenMemoryMoves) {
  MemoryPool pool{device("cpu"), GetParam().location, options(true)};
  auto const seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random{seed};
  std::vector<Allocation> blocks;
  std::size_t held = 0;
  for (int step = 0; step < 600; ++step) {
    auto const what = random() % 20;
    if (what == 0) pool.trim(held / 2);
    if (what == 1) static_cast<void>(pool.defragment());
    if (!blocks.empty() && (what < 9 || held > 4 * MiB)) {
      auto& one = blocks[random() % blocks.size()];
      held -= one.capacity();
      std::swap(one, blocks.back());
      blocks.pop_back();
    } else {
      auto& one = blocks.emplace_back(pool.acquire(1 + random() % (random() % 4 == 0 ? MiB : 8 * KiB)));
      held += one.capacity();
      ASSERT_TRUE(is_left_out(one.data(), one.capacity())) << "step " << step;
    }
  }
  for (auto const& one : blocks) EXPECT_TRUE(is_left_out(one.data(), one.capacity()));
  pool.validate();
}

INSTANTIATE_TEST_SUITE_P(Homes, Undumped,
                         ::testing::Values(Home{"host", Location::host, PoolBacking::allocations},
                                           Home{"host_pages", Location::host, PoolBacking::pages},
                                           Home{"device_pages", Location::device, PoolBacking::pages},
                                           Home{"unified", Location::unified, PoolBacking::automatic},
                                           Home{"pinned", Location::pinned, PoolBacking::allocations}),
                         [](auto const& home) { return home.param.name; });

}  // namespace
}  // namespace unimem
