#pragma once

#include <unimem/core/size.hpp>

#include "core/instruction_count.hpp"
#include "host_allocators.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// What allocators are asked to do. Each workload runs in a process of its own that has one allocator and a second
// thread, and prints its figures one a line: a key and a number.

namespace unimem::bench {

inline constexpr std::array<std::size_t, 6> block_sizes{256, 4096, 65536, 1U << 20, 16U << 20, 256U << 20};

/// How long and how much.
struct Extent {
  double seconds = 0.01;  ///< of one measurement
  int repetitions = 3;    ///< of each, in one process
  std::size_t trace_operations = 1'000'000, trace_live = std::size_t{4} << 30;
  std::size_t touched_operations = 4'000, touched_live = std::size_t{1} << 30;

  [[nodiscard]] static Extent quick() { return {1e-4, 1, 5'000, std::size_t{64} << 20, 300, std::size_t{16} << 20}; }
};

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

inline void report(std::string const& key, double value) {
  fmt::print("{} {:.17g}\n", key, value);
  std::fflush(stdout);
}

/// A moment of waiting for another thread, which may need this very core.
class Patience {
 public:
  void wait() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    if (++tries_ % 256 == 0) std::this_thread::yield();
  }

 private:
  unsigned tries_ = 0;
};

/// Keeps the compiler from knowing what becomes of it.
template <class T>
inline void use(T& value) {
  asm volatile("" : : "r"(&value) : "memory");
}

template <class Allocator>
void check(Allocator const& allocator, typename Allocator::Block const& block) {
  if (allocator.address(block) == nullptr) throw std::bad_alloc();
}

/// How many times `work(count)` goes in the time of one measurement, found by doing it.
template <class Work>
std::size_t calls_within(double seconds, Work work) {
  for (std::size_t count = 64;; count *= 2) {
    auto const begin = Clock::now();
    work(count);
    auto const taken = seconds_since(begin);
    if (taken >= seconds / 4)
      return std::max<std::size_t>(64, static_cast<std::size_t>(static_cast<double>(count) * seconds / taken));
  }
}

template <class Allocator>
void take_and_give(Allocator& allocator, std::size_t bytes, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    auto block = allocator.take(bytes);
    use(block);
    allocator.give(block, bytes);
  }
}

/// Calls `measure(bytes)` for every size, leaving out those that there is no memory for.
template <class Measure>
void for_each_size(std::span<std::size_t const> sizes, Measure measure) {
  for (auto const bytes : sizes) {
    try {
      measure(bytes);
    } catch (std::bad_alloc const&) {  // a cell of the table stays empty
    }
  }
}

/// A block taken and given back at once: nanoseconds of a pair.
template <class Allocator>
void measure_pairs(Allocator& allocator, Extent const& extent) {
  for_each_size(block_sizes, [&](std::size_t bytes) {
    auto first = allocator.take(bytes);
    check(allocator, first);
    allocator.give(first, bytes);
    auto const work = [&](std::size_t count) { take_and_give(allocator, bytes, count); };
    auto const count = calls_within(extent.seconds, work);
    for (int i = 0; i < extent.repetitions; ++i) {
      auto const begin = Clock::now();
      work(count);
      report(fmt::format("pair/{}", bytes), seconds_since(begin) / static_cast<double>(count) * 1e9);
    }
  });
}

/// The instructions of a warm pair.
template <class Allocator>
void measure_instructions(Allocator& allocator, Extent const& /*extent*/) {
  for_each_size(block_sizes, [&](std::size_t bytes) {
    for (int i = 0; i < 100; ++i) take_and_give(allocator, bytes, 1);
    auto const counted = testing::InstructionCounter::count([&] { take_and_give(allocator, bytes, 1); });
    if (counted) report(fmt::format("instructions/{}", bytes), static_cast<double>(*counted));
  });
}

/// 64 blocks in use, of which the oldest is given back before another is taken.
template <class Allocator>
void measure_queue(Allocator& allocator, Extent const& extent) {
  constexpr std::size_t depth = 64;
  for_each_size(block_sizes, [&](std::size_t bytes) {
    std::array<typename Allocator::Block, depth> blocks{};
    std::size_t held = 0;
    auto const give_all = [&] {
      while (held > 0) allocator.give(blocks[--held], bytes);
    };
    try {
      for (auto& block : blocks) {
        block = allocator.take(bytes);
        check(allocator, block);
        ++held;
      }
    } catch (std::bad_alloc const&) {
      give_all();
      throw;
    }
    auto const work = [&](std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) {
        auto& block = blocks[i % depth];
        allocator.give(block, bytes);
        block = allocator.take(bytes);
        use(block);
      }
    };
    auto const count = calls_within(extent.seconds, work);
    for (int i = 0; i < extent.repetitions; ++i) {
      auto const begin = Clock::now();
      work(count);
      report(fmt::format("queue/{}", bytes), seconds_since(begin) / static_cast<double>(count) * 1e9);
    }
    give_all();
  });
}

