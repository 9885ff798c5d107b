// What coherence costs: questions where nothing has to move, and copies against the same copies made by hand on the
// same queue. Medians of alternating pairs in one run.
//
//     bench_coherence [--quick] [--device ID]      the copies on ID (default sim:memory=4GiB and opencl:0 if there is
//     one)

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/size.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/launch.hpp>

#include "device/idle_device.hpp"
#include "device/page_watch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace {

using namespace unimem;
using Clock = std::chrono::steady_clock;

int rounds = 15;

double seconds_of(std::function<void()> const& work) {
  auto const begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Spread {
  double low, median, high;
};

Spread spread(std::vector<double> values) {
  std::ranges::sort(values);
  return {values[values.size() / 4], values[values.size() / 2], values[values.size() * 3 / 4]};
}

void print_verdict(std::string const& what, double value, char const* unit, double target) {
  fmt::print("  {:<66} {:9.2f} {:<3} target ≤ {:g}: {}\n", what, value, unit, target,
             value <= target ? "met" : "MISSED");
}

/// Nanoseconds of one call of many.
double per_call(int calls, std::function<void(int)> const& loop) {
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) times.push_back(seconds_of([&] { loop(calls); }) / calls * 1e9);
  return median(times);
}

void bench_questions() {
  auto& sim = make_sim();
  UnifiedBuffer<float> buffer(1'000, BufferOptions{.device = &sim});
  buffer.fill(1.0F);
  buffer.synchronize();
  [[maybe_unused]] static volatile std::uint64_t sink = 0;
  constexpr int calls = 1'000'000;
  fmt::print("\nnothing to do (a synchronized buffer of 1,000 floats)\n");
  print_verdict("state()",
                per_call(calls,
                         [&](int n) {
                           std::uint64_t sum = 0;
                           for (int i = 0; i < n; ++i) sum += static_cast<std::uint64_t>(buffer.state());
                           sink = sum;
                         }),
                "ns", 2);
  print_verdict("host_view()[0]",
                per_call(calls,
                         [&](int n) {
                           float sum = 0;
                           for (int i = 0; i < n; ++i) sum += buffer.host_view()[0];
                           sink = static_cast<std::uint64_t>(sum);
                         }),
                "ns", 5);
  print_verdict("sync_to_host()",
                per_call(calls,
                         [&](int n) {
                           for (int i = 0; i < n; ++i) buffer.sync_to_host();
                         }),
                "ns", 5);
  print_verdict("sync_to_device()",
                per_call(calls / 4,
                         [&](int n) {
                           for (int i = 0; i < n; ++i) buffer.sync_to_device();
                         }),
                "ns", 5);
  print_verdict("device_view(queue), taken and let go",
                per_call(calls / 4,
                         [&](int n) {
                           auto& queue = sim.default_queue();
                           std::uint64_t sum = 0;
                           for (int i = 0; i < n; ++i) sum += buffer.device_view(queue).size();
                           sink = sum;
                         }),
                "ns", 25);
}

void bench_launch() {
  static auto& idle = *new testing::IdleDevice;  // devices live as long as the process
  BufferOptions const options{.device = &idle};
  UnifiedBuffer<float> a(1'000, options), b(1'000, options), c(1'000, options);
  a.fill(1);
  b.fill(1);
  auto const kernel =
      Kernel("nothing").host([](WorkItem, std::span<const float>, std::span<const float>, std::span<float>) {});
  auto& queue = idle.default_queue();
  auto const program = kernel.program(idle);
  std::vector<KernelArgument> arguments(3);
  constexpr int calls = 100'000;
  std::vector<double> raw, ours;
  for (int round = 0; round < rounds; ++round) {
    raw.push_back(seconds_of([&] {
                    for (int i = 0; i < calls; ++i) queue.run(program, Range{1'000}, arguments);
                  }) /
                  calls * 1e9);
    ours.push_back(seconds_of([&] {
                     for (int i = 0; i < calls; ++i) launch(queue, kernel, Range{1'000}, read(a), read(b), write(c));
                   }) /
                   calls * 1e9);
  }
  fmt::print("\na launch on three buffers, on a device that does nothing: {:.0f} ns, its queue alone {:.0f} ns\n",
             median(ours), median(raw));
  print_verdict("what launch adds", median(ours) - median(raw), "ns", 1000);
}

/// Pairs of the same copies, by hand and by a buffer, in turn.
void bench_copies(Device& device, std::size_t largest) {
  fmt::print("\n{}: the same bytes moved by a buffer and by hand on the same queue\n", device.id());
  auto& queue = device.default_queue();
  for (auto const bytes : {std::size_t{64} << 20, std::size_t{256} << 20}) {
    if (bytes > largest) continue;
    UnifiedBuffer<std::byte> buffer(bytes, BufferOptions{.device = &device});
    buffer.fill(std::byte{1});
    buffer.synchronize();
    auto const by_hand = device.allocate(bytes, Location::device);
    std::vector<std::byte> host(bytes, std::byte{2});
    queue.upload(by_hand, host.data(), bytes).wait();
    std::vector<double> ratios;
    for (int round = 0; round < rounds; ++round) {
      buffer.mark_host_dirty();
      auto const ours = seconds_of([&] { buffer.sync_to_device(); });
      auto const raw = seconds_of([&] { queue.upload(by_hand, host.data(), bytes).wait(); });
      ratios.push_back(raw / ours);
    }
    auto const [low, middle, high] = spread(ratios);
    fmt::print("  {:<66} {:9.2f}     target ≥ 0.97: {} (quartiles {:.2f} to {:.2f})\n",
               fmt::format("sync of {}: its rate / the raw copy's", format_size(bytes)), middle,
               middle >= 0.97 ? "met" : "MISSED", low, high);
    device.release(by_hand, Location::device);
  }
  {
    auto const bytes = largest;
    constexpr std::size_t change = std::size_t{1} << 20;
    UnifiedBuffer<std::byte> buffer(bytes, BufferOptions{.device = &device});
    buffer.fill(std::byte{1});
    buffer.synchronize();
    // By hand it is a window of as large a block: one alone would stay in a cache.
    auto const by_hand = device.allocate(bytes, Location::device);
    std::vector<std::byte> host(bytes, std::byte{2});
    queue.upload(by_hand, host.data(), bytes).wait();
    std::vector<double> ratios;
    for (int round = 0; round < 4 * rounds; ++round) {
      auto const offset = bytes / 64 * (static_cast<std::size_t>(round) % 64);
      std::memset(buffer.host(offset, change).data(), round, change);
      auto const ours = seconds_of([&] { buffer.sync_to_device(); });
      std::memset(host.data() + offset, round, change);
      auto const raw =
          seconds_of([&] { queue.upload(by_hand.window(offset, change), host.data() + offset, change).wait(); });
      ratios.push_back(ours / raw);
    }
    device.release(by_hand, Location::device);
    auto const [low, middle, high] = spread(ratios);
    print_verdict(fmt::format("upload of a 1 MiB change in {} / raw copy of 1 MiB", format_size(bytes)), middle, "",
                  1.3);
    fmt::print("  {:<66} {:.2f} to {:.2f}\n", "  quartiles", low, high);
  }
}

void bench_pages(std::size_t bytes) {
  if (auto const reason = detail::PageWatch::reason_unavailable(); !reason.empty()) {
    fmt::print("\nno page tracking here: {}\n", reason);
    return;
  }
  auto& sim = make_sim({.memory_bytes = std::size_t{4} << 30});
  auto const page = detail::PageWatch::page_bytes();
  BufferOptions options{.device = &sim};
  options.tracking = Tracking::pages;
  UnifiedBuffer<std::byte> tracked(bytes, options);
  tracked.fill(std::byte{1});
  tracked.synchronize();
  auto const h = tracked.host();
  std::vector<double> first, again, sync_clean, state;
  constexpr std::size_t pages = 1'000;
  for (int round = 0; round < rounds; ++round) {
    auto const touch = [&] {
      for (std::size_t i = 0; i < pages; ++i) h[i * page] = std::byte{7};
    };
    first.push_back(seconds_of(touch) / pages * 1e9);
    again.push_back(seconds_of(touch) / pages * 1e9);
    tracked.sync_to_device();
    sync_clean.push_back(seconds_of([&] { tracked.sync_to_device(); }) * 1e6);
    state.push_back(seconds_of([&] { static_cast<void>(tracked.state()); }) * 1e6);
  }
  fmt::print("\npage tracking, {} in pages of {}\n", format_size(bytes), format_size(page));
  fmt::print(
      "  first write to a page {:.0f} ns, further writes {:.1f} ns; a sync with nothing written {:.0f} us, state() "
      "{:.0f} us\n",
      median(first), median(again), median(sync_clean), median(state));
}

}  // namespace

int main(int argument_count, char** arguments) {
  try {
    std::vector<std::string> ids;
    std::size_t largest = std::size_t{1} << 30;
    for (int i = 1; i < argument_count; ++i) {
      std::string_view const argument = arguments[i];
      if (argument == "--quick") {
        largest = std::size_t{64} << 20;
        rounds = 5;
      } else if (argument == "--device" && i + 1 < argument_count) {
        ids.emplace_back(arguments[++i]);
      } else {
        fmt::print(stderr, "bench_coherence [--quick] [--device ID]...\n");
        return 2;
      }
    }
    if (ids.empty()) {
      ids.emplace_back("sim:memory=4GiB");
      for (Device& found : devices()) {
        if (found.id() == "opencl:0") ids.emplace_back(found.id());
      }
    }
    bench_questions();
    bench_launch();
    for (auto const& id : ids) bench_copies(device(id), largest);
    bench_pages(largest);
  } catch (std::exception const& error) {
    fmt::print(stderr, "bench_coherence: {}\n", error.what());
    return 1;
  }
  return 0;
}
