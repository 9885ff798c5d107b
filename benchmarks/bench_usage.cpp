// What it costs to know who has what: a warm block of a pool with and without its entry on the book, a whole buffer,
// and a million that live: the memory each takes, and a picture of them. The least of many short rounds, since nothing
// makes a round shorter than it is.
//
//     bench_usage [--quick] [--device ID]     a tenth of the million; the host's memory, whatever the device

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "manager/usage_book.hpp"

#include <fmt/format.h>

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string_view>
#include <vector>

namespace {

using namespace unimem;
using Clock = std::chrono::steady_clock;

constexpr std::size_t block = 4096;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Nanoseconds of one call.
template <class Call>
double least(int calls, Call const& call) {
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 300; ++round) {
    auto const begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    best = std::min(best, seconds_since(begin) * 1e9 / calls);
  }
  return best;
}

void print_verdict(std::string_view what, double value, char const* unit, double target) {
  fmt::print("  {:<66} {:9.2f} {:<3} target ≤ {:g}: {}\n", what, value, unit, target,
             value <= target ? "met" : "MISSED");
}

void pairs(MemoryManager& manager, BufferOptions const& options) {
  auto& cpu = device("cpu");
  auto& pool = manager.pool(cpu, Location::host);
  Name const name("benchmark");
  detail::UsageKey const key{&cpu, Location::host, name};
  auto const bare = least(3000, [&] { auto const taken = pool.acquire(block); });
  auto const both = least(3000, [&] {
    auto const taken = pool.acquire(block, {.name = name});
    detail::UsageEntry entry;
    manager.usage_book().enter(entry, key, block, 1);
  });
  auto const buffer = least(300, [&] {
    UnifiedBuffer<std::byte> made(block, options);
    made.allocate(true, false);
  });
  fmt::print("a warm block of {} bytes, taken and given back\n", block);
  fmt::print("  {:<66} {:9.2f} ns\n", "by the pool alone", bare);
  print_verdict("its entry on the book, beyond that", both - bare, "ns", 25);
  print_verdict("a named UnifiedBuffer with host memory, beyond that", buffer - bare, "ns", 25);
}

/// The process's memory: what is resident, and what of it was asked of malloc.
struct Footprint {
  double resident = 0;
  double allocated = 0;

  static Footprint now() {
    std::ifstream file("/proc/self/statm");
    std::uint64_t pages = 0, resident = 0;
    file >> pages >> resident;
    auto const heap = ::mallinfo2();
    return {static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE)),
            static_cast<double>(heap.uordblks) + static_cast<double>(heap.hblkhd)};
  }
};

void picture(MemoryManager& manager, BufferOptions const& options, std::size_t count) {
  std::vector<UnifiedBuffer<std::byte>> live;
  live.reserve(count);
  auto const before = Footprint::now();
  auto const& pool = manager.pool(device("cpu"), Location::host);
  auto const reserved_before = pool.statistics().reserved_bytes;
  for (std::size_t i = 0; i < count; ++i) {
    live.emplace_back(64, options);
    live.back().host_overwrite()[0] = std::byte{1};  // memory that nobody touches is none
  }
  auto const after = Footprint::now();
  auto const reserved = static_cast<double>(pool.statistics().reserved_bytes - reserved_before);
  auto begin = Clock::now();
  auto const usage = manager.usage();
  auto const summed = seconds_since(begin);
  begin = Clock::now();
  auto const list = manager.live();
  auto const listed = seconds_since(begin);
  auto const each = [&](double bytes) { return bytes / static_cast<double>(count); };
  fmt::print("{} buffers of 64 bytes that live (an entry is {} bytes)\n", count, sizeof(detail::UsageEntry));
  // The handles' room was asked for before, and became resident since.
  fmt::print("  {:<66} {:9.0f} B\n", "resident memory for each, its bytes and its handle included",
             each(after.resident - before.resident));
  fmt::print("  {:<66} {:9.0f} B\n", "of that from malloc, without the handle",
             each(after.allocated - before.allocated));
  fmt::print("  {:<66} {:9.0f} B\n", "reserved by the pool for its bytes", each(reserved));
  print_verdict(fmt::format("summed up: {} of them", usage.total.live()), summed, "s", 1);
  print_verdict(fmt::format("listed: {} of them", list.size()), listed, "s", 1);
}

}  // namespace

int main(int count, char** arguments) {
  bool quick = false;
  for (int i = 1; i < count; ++i) quick = quick || std::string_view(arguments[i]) == "--quick";
  MemoryManager manager;
  BufferOptions options;
  options.manager = &manager;
  options.device = &device("cpu");
  options.name = "benchmark";
  pairs(manager, options);
  picture(manager, options, quick ? 100'000 : 1'000'000);
}