/// The time that as many threads at once take for `work` each, from when the first begins until the last is done.
inline double seconds_on(std::size_t threads, std::function<void()> const& work) {
  struct alignas(64) Turn {
    Clock::time_point begin, end;
  };
  std::vector<Turn> turns(threads);
  {
    std::barrier together{static_cast<std::ptrdiff_t>(threads)};
    std::vector<std::jthread> running;
    for (auto& turn : turns) {
      running.emplace_back([&] {
        together.arrive_and_wait();
        turn.begin = Clock::now();
        work();
        turn.end = Clock::now();
      });
    }
  }
  auto const first = std::ranges::min(turns, {}, &Turn::begin).begin;
  auto const last = std::ranges::max(turns, {}, &Turn::end).end;
  return std::chrono::duration<double>(last - first).count();
}

/// How many times as much two threads do as one, over how many times as much they do of nothing.
template <class Allocator>
void measure_threads(Allocator& allocator, Extent const& extent) {
  auto const spin = [](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) asm volatile("" : : "r"(i));
  };
  auto const speed_up = [](std::function<void()> const& work) {
    auto const one = seconds_on(1, work);
    return 2 * one / seconds_on(2, work);
  };
  auto const seconds = 5 * extent.seconds;  // starting a second thread takes a while
  auto const spins = calls_within(seconds, spin);
  for_each_size(block_sizes, [&](std::size_t bytes) {
    auto first = allocator.take(bytes);
    check(allocator, first);
    allocator.give(first, bytes);
    auto const count = calls_within(seconds, [&](std::size_t n) { take_and_give(allocator, bytes, n); });
    for (int i = 0; i < extent.repetitions; ++i) {
      auto const of_nothing = speed_up([&] { spin(spins); });
      auto const of_pairs = speed_up([&] { take_and_give(allocator, bytes, count); });
      report(fmt::format("threads/{}", bytes), of_pairs / of_nothing);
      report("threads/empty", of_nothing);
    }
  });
}

/// Allocates nothing: what remains is the ring.
struct Nothing {
  using Block = void*;
  [[nodiscard]] Block take(std::size_t /*bytes*/) { return this; }
  void give(Block& block, std::size_t /*bytes*/) { use(block); }
};

/// One thread takes, another gives back what has come through a ring of so many places, without locks.
template <class Allocator>
void pass(Allocator& allocator, std::size_t bytes, std::size_t depth, std::size_t count) {
  struct alignas(64) Counter {
    std::atomic<std::size_t> value{0};
  };
  std::vector<typename Allocator::Block> ring(depth);
  auto const counters = std::make_unique<std::array<Counter, 2>>();
  auto& [taken, given] = *counters;
  std::jthread consumer([&] {
    Patience patience;
    for (std::size_t done = 0; done < count;) {
      auto const ready = taken.value.load(std::memory_order_acquire);
      if (ready == done) patience.wait();
      for (; done < ready; ++done) allocator.give(ring[done % depth], bytes);
      given.value.store(done, std::memory_order_release);
    }
  });
  Patience patience;
  std::size_t freed = 0;
  for (std::size_t i = 0; i < count; ++i) {
    while (i - freed == depth) {
      freed = given.value.load(std::memory_order_acquire);
      if (i - freed == depth) patience.wait();
    }
    ring[i % depth] = allocator.take(bytes);
    taken.value.store(i + 1, std::memory_order_release);
  }
}

