#include "manager/link_bench.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/name.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/discovery.hpp>

#include "core/last_level_cache.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>

namespace unimem::detail {
namespace {

constexpr std::size_t small = 256;
constexpr std::size_t first_large = std::size_t{4} << 20;
constexpr std::size_t most_large = std::size_t{256} << 20;
constexpr std::size_t least_large = std::size_t{64} << 10;
constexpr double longest_copy_seconds = 0.05;

/// A block of a pool, within its limit; no work is waited for to make room.
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
  std::memset(block.data(), 0x5A, bytes);  // an untouched page is copied faster than any other
  return block;
}

/// What was never written may cost nothing to read, and what was never touched more than once to write.
void write_once(Device& device, DeviceMemory memory) {
  constexpr std::byte pattern{0x5A};
  device.create_queue().fill(memory, {&pattern, 1}).wait();
}

/// What `copy(bytes)` takes from submission to its end.
template <class Copy>
double seconds_of_one(Copy const& copy, std::size_t bytes) {
  auto const begin = std::chrono::steady_clock::now();
  copy(bytes).wait();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The median of a few.
template <class Copy>
double seconds_of(Copy const& copy, std::size_t bytes) {
  std::array<double, 5> seconds{};
  for (auto& one : seconds) one = seconds_of_one(copy, bytes);
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

/// As many of `most` bytes as go over in a time that may be waited for, by how long `first` of them took.
std::size_t in_short_time(std::size_t first, double seconds, std::size_t most) {
  constexpr std::size_t page = 4096;
  auto const bytes = static_cast<double>(first) * longest_copy_seconds / seconds;
  if (bytes >= static_cast<double>(most)) return most;
  return std::max(first, static_cast<std::size_t>(bytes) / page * page);
}

template <class Copy>
LinkFigures figures_of(Copy const& copy, std::size_t most) {
  constexpr double shortest = 1e-9;  // no copy starts for nothing
  static_cast<void>(seconds_of_one(copy, small));
  auto const start = std::max(seconds_of(copy, small), shortest);
  auto const first = std::min(first_large, most);
  auto const large = in_short_time(first, std::max(seconds_of_one(copy, first), shortest), most);
  auto whole = seconds_of(copy, large);
  if (whole <= start) whole = seconds_of(copy, large);  // a noisy moment may turn the two round; seldom twice
  auto const moving = whole > start ? whole - start : whole;
  auto const bytes = whole > start ? large - small : large;
  bool const within_cache = large == most && most <= last_level_cache_bytes();
  return {static_cast<double>(bytes) / std::max(moving, shortest), start, within_cache, most < copied_to_measure()};
}

LinkFigures measure_from_host(Device& device, PoolOf const& pool_of) {
  auto bytes = copied_to_measure();
  auto const target = device_block(pool_of, device, bytes);
  auto const source = host_block(pool_of, bytes);
  auto const* const address = source.data();
  write_once(device, target.memory());
  auto queue = device.create_queue();
  return figures_of([&](std::size_t size) { return queue.upload(target.memory(), address, size); }, bytes);
}

LinkFigures measure_to_host(Device& device, PoolOf const& pool_of) {
  auto bytes = copied_to_measure();
  auto const source = device_block(pool_of, device, bytes);
  auto const target = host_block(pool_of, bytes);
  auto* const address = target.data();
  write_once(device, source.memory());
  auto queue = device.create_queue();
  return figures_of([&](std::size_t size) { return queue.download(address, source.memory(), size); }, bytes);
}

LinkFigures measure_between(Device& from, Device& to, PoolOf const& pool_of) {
  auto bytes = copied_to_measure();
  auto const source = device_block(pool_of, from, bytes);
  auto const target = device_block(pool_of, to, bytes);
  write_once(from, source.memory());
  write_once(to, target.memory());
  auto queue = to.create_queue();
  return figures_of([&](std::size_t size) { return queue.copy(target.memory(), from, source.memory(), size); }, bytes);
}

}  // namespace

std::size_t copied_to_measure() {
  auto const cache = last_level_cache_bytes();
  return std::clamp(std::bit_ceil(cache + cache / 2), first_large, most_large);
}

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
