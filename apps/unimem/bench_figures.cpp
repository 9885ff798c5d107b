#include "bench_figures.hpp"
#include "storage_location.hpp"

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/pool/memory_pool.hpp>
#include <unimem/stream/stream_file.hpp>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>

namespace unimem::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Buffer = UnifiedBuffer<std::uint32_t>;

constexpr std::size_t kibibyte = 1024, mebibyte = 1024 * kibibyte;
constexpr double nanoseconds = 1e9, microseconds = 1e6;

/// A file without a name, in memory: no disk is measured.
class MemoryFile {
 public:
  explicit MemoryFile(std::size_t bytes) : descriptor_(::memfd_create("unimem bench", MFD_CLOEXEC)) {
    if (descriptor_ < 0) throw IoError("a file in memory", errno, "cannot create");
    std::vector<std::uint8_t> piece(std::min(bytes, mebibyte));
    for (std::size_t i = 0; i < piece.size(); ++i) piece[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
    for (std::size_t done = 0; done < bytes;) {
      auto const written = ::write(descriptor_, piece.data(), std::min(piece.size(), bytes - done));
      if (written <= 0) {
        auto const why = errno;
        ::close(descriptor_);
        throw IoError("a file in memory", why, "cannot write");
      }
      done += static_cast<std::size_t>(written);
    }
  }
  MemoryFile(MemoryFile const&) = delete;
  MemoryFile& operator=(MemoryFile const&) = delete;
  ~MemoryFile() { ::close(descriptor_); }

  [[nodiscard]] std::string path() const { return fmt::format("/proc/self/fd/{}", descriptor_); }

 private:
  int descriptor_;
};

/// Reads and writes all of what it is given.
Kernel add_one() {
  return Kernel("add_one")
      .source(R"(UNIMEM_KERNEL add_one(UNIMEM_BUFFER(unimem_u32, x)) {
        UNIMEM_DATA(unimem_u32, x)[UNIMEM_ITEM_X] += 1;
      })")
      .host([](WorkItem item, std::span<std::uint32_t> x) { ++x[item.x]; });
}

class Bench {
 public:
  Bench(Device& device, bool quick) : device_(device), quick_(quick) {}

  void run(Benchmark benchmark) {
    benchmark_ = benchmark;
    switch (benchmark) {
      case Benchmark::allocation:
        return allocation();
      case Benchmark::transfer:
        return transfer();
      case Benchmark::coherence:
        return coherence();
      case Benchmark::launch:
        return launches();
      case Benchmark::stream:
        return stream();
      case Benchmark::eviction:
        return eviction();
    }
  }

  [[nodiscard]] Figures take() && { return std::move(result_); }

 private:
  /// As much of `bytes` as leaves seven eighths of what is free to others, and at least 64 KiB.
  [[nodiscard]] std::size_t fitting(std::size_t bytes) const {
    auto const most = device_.memory_info().free_bytes / 8;
    while (bytes > most && bytes > 64 * kibibyte) bytes /= 2;
    return bytes;
  }

  [[nodiscard]] std::runtime_error wrong(std::string_view what) const {
    return std::runtime_error(fmt::format("{}: {}", device_.id(), what));
  }

  /// The same of what takes its time.
  [[nodiscard]] std::size_t large(std::size_t bytes) const { return fitting(quick_ ? bytes / 8 : bytes); }

  void note(std::string_view name, std::size_t bytes, std::string_view unit, std::vector<double> values) {
    std::ranges::sort(values);
    result_.figures.push_back(
        {benchmark_, name, bytes, values[values.size() / 2], values.front(), values.back(), unit, values.size()});
  }

  /// Seconds of one `work`, of `calls` each time. What the first one does for all later ones is done before.
  template <class Work>
  [[nodiscard]] std::vector<double> seconds(std::size_t calls, Work const& work) const {
    work();
    std::vector<double> values(quick_ ? 5 : 15);
    for (auto& value : values) {
      auto const begin = Clock::now();
      for (std::size_t i = 0; i < calls; ++i) work();
      value = std::chrono::duration<double>(Clock::now() - begin).count() / static_cast<double>(calls);
    }
    return values;
  }

  template <class Work>
  void time(std::string_view name, std::size_t bytes, std::string_view unit, double per_second, std::size_t calls,
            Work const& work) {
    auto values = seconds(quick_ ? std::max<std::size_t>(1, calls / 10) : calls, work);
    for (auto& value : values) value *= per_second;
    note(name, bytes, unit, std::move(values));
  }

  template <class Work>
  void rate(std::string_view name, std::size_t bytes, Work const& work) {
    auto values = seconds(1, work);
    for (auto& value : values) value = static_cast<double>(bytes) / value / 1e9;
    note(name, bytes, "GB/s", std::move(values));
  }