/// The same: millions of pairs a second, and what the ring alone would let through at that moment.
template <class Allocator>
void measure_passing(Allocator& allocator, Extent const& extent) {
  for_each_size(block_sizes, [&](std::size_t bytes) {
    // Enough that neither waits for the other's every step, and not more than memory.
    auto const depth = std::clamp<std::size_t>((std::size_t{2} << 30) / bytes, 8, 256);
    auto first = allocator.take(bytes);
    check(allocator, first);
    allocator.give(first, bytes);
    auto const rate = [&](auto& of, std::size_t count) {
      auto const begin = Clock::now();
      pass(of, bytes, depth, count);
      return static_cast<double>(count) / seconds_since(begin) * 1e-6;
    };
    auto const count = calls_within(2 * extent.seconds, [&](std::size_t n) { pass(allocator, bytes, depth, n); });
    for (int i = 0; i < extent.repetitions; ++i) {
      Nothing nothing;
      report(fmt::format("ring/{}", bytes), rate(nothing, count));
      report(fmt::format("passing/{}", bytes), rate(allocator, count));
    }
  });
}

/// A line of /proc/self/status that counts kilobytes, in bytes.
inline double status_bytes(std::string const& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ':')) return 1024 * std::stod(line.substr(name.size() + 1));
  }
  throw std::runtime_error("/proc/self/status has no " + name);
}

struct TraceStep {
  std::uint32_t slot = 0;
  std::size_t bytes = 0;  ///< 0: give back
};

/// Takes and gives of log-uniform sizes from 256 B to 64 MiB, as many bytes live as are wished once they have been
/// reached. The same for all.
struct Trace {
  std::vector<TraceStep> steps;
  std::vector<std::size_t> sizes;  ///< of the slots, while it is played
  std::size_t peak_live = 0;

  Trace(std::size_t operations, std::size_t most_live) {
    std::mt19937_64 random{2026};
    std::uniform_real_distribution<double> exponent(std::log(256.0), std::log(64.0 * 1024 * 1024));
    auto const draw = [&] { return std::min(most_live, static_cast<std::size_t>(std::exp(exponent(random)))); };
    std::vector<std::pair<std::uint32_t, std::size_t>> live;
    std::vector<std::uint32_t> free_slots;
    std::uint32_t slots = 0;
    std::size_t bytes = 0;
    auto next = draw();
    while (steps.size() < operations) {
      if (bytes + next <= most_live) {
        auto slot = slots;
        if (free_slots.empty()) {
          ++slots;
        } else {
          slot = free_slots.back();
          free_slots.pop_back();
        }
        steps.push_back({slot, next});
        live.emplace_back(slot, next);
        bytes += next;
        peak_live = std::max(peak_live, bytes);
        next = draw();
      } else {
        auto& victim = live[random() % live.size()];
        steps.push_back({victim.first, 0});
        bytes -= victim.second;
        free_slots.push_back(victim.first);
        victim = live.back();
        live.pop_back();
      }
    }
    sizes.resize(slots);
  }
};

/// Plays part of a trace; `touch` writes a byte of every page.
template <bool touch, class Allocator>
void play(Allocator& allocator, Trace& trace, std::span<TraceStep const> steps,
          std::vector<typename Allocator::Block>& blocks) {
  for (auto const& [slot, bytes] : steps) {
    if (bytes == 0) {
      allocator.give(blocks[slot], std::exchange(trace.sizes[slot], 0));
      continue;
    }
    auto& block = blocks[slot];
    block = allocator.take(bytes);
    trace.sizes[slot] = bytes;
    if constexpr (touch) {
      auto* const data = static_cast<volatile char*>(allocator.address(block));
      for (std::size_t i = 0; i < bytes; i += 4096) data[i] = 1;
    }
  }
}

template <class Allocator>
void give_the_rest(Allocator& allocator, Trace& trace, std::vector<typename Allocator::Block>& blocks) {
  for (std::size_t slot = 0; slot < blocks.size(); ++slot) {
    if (trace.sizes[slot] != 0) allocator.give(blocks[slot], trace.sizes[slot]);
  }
}

