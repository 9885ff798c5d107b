// What UNIMEM_CHECK costs: the same work without it and at each level, every level in processes of its own, which take
// turns. Medians, as ratios against the processes without it.
//
//     bench_checking [--quick] [--instructions]      --instructions: of a launch and of a host read, at this process's
//     own level and nothing else

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/launch.hpp>

#include "core/instruction_count.hpp"
#include "device/idle_device.hpp"
#include "spread.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace unimem;
using Clock = std::chrono::steady_clock;

constexpr std::array<char const*, 5> works{
    "a launch on three buffers of 4 kB on sim, and its end", "host_view() of a buffer that is current",
    "a launch over 64 MiB on the cpu, and its end", "copy_from and copy_to of 64 MiB",
    "64 KiB to sim by a launch, and read back"};

template <class Work>
double seconds_of(int times, Work const& work) {
  work();  // memory comes, programs are made
  auto const begin = Clock::now();
  for (int i = 0; i < times; ++i) work();
  return std::chrono::duration<double>(Clock::now() - begin).count() / times;
}

/// Three buffers on a device, and a launch on them that does nothing.
class EmptyLaunch {
 public:
  explicit EmptyLaunch(Device& device) : device_(device) {
    for (auto* const buffer : {&a_, &b_, &c_}) buffer->fill(1);
  }
  Event operator()() {
    return launch(device_.default_queue(), kernel_, Range{1'000}, read(a_), read(b_), readwrite(c_));
  }
  void look() { static_cast<void>(*const_cast<float const volatile*>(&a_.host_view()[0])); }

 private:
  static constexpr auto nothing = [](WorkItem, std::span<const float>, std::span<const float>, std::span<float>) {};
  Kernel kernel_ = Kernel("nothing").host(nothing);
  Device& device_;
  UnifiedBuffer<float> a_{1'000, BufferOptions{.device = &device_}}, b_{1'000, BufferOptions{.device = &device_}},
      c_{1'000, BufferOptions{.device = &device_}};
};

/// In a process of one level: a line for each work, in seconds.
void measure() {
  EmptyLaunch empty(make_sim());
  fmt::print("{}\n", seconds_of(2'000, [&] { empty().wait(); }));
  fmt::print("{}\n", seconds_of(100'000, [&] { empty.look(); }));

  constexpr std::size_t large = (std::size_t{64} << 20) / sizeof(float);
  auto const adding = Kernel("adding").host([](WorkItem i, std::span<float> x) { x[i.x] += 1; });
  {
    auto& cpu = device("cpu");
    UnifiedBuffer<float> buffer(large, BufferOptions{.device = &cpu});
    buffer.fill(1);
    fmt::print("{}\n",
               seconds_of(3, [&] { launch(cpu.default_queue(), adding, Range{large}, readwrite(buffer)).wait(); }));
    std::vector<float> data(large, 1);
    fmt::print("{}\n", seconds_of(3, [&] {
                 buffer.copy_from(data);
                 buffer.copy_to(data);
               }));
  }
  auto& sim = make_sim();
  UnifiedBuffer<float> small(16'384, BufferOptions{.device = &sim});
  small.fill(1);
  fmt::print("{}\n", seconds_of(50, [&] {
               launch(sim.default_queue(), adding, Range{small.size()}, readwrite(small)).wait();
               static_cast<void>(*const_cast<float const volatile*>(&small.host()[0]));
             }));
}

std::vector<double> measured_at(std::string const& self, int level) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> const lines(
      popen(fmt::format("UNIMEM_CHECK={} '{}' --measure", level, self).c_str(), "r"), pclose);
  if (!lines) throw std::runtime_error("no process could be started");
  std::vector<double> seconds;
  for (double value = 0; std::fscanf(lines.get(), "%lf", &value) == 1;) seconds.push_back(value);
  if (seconds.size() != works.size()) throw std::runtime_error("a process at one level has failed");
  return seconds;
}

void compare(std::string const& self, int rounds) {
  std::array<std::array<std::vector<double>, works.size()>, 3> seconds;
  for (int round = 0; round < rounds; ++round) {
    for (int level = 0; level < 3; ++level) {
      auto const here = measured_at(self, level);
      for (std::size_t i = 0; i < works.size(); ++i) seconds[static_cast<std::size_t>(level)][i].push_back(here[i]);
    }
  }
  fmt::print("what UNIMEM_CHECK costs (medians of {} rounds; × without it)\n", rounds);
  fmt::print("  {:<66} {:>12} {:>8} {:>8}\n", "", "without", "=1", "=2");
  for (std::size_t i = 0; i < works.size(); ++i) {
    auto const base = bench::spread(seconds[0][i]).median;
    fmt::print("  {:<66} {:>9.3f} µs {:>8.2f} {:>8.2f}\n", works[i], base * 1e6,
               bench::spread(seconds[1][i]).median / base, bench::spread(seconds[2][i]).median / base);
  }
}

void count_instructions() {
  EmptyLaunch empty(*new testing::IdleDevice);  // devices live as long as the process
  for (int i = 0; i < 100; ++i) empty();
  for (int i = 0; i < 3; ++i) {
    auto const launched = testing::InstructionCounter::count([&] { empty(); });
    auto const looked = testing::InstructionCounter::count([&] { empty.look(); });
    if (!launched || !looked) return fmt::print("instructions cannot be counted here\n");
    fmt::print("instructions: a launch {}, host_view()[0] {}\n", *launched, *looked);
  }
}

}  // namespace

int main(int argument_count, char** arguments) {
  try {
    int rounds = 9;
    for (int i = 1; i < argument_count; ++i) {
      std::string_view const argument = arguments[i];
      if (argument == "--measure") {
        measure();
        return 0;
      }
      if (argument == "--instructions") {
        count_instructions();
        return 0;
      }
      if (argument != "--quick") {
        fmt::print(stderr, "bench_checking [--quick] [--instructions]\n");
        return 2;
      }
      rounds = 3;
    }
    std::array<char, 4096> path{};
    auto const length = readlink("/proc/self/exe", path.data(), path.size());
    if (length <= 0) throw std::runtime_error("/proc/self/exe cannot be read");
    compare({path.data(), static_cast<std::size_t>(length)}, rounds);
  } catch (std::exception const& error) {
    fmt::print(stderr, "bench_checking: {}\n", error.what());
    return 1;
  }
  return 0;
}
