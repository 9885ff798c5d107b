#pragma once

// What the programs that read files share: files of noise, what else reads them, and how rates are told.

#include "file/block_reads.hpp"
#include "spread.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace unimem::bench {

using Clock = std::chrono::steady_clock;

constexpr std::size_t block = detail::BlockReads::block_bytes, depth = detail::BlockReads::depth;
constexpr std::size_t part = std::size_t{64} << 20;

/// A file of noise, removed at the end.
class NoiseFile {
 public:
  NoiseFile(std::string const& folder, std::size_t bytes, std::string const& ending = "")
      : path_(folder + "/bench_files-XXXXXX" + ending), bytes_(bytes) {
    UniqueFile const file{::mkstemps(path_.data(), static_cast<int>(ending.size()))};
    std::vector<std::uint64_t> noise((std::size_t{8} << 20) / sizeof(std::uint64_t));
    std::mt19937_64 random{2026};
    for (std::size_t at = 0; at < bytes; at += noise.size() * sizeof(std::uint64_t)) {
      for (auto& word : noise) word = random();
      auto const count = std::min(bytes - at, noise.size() * sizeof(std::uint64_t));
      if (::write(file.descriptor, noise.data(), count) != static_cast<::ssize_t>(count)) fail("writing");
    }
    if (::fdatasync(file.descriptor) != 0) fail("syncing");
  }
  NoiseFile(NoiseFile const&) = delete;
  NoiseFile& operator=(NoiseFile const&) = delete;
  ~NoiseFile() { ::unlink(path_.c_str()); }

  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

  void make_cold() const {
    UniqueFile const file{::open(path_.c_str(), O_RDONLY)};
    ::posix_fadvise(file.descriptor, 0, 0, POSIX_FADV_DONTNEED);
  }
  void make_warm() const {
    UniqueFile const file{::open(path_.c_str(), O_RDONLY)};
    std::vector<char> to(std::size_t{1} << 20);
    while (::read(file.descriptor, to.data(), to.size()) > 0) {
    }
  }

  struct UniqueFile {
    int descriptor;
    explicit UniqueFile(int opened) : descriptor(opened) {
      if (opened < 0) fail("opening");
    }
    UniqueFile(UniqueFile const&) = delete;
    UniqueFile& operator=(UniqueFile const&) = delete;
    ~UniqueFile() { ::close(descriptor); }
  };
  [[noreturn]] static void fail(char const* what) {
    throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
  }

 private:
  std::string path_;
  std::size_t bytes_;
};

inline double seconds_of(std::function<void()> const& work) {
  auto const began = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - began).count();
}

/// As many threads as there are requests under way, and nothing else: each to the same memory again and again, or
/// `fresh`: to memory for all of the file that the system has yet to find, as who is to keep the bytes needs.
inline void plain_direct(std::string const& path, std::size_t begin, std::size_t bytes, bool fresh) {
  NoiseFile::UniqueFile const opened{::open(path.c_str(), O_RDONLY | O_DIRECT)};
  std::atomic<std::size_t> next{0};
  auto const memory_bytes = fresh ? bytes : depth * block;
  void* const memory = ::mmap(nullptr, memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) NoiseFile::fail("mapping");
  std::vector<std::jthread> threads;
  threads.reserve(depth);
  for (std::size_t i = 0; i < depth; ++i) {
    threads.emplace_back([&, i] {
      for (std::size_t at = next.fetch_add(block); at < bytes; at = next.fetch_add(block)) {
        auto* const to = static_cast<std::byte*>(memory) + (fresh ? at : i * block);
        if (::pread(opened.descriptor, to, std::min(block, bytes - at), static_cast<::off_t>(begin + at)) < 0)
          std::abort();
      }
    });
  }
  threads.clear();
  ::munmap(memory, memory_bytes);
}

inline std::uint64_t sum_of_pages(std::byte const* bytes, std::size_t count) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < count; at += 4096) sum += std::to_integer<std::uint64_t>(bytes[at]);
  return sum;
}

/// What is measured, and its times.
struct Way {
  std::string name;
  std::function<void()> work;
  std::function<double()> rate{};  ///< of a program that measures itself, GB/s
  std::vector<double> rates{};

  void round(NoiseFile const& file) {
    rates.push_back(rate ? rate() : static_cast<double>(file.bytes()) / seconds_of(work) / 1e9);
  }
  [[nodiscard]] double median() const { return spread(rates).median; }
};

inline void print(Way const& way, Way const& beside) {
  auto const [low, median, high] = spread(way.rates);
  fmt::print("    {:<58} {:6.2f} GB/s ({:.2f} … {:.2f}), {:.2f} of the first\n", way.name, median, low, high,
             median / beside.median());
}

inline void verdict(char const* what, double value, char const* sign, double target) {
  bool const met = *sign == '<' ? value <= target : value >= target;
  fmt::print("    {:<72} {:6.3f}  target {} {:g}: {}\n", what, value, *sign == '<' ? "≤" : "≥", target,
             met ? "met" : "MISSED");
}

/// What such a program is asked for.
struct Arguments {
  std::size_t bytes;
  int rounds;
  std::string folder = std::filesystem::temp_directory_path().string();
};

/// `whole`: what is measured without `--quick`. Nothing: they make no sense, which standard error says.
inline std::optional<Arguments> parse(int argc, char** argv, Arguments whole) {
  for (int i = 1; i < argc; ++i) {
    std::string const argument = argv[i];
    if (argument == "--quick") {
      whole.bytes = std::size_t{256} << 20U;
      whole.rounds = 3;
    } else if (argument == "--folder" && i + 1 < argc) {
      whole.folder = argv[++i];
    } else {
      fmt::print(stderr, "usage: {} [--quick] [--folder PATH]\n", argv[0]);
      return std::nullopt;
    }
  }
  return whole;
}

}  // namespace unimem::bench
