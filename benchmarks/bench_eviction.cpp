// What running out of device memory costs: a working set twice as large as the device, in an order that can be
// foreseen and in one that cannot, beside the best that anybody who knows the future could do and beside what the usual
// rule, the least recently used goes first, would have done with the same uses. Bytes are those the device counted.
//
//     bench_eviction [--quick] [--device ID]     on ID (default: a simulated one with a link of 12 GB/s, and opencl:0
//     if there is one)

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/size.hpp>
#include <unimem/kernel/launch.hpp>

#include "crowded_device.hpp"
#include "manager/use_patterns.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace unimem;
using bench::add_one;
using bench::verdict;
using Clock = std::chrono::steady_clock;

constexpr std::size_t count = 256;       // buffers of one size
constexpr std::size_t room = count / 2;  // of them fit the device
std::size_t buffer_bytes = std::size_t{1} << 20;

/// Which buffer is used, one use after the other; each reads and writes all of it.
struct Pattern {
  std::string name;
  Uses uses;
};

struct Run {
  std::uint64_t bytes = 0, uploads = 0, downloads = 0;
  double seconds = 0;
};

std::deque<UnifiedBuffer<std::uint32_t>> zeroed_buffers(MemoryManager& manager, Device& device, std::size_t how_many) {
  BufferOptions options;
  options.manager = &manager;
  options.device = &device;
  std::deque<UnifiedBuffer<std::uint32_t>> buffers;
  for (std::size_t i = 0; i < how_many; ++i) {
    buffers.emplace_back(buffer_bytes / sizeof(std::uint32_t), options).fill(0);
  }
  return buffers;
}

Run run(Device& device, Pattern const& pattern) {
  MemoryManager manager;
  auto buffers = zeroed_buffers(manager, device, count);
  manager.set_limit(device, room * buffer_bytes);
  // Memory that nobody has touched costs page faults, once: that is not what is measured here.
  for (std::size_t i = 0; i < room; ++i) buffers[i].sync_to_device();
  for (auto& buffer : buffers) buffer.reset().fill(0);
  auto const kernel = add_one();
  auto const before = device.transfers();
  auto const began = Clock::now();
  for (auto const what : pattern.uses) launch(kernel, Range{buffers[what].size()}, readwrite(buffers[what]));
  for (auto& buffer : buffers) buffer.sync_to_host();
  std::chrono::duration<double> const took = Clock::now() - began;
  auto const moved = device.transfers().since(before);

  std::vector<std::uint32_t> times(count);
  for (auto const what : pattern.uses) ++times[what];
  for (std::size_t i = 0; i < count; ++i) {
    for (auto const word : buffers[i].host_view()) {
      if (word != times[i]) throw std::runtime_error(fmt::format("buffer {} holds {}, not {}", i, word, times[i]));
    }
  }
  return {moved.host_to_device_bytes + moved.device_to_host_bytes, moved.host_to_device_copies,
          moved.device_to_host_copies, took.count()};
}

/// Seconds for one buffer each way and for one use: medians over as many buffers as the device has room for, so that
/// none is still in the processor's cache when its turn comes, after one round for the page faults of fresh memory.
struct Rates {
  double up = 0, down = 0, use = 0;
};

Rates measure(Device& device) {
  MemoryManager manager;
  auto buffers = zeroed_buffers(manager, device, room);
  auto const kernel = add_one();
  auto const median_time = [&](auto const& work) {
    std::vector<double> times;
    for (auto& buffer : buffers) {
      auto const began = Clock::now();
      work(buffer);
      times.push_back(std::chrono::duration<double>(Clock::now() - began).count());
    }
    std::ranges::sort(times);
    return times[times.size() / 2];
  };
  Rates rates;
  for (int round = 0; round < 3; ++round) {
    rates.up = median_time([](auto& buffer) { buffer.sync_to_device(); });
    rates.use = median_time([&](auto& buffer) { launch(kernel, Range{buffer.size()}, readwrite(buffer)).wait(); });
    rates.down = median_time([](auto& buffer) { buffer.sync_to_host(); });
    for (auto& buffer : buffers) buffer.mark_host_dirty();
  }
  return rates;
}

void report(Device& device, bool quick) {
  auto const size = format_size(buffer_bytes);
  fmt::print("{}: {} buffers of {}, room for {}; every use reads and writes all of one\n", device.id(), count, size,
             room);
  auto const rates = measure(device);
  auto const per_byte = static_cast<double>(buffer_bytes);
  fmt::print("  one buffer up {:.2f} GB/s, down {:.2f} GB/s, used {:.0f} us\n", per_byte / rates.up * 1e-9,
             per_byte / rates.down * 1e-9, rates.use * 1e6);
  std::vector<Pattern> patterns{{"a loop that fits", loop(room, 8)}, {"a loop over all", loop(count, quick ? 4 : 8)}};
  for (auto const seed : {1U, 2U, 3U}) {
    constexpr std::size_t length = 30'000;
    patterns.push_back({fmt::format("Zipf(1.0), {} uses, seed {}", length, seed), zipf(count, length, seed)});
  }
  for (auto const& pattern : patterns) {
    auto const got = run(device, pattern);
    auto const in_bytes = [&](std::size_t brought) { return 2.0 * static_cast<double>(brought) * per_byte; };
    // Everything is written, so each load but those that stay to the end is followed by a write-back, there or when the
    // host reads at last.
    auto const best = in_bytes(optimal_loads(pattern.uses, room));
    auto const usual = in_bytes(least_recent_loads(pattern.uses, room));
    auto const bytes = static_cast<double>(got.bytes);
    fmt::print("  {}: {:.3f} GB in {} loads and {} write-backs; optimal {:.3f} GB, least recently used {:.3f} GB\n",
               pattern.name, bytes * 1e-9, got.uploads, got.downloads, best * 1e-9, usual * 1e-9);
    if (pattern.name == "a loop that fits") verdict("bytes moved / one load and one write-back each", bytes / best, 1);
    if (pattern.name == "a loop over all") verdict("bytes moved / optimal", bytes / best, 1.15);
    if (pattern.name.starts_with("Zipf")) verdict("bytes moved / least recently used", bytes / usual, 0.8);
    auto const least = static_cast<double>(got.uploads) * rates.up + static_cast<double>(got.downloads) * rates.down +
                       static_cast<double>(pattern.uses.size()) * rates.use;
    verdict("wall time / (copies and uses, one after the other)", got.seconds / least, 1.15);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return bench::report_on_devices(argc, argv, [](Device& device, bool quick) {
    if (quick) buffer_bytes = std::size_t{256} << 10;
    report(device, quick);
  });
}
