#include "manager/link_bench.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/name.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/discovery.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>

namespace unimem::detail {
namespace {

constexpr std::size_t small = 256;
constexpr std::size_t large = std::size_t{4} << 20;
constexpr std::size_t least_large = std::size_t{64} << 10;

/// A block of a pool, within its limit; nobody's work is waited for to make room.
Allocation block_of(MemoryPool& pool, std::size_t bytes) {
  return pool.acquire(bytes, {.name = Name("measuring links"), .may_wait = false});
}

/// What `take(bytes)` gives, or of half as many bytes as long as there is not so much; `bytes` is then what it is.
template <class Take>
Allocation as_much_as_there_is(std::size_t& bytes, Take const& take) {
  for (;; bytes /= 2) {
    try {
      return take();
    } catch (OutOfMemory const&) {
      if (bytes / 2 < least_large) throw;
    }
  }
}

Allocation device_block(PoolOf const& pool_of, Device& device, std::size_t& bytes) {
  auto& pool = pool_of(device, Location::device);
  return as_much_as_there_is(bytes, [&] { return block_of(pool, bytes); });
}

/// Pinned where the system allows it, as the blocks are through which large copies pass.
Allocation host_block(PoolOf const& pool_of, std::size_t& bytes) {
  auto& cpu = device("cpu");
  auto block = as_much_as_there_is(bytes, [&] {
    try {
      return block_of(pool_of(cpu, Location::pinned), bytes);
    } catch (OutOfMemory const&) {
      return block_of(pool_of(cpu, Location::host), bytes);
    }
  });
  std::memset(block.data(), 0x5A, bytes);  // a page that nobody has touched is copied faster than any other
  return block;
}

/// What was never written may cost nothing to read.
void write_once(Device& device, DeviceMemory memory) {
  constexpr std::byte pattern{0x5A};
  device.create_queue().fill(memory, {&pattern, 1}).wait();
}

/// The median of a few times that `copy(bytes)` takes from submission to its end.
template <class Copy>
double seconds_of(Copy const& copy, std::size_t bytes) {
  std::array<double, 5> seconds{};
  for (std::size_t round = 0; round <= seconds.size(); ++round) {
    auto const begin = std::chrono::steady_clock::now();
    copy(bytes).wait();
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - begin;
    if (round > 0) seconds[round - 1] = took.count();
  }
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

template <class Copy>
LinkFigures figures_of(Copy const& copy, std::size_t most) {
  constexpr double shortest = 1e-9;  // no copy starts for nothing
  auto const start = std::max(seconds_of(copy, small), shortest);
  auto whole = seconds_of(copy, most);
  if (whole <= start) whole = seconds_of(copy, most);  // a noisy moment may turn the two round; seldom twice
  auto const moving = whole > start ? whole - start : whole;
  auto const bytes = whole > start ? most - small : most;
  return {static_cast<double>(bytes) / std::max(moving, shortest), start};
}

LinkFigures measure_from_host(Device& device, PoolOf const& pool_of) {
  auto bytes = large;
  auto const target = device_block(pool_of, device, bytes);
  auto const source = host_block(pool_of, bytes);
  auto const* const address = source.data();
  auto queue = device.create_queue();
  return figures_of([&](std::size_t size) { return queue.upload(target.memory(), address, size); }, bytes);
}

LinkFigures measure_to_host(Device& device, PoolOf const& pool_of) {
  auto bytes = large;
  auto const source = device_block(pool_of, device, bytes);
  auto const target = host_block(pool_of, bytes);
  auto* const address = target.data();
  write_once(device, source.memory());
  auto queue = device.create_queue();
  return figures_of([&](std::size_t size) { return queue.download(address, source.memory(), size); }, bytes);
}

LinkFigures measure_between(Device& from, Device& to, PoolOf const& pool_of) {
  auto bytes = large;
  auto const source = device_block(pool_of, from, bytes);
  auto const target = device_block(pool_of, to, bytes);
  write_once(from, source.memory());
  auto queue = to.create_queue();
  return figures_of([&](std::size_t size) { return queue.copy(target.memory(), from, source.memory(), size); }, bytes);
}

}  // namespace

LinkFigures measure_link(Device* from, Device* to, PoolOf const& pool_of) {
  if (from == nullptr) return measure_from_host(*to, pool_of);
  if (to == nullptr) return measure_to_host(*from, pool_of);
  return measure_between(*from, *to, pool_of);
}

MemoryPool& PassingPools::of(Device& device, Location location) {
  for (auto const& pool : pools_) {
    if (&pool->device() == &device && pool->location() == location) return *pool;
  }
  return *pools_.emplace_back(
      std::make_unique<MemoryPool>(device, location, PoolOptions{.backing = PoolBacking::allocations}));
}

}  // namespace unimem::detail