/// The processor time this thread has had, the kernel's on its behalf included.
inline double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// A mixed trace, untouched: nanoseconds an operation, by the clock and of the processor alone, and the most reserved
/// over the most live. Ours reserves addresses ahead of the pages it takes, and its device counts those; of the others
/// the kernel's count of writable memory is all there is.
template <class Allocator>
void measure_mixed(Allocator& allocator, Extent const& extent) {
  Trace trace(extent.trace_operations, extent.trace_live);
  std::vector<typename Allocator::Block> blocks(trace.sizes.size());
  auto const before = status_bytes("VmData");
  auto most = before;
  double seconds = 0, processor = 0;
  constexpr std::size_t between_looks = 500;
  std::span<TraceStep const> rest = trace.steps;
  while (!rest.empty()) {
    auto const part = rest.first(std::min(between_looks, rest.size()));
    rest = rest.subspan(part.size());
    auto const processor_before = processor_seconds();
    auto const begin = Clock::now();
    play<false>(allocator, trace, part, blocks);
    seconds += seconds_since(begin);
    processor += processor_seconds() - processor_before;
    most = std::max(most, status_bytes("VmData"));
  }
  auto const writable = most - before;
  auto const live = static_cast<double>(trace.peak_live);
  auto const counted = allocator.peak_reserved();
  report("mixed/ns", seconds / static_cast<double>(trace.steps.size()) * 1e9);
  report("mixed/processor", processor / static_cast<double>(trace.steps.size()) * 1e9);
  report("mixed/reserved", (counted ? static_cast<double>(*counted) : writable) / live);
  report("mixed/writable", writable / live);
  give_the_rest(allocator, trace, blocks);
}

/// A shorter one with every page touched: the most resident over the most live.
template <class Allocator>
void measure_touched(Allocator& allocator, Extent const& extent) {
  Trace trace(extent.touched_operations, extent.touched_live);
  std::vector<typename Allocator::Block> blocks(trace.sizes.size());
  {
    std::ofstream("/proc/self/clear_refs") << 5;
  }  // the high-water mark begins anew
  auto const before = status_bytes("VmRSS");
  auto const begin = Clock::now();
  play<true>(allocator, trace, trace.steps, blocks);
  report("touched/seconds", seconds_since(begin));
  report("touched/resident", (status_bytes("VmHWM") - before) / static_cast<double>(trace.peak_live));
  give_the_rest(allocator, trace, blocks);
}

/// 64 MiB made and written whole, over the same in memory fresh from the system.
template <class Allocator>
void measure_first_write(Allocator& allocator, Extent const& extent) {
  constexpr std::size_t bytes = std::size_t{64} << 20;
  auto const ours = [&] {
    auto const begin = Clock::now();
    auto block = allocator.take(bytes);
    check(allocator, block);
    std::memset(allocator.address(block), 1, bytes);
    use(block);
    allocator.give(block, bytes);
    return seconds_since(begin);
  };
  auto const fresh = [] {
    auto const begin = Clock::now();
    auto* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    std::memset(memory, 1, bytes);
    use(*static_cast<char*>(memory));
    ::munmap(memory, bytes);
    return seconds_since(begin);
  };
  static_cast<void>(ours());
  for (int i = 0; i < extent.repetitions; ++i) {
    auto const taken = ours();
    report("write/ms", taken * 1e3);
    report("write/gain", fresh() / taken);
  }
}

inline constexpr std::array<std::string_view, 8> workloads{"pair",    "instructions", "queue",   "threads",
                                                           "passing", "mixed",        "touched", "write"};

template <class Allocator>
void measure(std::string_view workload, Allocator& allocator, Extent const& extent) {
  if (workload == "pair") return measure_pairs(allocator, extent);
  if (workload == "instructions") return measure_instructions(allocator, extent);
  if (workload == "queue") return measure_queue(allocator, extent);
  if (workload == "threads") return measure_threads(allocator, extent);
  if (workload == "passing") return measure_passing(allocator, extent);
  if (workload == "mixed") return measure_mixed(allocator, extent);
  if (workload == "touched") return measure_touched(allocator, extent);
  measure_first_write(allocator, extent);
}

}  // namespace unimem::bench
