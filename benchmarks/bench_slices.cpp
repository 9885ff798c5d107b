// What an array costs that is larger than a device's memory and is used by slices: a pass over all of it, and loops
// over it, beside the copies and uses by themselves and beside the best that anybody who knows the future could do.
// Bytes are those the device counted.
//
//     bench_slices [--quick] [--device ID]     on ID (default: a simulated one with a link of 12 GB/s, and opencl:0 if
//     there is one)

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/size.hpp>
#include <unimem/device/queue.hpp>
#include <unimem/kernel/launch.hpp>

#include "crowded_device.hpp"
#include "manager/use_patterns.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using unimem::Allocation;
using unimem::BufferOptions;
using unimem::Device;
using unimem::DeviceMemory;
using unimem::format_size;
using unimem::launch;
using unimem::Location;
using unimem::loop;
using unimem::MemoryManager;
using unimem::optimal_loads;
using unimem::Range;
using unimem::readwrite;
using unimem::UnifiedBuffer;
using unimem::Uses;
using unimem::bench::add_one;
using unimem::bench::verdict;
using Clock = std::chrono::steady_clock;
using Words = UnifiedBuffer<std::uint32_t>;

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

Words zeros(MemoryManager& manager, Device& device, std::size_t bytes) {
  BufferOptions options;
  options.manager = &manager;
  options.device = &device;
  Words buffer(bytes / sizeof(std::uint32_t), options);
  std::ranges::fill(buffer.host_overwrite(), 0U);
  return buffer;
}

/// One array, used by slices of one size; `room` of them fit the device.
struct Shape {
  std::size_t slice_bytes, slices, room;
};

/// Seconds for one slice each way and for one use of it: by hand, over all slices of an array as large, so that no more
/// of it is in the processor's cache than when slices are used.
struct Rates {
  double up = 0, down = 0, use = 0;
};

Rates measure(Device& device, Shape const& shape) {
  MemoryManager manager;
  auto array = zeros(manager, device, shape.slices * shape.slice_bytes);
  std::deque<Allocation> blocks;  // by turns
  for (std::size_t i = 0; i < shape.room; ++i) {
    blocks.push_back(manager.acquire(device, Location::device, shape.slice_bytes));
  }
  auto queue = device.create_queue();
  auto const each = [&](auto const& work) {
    auto* const bytes = reinterpret_cast<std::byte*>(array.host().data());
    auto const began = Clock::now();
    for (std::size_t i = 0; i < shape.slices; ++i) {
      work(blocks[i % shape.room].memory(), bytes + i * shape.slice_bytes).wait();
    }
    return seconds_since(began) / static_cast<double>(shape.slices);
  };
  auto const upload = [&](DeviceMemory block, std::byte* host) { return queue.upload(block, host, shape.slice_bytes); };
  static_cast<void>(each(upload));  // for the page faults of fresh memory
  Rates rates;
  rates.up = each(upload);
  rates.down =
      each([&](DeviceMemory block, std::byte* host) { return queue.download(host, block, shape.slice_bytes); });
  blocks.clear();
  std::deque<Words> buffers;
  for (std::size_t i = 0; i < shape.room; ++i) buffers.push_back(zeros(manager, device, shape.slice_bytes));
  auto const kernel = add_one();
  for (bool const first : {true, false}) {
    auto const began = Clock::now();
    for (auto& buffer : buffers) launch(kernel, Range{buffer.size()}, readwrite(buffer)).wait();
    if (!first) rates.use = seconds_since(began) / static_cast<double>(shape.room);
  }
  return rates;
}

struct Run {
  double bytes = 0, seconds = 0;
};

Run run(Device& device, Shape const& shape, Uses const& uses) {
  MemoryManager manager;
  manager.set_limit(device, shape.room * shape.slice_bytes);
  auto array = zeros(manager, device, shape.slices * shape.slice_bytes);
  auto const words = shape.slice_bytes / sizeof(std::uint32_t);
  auto const kernel = add_one();
  // The device's pages are touched before.
  for (std::size_t i = 0; i < shape.room; ++i) array.slice(i * words, words).sync_to_device();
  array.release_device();
  auto const before = device.transfers();
  auto const began = Clock::now();
  for (auto const i : uses) launch(kernel, Range{words}, readwrite(array.slice(i * words, words)));
  array.sync_to_host();
  auto const took = seconds_since(began);
  auto const moved = device.transfers().since(before);

  std::vector<std::uint32_t> times(shape.slices);
  for (auto const i : uses) ++times[i];
  auto const view = array.host_view();
  for (std::size_t i = 0; i < view.size(); ++i) {
    if (view[i] != times[i / words]) throw std::runtime_error(fmt::format("word {} is {}", i, view[i]));
  }
  return {static_cast<double>(moved.host_to_device_bytes + moved.device_to_host_bytes), took};
}

/// Everything is written, so each slice that comes goes back.
void compare(Device& device, Shape const& shape, char const* name, Uses const& uses, double most_bytes,
             double most_time) {
  auto const slice = static_cast<double>(shape.slice_bytes);
  auto const best = 2.0 * static_cast<double>(optimal_loads(uses, shape.room)) * slice;
  std::vector<double> bytes, times;
  for (int round = 0; round < 3; ++round) {
    auto const rates = measure(device, shape);
    auto const got = run(device, shape, uses);
    bytes.push_back(got.bytes / best);
    auto const least = got.bytes / 2 / slice * (rates.up + rates.down) + static_cast<double>(uses.size()) * rates.use;
    times.push_back(got.seconds / least);
  }
  std::ranges::sort(bytes);
  std::ranges::sort(times);
  fmt::print("  {}: {} by slices of {}, room for {}; optimal {:.3f} GB; medians of three\n", name,
             format_size(shape.slices * shape.slice_bytes), format_size(shape.slice_bytes), shape.room, best * 1e-9);
  verdict("bytes moved / optimal", bytes[1], most_bytes);
  verdict("wall time / (copies and uses, one after the other)", times[1], most_time);
}

void report(Device& device, bool quick) {
  constexpr std::size_t mib = std::size_t{1} << 20;
  fmt::print("{}: every use reads and writes all of one slice\n", device.id());
  auto const large = quick ? 4 * mib : 64 * mib;
  compare(device, {large, 64, 4}, "a pass", loop(64, 1), 1, 1.1);
  auto const small = quick ? mib : 8 * mib;
  compare(device, {small, 64, 32}, "a loop over twice the memory", loop(64, quick ? 4 : 8), 1.15, 1.15);
}

}  // namespace

int main(int argc, char** argv) {
  return unimem::bench::report_on_devices(argc, argv, report);
}
