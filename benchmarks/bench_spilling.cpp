// What it costs to evict host memory to a file and to read it back, beside dd with large blocks on the same file
// system. dd copies the same words out of as much memory, and before either begins a file as large is written and
// removed: memory that the system has to find for its cache of a file first may cost more than the file, on a virtual
// machine whose host has taken back what was free.
//
//     bench_spilling [--quick] [--folder PATH]     where the files go (default: the folder for temporary files)

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/size.hpp>
#include <unimem/device/discovery.hpp>

#include <fmt/format.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using unimem::BufferOptions;
using unimem::device;
using unimem::format_size;
using unimem::Location;
using unimem::MapMode;
using unimem::MemoryManager;
using unimem::UnifiedBuffer;
using Clock = std::chrono::steady_clock;

template <class Work>
double seconds_of(Work const& work) {
  auto const began = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - began).count();
}

void dd(std::string const& arguments) {
  auto const command = "dd status=none bs=64M " + arguments;
  if (std::system(command.c_str()) != 0) throw std::runtime_error(command + " failed");
}

/// Has the system find memory for a file of that size.
void make_ready(std::size_t bytes, std::string const& folder) {
  auto const path = folder + fmt::format("/bench_spilling-{}", Clock::now().time_since_epoch().count());
  dd(fmt::format("if=/dev/zero of={} count={} iflag=fullblock", path, bytes >> 26U));
  std::filesystem::remove(path);
}

struct Times {
  std::vector<double> write, read, dd_write, dd_read, clean;
};

double median(std::vector<double> times) {
  std::ranges::sort(times);
  return times[times.size() / 2];
}

void verdict(char const* what, double value, char const* sign, double target) {
  bool const met = *sign == '<' ? value <= target : value >= target;
  fmt::print("    {:<72} {:6.3f}  target {} {:g}: {}\n", what, value, *sign == '<' ? "≤" : "≥", target,
             met ? "met" : "MISSED");
}

void measure(Times& times, std::size_t bytes, std::string const& folder) {
  MemoryManager manager({.spill = {.directory = folder, .min_bytes = 1}});
  BufferOptions options;
  options.manager = &manager;
  UnifiedBuffer<std::uint32_t> buffer(bytes / sizeof(std::uint32_t), options);
  {
    auto mapped = buffer.map(MapMode::discard);
    std::iota(mapped.begin(), mapped.end(), 0U);
  }
  auto& host = device("cpu");
  auto const evict = [&] {
    if (buffer.core().evict({&host, Location::host}, {}) == 0) throw std::runtime_error("nothing was evicted");
  };
  auto const bring = [&] { static_cast<void>(buffer.map(MapMode::read)); };
  make_ready(bytes, folder);
  times.write.push_back(seconds_of(evict));
  times.read.push_back(seconds_of(bring));
  times.clean.push_back(seconds_of(evict));
  auto const moved = manager.statistics();
  if (moved.spilled_bytes != bytes || moved.restored_bytes != bytes) {
    throw std::runtime_error(fmt::format("{} bytes written, {} read", moved.spilled_bytes, moved.restored_bytes));
  }
  auto const mapped = buffer.map(MapMode::read);
  for (std::size_t i = 0; i < mapped.size(); ++i) {
    if (mapped[i] != static_cast<std::uint32_t>(i))
      throw std::runtime_error(fmt::format("word {} is {}", i, mapped[i]));
  }
}

/// Words that count up, in memory that programs it starts can open by its name.
class NamedMemory {
 public:
  explicit NamedMemory(std::size_t bytes) : bytes_(bytes), file_(::memfd_create("bench_spilling", 0)) {
    if (file_ < 0 || ::ftruncate(file_, static_cast<::off_t>(bytes)) != 0) {
      throw std::runtime_error("no memory of that size");
    }
    void* const mapped = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (mapped == MAP_FAILED) throw std::runtime_error("memory cannot be mapped");
    auto* const words = static_cast<std::uint32_t*>(mapped);
    std::iota(words, words + bytes_ / sizeof(std::uint32_t), 0U);
    ::munmap(mapped, bytes_);
  }
  NamedMemory(NamedMemory const&) = delete;
  NamedMemory& operator=(NamedMemory const&) = delete;
  ~NamedMemory() { ::close(file_); }
  [[nodiscard]] std::string name() const { return fmt::format("/proc/self/fd/{}", file_); }

 private:
  std::size_t bytes_;
  int file_;
};

void measure_dd(Times& times, std::size_t bytes, std::string const& folder) {
  auto const path = folder + fmt::format("/bench_spilling-{}", Clock::now().time_since_epoch().count());
  NamedMemory const words(bytes);
  make_ready(bytes, folder);
  times.dd_write.push_back(seconds_of([&] { dd(fmt::format("if={} of={} conv=fdatasync", words.name(), path)); }));
  times.dd_read.push_back(seconds_of([&] { dd(fmt::format("if={} of=/dev/null", path)); }));
  std::filesystem::remove(path);
}

}  // namespace

int main(int argc, char** argv) try {
  auto bytes = std::size_t{4} << 30U;
  std::string folder = std::filesystem::temp_directory_path().string();
  for (int i = 1; i < argc; ++i) {
    std::string const argument = argv[i];
    if (argument == "--quick") {
      bytes = std::size_t{256} << 20U;
    } else if (argument == "--folder" && i + 1 < argc) {
      folder = argv[++i];
    } else {
      fmt::print(stderr, "unknown argument '{}'\n", argument);
      return 2;
    }
  }
  Times times;
  for (int round = 0; round < 3; ++round) {
    measure(times, bytes, folder);
    measure_dd(times, bytes, folder);
  }
  auto const size = static_cast<double>(bytes);
  fmt::print("{} in {}, medians of three: evicted at {:.2f} GB/s, dd {:.2f}; read back at {:.2f} GB/s, dd {:.2f}\n",
             format_size(bytes), folder, size / median(times.write) * 1e-9, size / median(times.dd_write) * 1e-9,
             size / median(times.read) * 1e-9, size / median(times.dd_read) * 1e-9);
  verdict("rate of an eviction / that of dd, both synced", median(times.dd_write) / median(times.write), ">", 0.9);
  verdict("rate of reading back / that of dd", median(times.dd_read) / median(times.read), ">", 0.9);
  fmt::print("    an eviction of what is clean: {:.1f} ms\n", median(times.clean) * 1e3);
  return 0;
} catch (std::exception const& error) {
  fmt::print(stderr, "bench_spilling: {}\n", error.what());
  return 1;
}
