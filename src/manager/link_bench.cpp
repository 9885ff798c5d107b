#include "manager/link_bench.hpp"

#include <unimem/core/error.hpp>
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

/// Memory that goes back to its device whatever happens.
class Block {
 public:
  Block(Device& device, std::size_t bytes, Location location)
      : device_(device), location_(location), memory_(device.allocate(bytes, location)) {}
  Block(Block const&) = delete;
  Block& operator=(Block const&) = delete;
  ~Block() { device_.release(memory_, location_); }

  [[nodiscard]] DeviceMemory memory() const noexcept { return memory_; }
  [[nodiscard]] void* address() const { return device_.address(memory_); }

 private:
  Device& device_;
  Location const location_;
  DeviceMemory const memory_;
};

/// Memory of `bytes` bytes, or of half as many as long as there is not so much; `bytes` is then what it is.
std::unique_ptr<Block> block_of(Device& device, std::size_t& bytes) {
  for (;; bytes /= 2) {
    try {
      return std::make_unique<Block>(device, bytes, Location::device);
    } catch (OutOfMemory const&) {
      if (bytes / 2 < least_large) throw;
    }
  }
}

/// Pinned where the system allows it, as the blocks are through which large copies pass.
std::unique_ptr<Block> host_block(std::size_t bytes) {
  auto& cpu = device("cpu");
  std::unique_ptr<Block> block;
  try {
    block = std::make_unique<Block>(cpu, bytes, Location::pinned);
  } catch (OutOfMemory const&) {
    block = std::make_unique<Block>(cpu, bytes, Location::host);
  }
  std::memset(block->address(), 0x5A, bytes);  // a page that nobody has touched is copied faster than any other
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

LinkFigures measure_from_host(Device& device) {
  auto bytes = large;
  auto const target = block_of(device, bytes);
  auto const source = host_block(bytes);
  auto queue = device.create_queue();
  return figures_of([&](std::size_t size) { return queue.upload(target->memory(), source->address(), size); }, bytes);
}

LinkFigures measure_to_host(Device& device) {
  auto bytes = large;
  auto const source = block_of(device, bytes);
  auto const target = host_block(bytes);
  write_once(device, source->memory());
  auto queue = device.create_queue();
  return figures_of([&](std::size_t size) { return queue.download(target->address(), source->memory(), size); }, bytes);
}

LinkFigures measure_between(Device& from, Device& to) {
  auto bytes = large;
  auto const source = block_of(from, bytes);
  auto const target = block_of(to, bytes);
  write_once(from, source->memory());
  auto queue = to.create_queue();
  return figures_of([&](std::size_t size) { return queue.copy(target->memory(), from, source->memory(), size); },
                    bytes);
}

}  // namespace

LinkFigures measure_link(Device* from, Device* to) {
  if (from == nullptr) return measure_from_host(*to);
  if (to == nullptr) return measure_to_host(*from);
  return measure_between(*from, *to);
}

}  // namespace unimem::detail