  void allocation() {
    auto const location = storage_location(device_);
    auto const block = fitting(mebibyte);
    for (auto const bytes : {4 * kibibyte, block}) {
      MemoryPool pool(device_, location);
      time("taken from a pool and given back", bytes, "ns", nanoseconds, 10'000,
           [&] { static_cast<void>(pool.acquire(bytes)); });
    }
    time("taken from the device and given back", block, "ns", nanoseconds, 100,
         [&] { device_.release(device_.allocate(block, location), location); });
  }

  void transfer() {
    auto const bytes = large(64 * mebibyte);
    MemoryPool host_pool(device("cpu"), Location::host), pool(device_, storage_location(device_));
    auto const host = host_pool.acquire(bytes), block = pool.acquire(bytes);
    std::memset(host.data(), 0x5A, bytes);
    auto queue = device_.create_queue();
    rate("from the host", bytes, [&] { queue.upload(block.memory(), host.data(), bytes).wait(); });
    rate("to the host", bytes, [&] { queue.download(host.data(), block.memory(), bytes).wait(); });
    constexpr std::size_t few = 256;
    auto const window = block.memory().window(0, few);
    time("from the host", few, "us", microseconds, 100, [&] { queue.upload(window, host.data(), few).wait(); });
    time("to the host", few, "us", microseconds, 100, [&] { queue.download(host.data(), window, few).wait(); });
  }

  void coherence() {
    MemoryManager manager;
    Buffer buffer(large(16 * mebibyte) / sizeof(std::uint32_t), {.manager = &manager, .device = &device_});
    buffer.fill(1);
    buffer.synchronize();
    auto& queue = device_.default_queue();
    std::uint64_t sum = 0;
    time("an element read on the host, nothing to move", 0, "ns", nanoseconds, 10'000,
         [&] { sum += buffer.host_view()[0]; });
    time("a view on the device, nothing to move", 0, "ns", nanoseconds, 10'000,
         [&] { sum += buffer.device_view(queue).size(); });
    if (sum == 0) throw wrong("a buffer of ones reads as zeros");
    std::vector<std::uint32_t> const words(kibibyte, 7);
    time("written on the host, then needed on the device", 4 * kibibyte, "us", microseconds, 100, [&] {
      buffer.copy_from(words, words.size());
      buffer.sync_to_device();
    });
  }

  void launches() {
    MemoryManager manager;
    Buffer buffer(1, {.manager = &manager, .device = &device_});
    buffer.fill(0);
    auto const kernel = add_one();
    auto queue = device_.create_queue();
    time("a launch, and its end", 0, "us", microseconds, 100,
         [&] { unimem::launch(queue, kernel, Range{1}, readwrite(buffer)).wait(); });
    constexpr std::size_t many = 100;
    time("each of a hundred launches, and their end", 0, "us", microseconds / many, 10, [&] {
      for (std::size_t i = 0; i < many; ++i) unimem::launch(queue, kernel, Range{1}, readwrite(buffer));
      queue.synchronize();
    });
  }

  void stream() {
    auto const bytes = large(256 * mebibyte);
    MemoryFile const file(bytes);
    StreamOptions options;
    options.device = &device_;
    options.chunk_bytes = 16 * mebibyte;
    options.fit_chunk = true;
    rate("a histogram of a file in memory", bytes, [&] { stream_file(file.path(), histogram(), options); });
  }

  void eviction() {
    if (device_.shares_storage_with_host()) {
      result_.left_out.push_back({benchmark_, "the device's memory is the host's: nothing is evicted to it"});
      return;
    }
    auto const bytes = large(8 * mebibyte);
    MemoryManager manager;
    manager.set_limit(device_, bytes + bytes / 2);
    BufferOptions const options{.manager = &manager, .device = &device_};
    Buffer first(bytes / sizeof(std::uint32_t), options), second(bytes / sizeof(std::uint32_t), options);
    first.fill(0);
    second.fill(0);
    auto const kernel = add_one();
    std::uint32_t rounds = 0;
    auto const use_both = [&] {
      for (auto* const buffer : {&first, &second}) {
        unimem::launch(device_.default_queue(), kernel, Range{buffer->size()}, readwrite(*buffer)).wait();
      }
      ++rounds;
    };
    use_both();
    // What goes over is what the device counts.
    auto const before = device_.transfers();
    use_both();
    auto const moved = device_.transfers().since(before);
    rate("out and in, of two buffers in turn where one fits", moved.host_to_device_bytes + moved.device_to_host_bytes,
         use_both);
    if (first.host_view()[0] != rounds || second.host_view()[0] != rounds) {
      throw wrong("an evicted buffer has lost what was written");
    }
  }

  Device& device_;
  bool quick_;
  Benchmark benchmark_ = Benchmark::allocation;
  Figures result_;
};

}  // namespace

Figures measure(Device& device, std::vector<Benchmark> const& benchmarks, bool quick) {
  Bench bench(device, quick);
  for (auto const benchmark : benchmarks) bench.run(benchmark);
  return std::move(bench).take();
}

}  // namespace unimem::cli
