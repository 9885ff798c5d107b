// By which way bytes of a file come, and how fast, beside what is known to be the disk's speed: a loop of reads past
// the page cache with as many requests of the same size under way, fio where it is installed, and what programs do
// else: dd, a loop over a mapping, numpy.memmap. Medians of rounds in a random order, before each of which the page
// cache forgets the file, or has all of it.
//
//     bench_files [--quick] [--folder PATH]     1 GiB (256 MiB with --quick) in that folder (default: /tmp)

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/size.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/stream/file_buffer.hpp>
#include <unimem/stream/stream_file.hpp>

#include "files.hpp"
#include "stream/chunk_work.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using unimem::Checksum;
using unimem::device;
using unimem::FileAccess;
using unimem::FileOptions;
using unimem::format_size;
using unimem::from_file;
using unimem::MapMode;
using unimem::MemoryManager;
using unimem::StreamOptions;
using unimem::bench::block;
using unimem::bench::depth;
using unimem::bench::NoiseFile;
using unimem::bench::part;
using unimem::bench::plain_direct;
using unimem::bench::print;
using unimem::bench::seconds_of;
using unimem::bench::sum_of_pages;
using unimem::bench::verdict;
using unimem::bench::Way;

/// Bytes that disks gave this process.
std::uint64_t disk_bytes() {
  std::ifstream counts("/proc/self/io");
  std::string name;
  std::uint64_t value = 0;
  while (counts >> name >> value) {
    if (name == "read_bytes:") return value;
  }
  return 0;
}

void run_program(std::string const& command) {
  if (std::system(command.c_str()) != 0) throw std::runtime_error(command + " failed");
}
bool has_program(std::string const& name) {
  return std::system(("command -v " + name + " >/dev/null 2>&1").c_str()) == 0;
}

/// The rate that fio tells, GB/s.
double fio_rate(NoiseFile const& file) {
  auto const command = fmt::format(
      "fio --name=r --readonly --direct=1 --rw=read --bs={} --iodepth={} --ioengine=io_uring --minimal --filename={} "
      "2>/dev/null",
      block, depth, file.path());
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> const out{::popen(command.c_str(), "r"), &::pclose};
  std::array<char, 4'096> line{};
  if (out == nullptr || std::fgets(line.data(), line.size(), out.get()) == nullptr) return 0;
  char const* at = line.data();
  for (int field = 0; field < 6 && at != nullptr; ++field)
    at = std::strchr(at, ';') != nullptr ? std::strchr(at, ';') + 1 : nullptr;
  return at == nullptr ? 0 : std::strtod(at, nullptr) * 1024 / 1e9;
}

void mapping_loop(NoiseFile const& file) {
  NoiseFile::UniqueFile const opened{::open(file.path().c_str(), O_RDONLY)};
  void* const mapped = ::mmap(nullptr, file.bytes(), PROT_READ, MAP_SHARED, opened.descriptor, 0);
  if (mapped == MAP_FAILED) NoiseFile::fail("mapping");
  volatile auto const sum = sum_of_pages(static_cast<std::byte const*>(mapped), file.bytes());
  static_cast<void>(sum);
  ::munmap(mapped, file.bytes());
}

/// Every part of a buffer over the file once, on the host.
void pass(unimem::UnifiedBuffer<std::byte>& buffer, std::size_t step = part) {
  std::uint64_t sum = 0;
  for (std::size_t begin = 0; begin < buffer.size(); begin += step) {
    auto piece = buffer.slice(begin, std::min(step, buffer.size() - begin));
    auto const mapped = piece.map(MapMode::read);
    sum += sum_of_pages(mapped.data(), mapped.size());
  }
  volatile auto const kept = sum;
  static_cast<void>(kept);
}

void from_file_pass(NoiseFile const& file, FileAccess access) {
  MemoryManager manager;
  FileOptions options;
  options.access = access;
  options.manager = &manager;
  auto buffer = from_file<std::byte>(file.path(), options);
  pass(buffer);
}

void from_file_to_device(NoiseFile const& file, FileAccess access) {
  MemoryManager manager;
  auto& sim = unimem::make_sim({.memory_bytes = 2 * part});
  FileOptions options;
  options.access = access;
  options.manager = &manager;
  options.device = &sim;
  auto buffer = from_file<std::byte>(file.path(), options);
  for (std::size_t begin = 0; begin < buffer.size(); begin += part) {
    auto piece = buffer.slice(begin, std::min(part, buffer.size() - begin));
    static_cast<void>(piece.device_view(sim));
    sim.synchronize();
    buffer.release_device(sim);
  }
}

std::string manifest_of(NoiseFile const& file, Checksum checksum) {
  return file.path() + '.' + std::string(unimem::to_string(checksum)) + ".json";
}

/// With memory that streams before have touched, compared with the file's manifest if a checksum is given.
void stream(NoiseFile const& file, FileAccess access, std::optional<Checksum> verified = std::nullopt) {
  static MemoryManager manager;
  StreamOptions options;
  options.manager = &manager;
  options.device = &device("cpu");
  options.access = access;
  if (verified) options.verify = manifest_of(file, *verified);
  static_cast<void>(unimem::stream_file(file.path(), unimem::histogram(), options));
}

/// Manifests of the file, removed at the end.
class Manifests {
 public:
  explicit Manifests(NoiseFile const& file) : file_(file) {
    for (auto const checksum : all) {
      StreamOptions options;
      options.device = &device("cpu");
      options.checksum = checksum;
      options.manifest = manifest_of(file, checksum);
      static_cast<void>(unimem::stream_file(file.path(), unimem::histogram(), options));
    }
  }
  Manifests(Manifests const&) = delete;
  Manifests& operator=(Manifests const&) = delete;
  ~Manifests() {
    for (auto const checksum : all) ::unlink(manifest_of(file_, checksum).c_str());
  }

 private:
  static constexpr std::array all{Checksum::xxh3, Checksum::crc32c};
  NoiseFile const& file_;
};

/// The same chunks by the same kernel where the bytes are memory already.
class Resident {
 public:
  explicit Resident(NoiseFile const& file) : bytes_(file.bytes()) {
    std::ifstream in(file.path(), std::ios::binary);
    in.read(reinterpret_cast<char*>(bytes_.data()), static_cast<std::streamsize>(bytes_.size()));
    for (std::size_t at = 0; at < bytes_.size(); at += part) {
      auto const count = std::min(part, bytes_.size() - at);
      chunks_.emplace_back(
          unimem::Shape(count),
          unimem::BufferCore::make(count, options(), {bytes_.data() + at, unimem::Ownership::borrow()}));
    }
  }
  void run() {
    auto const work = unimem::histogram().work()->start(on_, unimem::ElementType::u8, true);
    unimem::UnifiedBuffer<std::byte> results(unimem::Shape(work->result_bytes(part)), options());
    auto queue = on_.create_queue();
    for (auto& chunk : chunks_) {
      work->launch(queue, chunk, results, chunk.size());
      queue.synchronize();
      work->combine(results.host_view(0, results.size()), chunk.size());
    }
  }

 private:
  [[nodiscard]] unimem::BufferOptions options() const {
    unimem::BufferOptions made;
    made.device = &on_;
    return made;
  }
  unimem::Device& on_ = device("cpu");
  std::vector<std::byte> bytes_;
  std::vector<unimem::UnifiedBuffer<std::byte>> chunks_;
};

void cold(NoiseFile const& file, int rounds) {
  fmt::print("A cold file of {}, {} requests of {} under way:\n", format_size(file.bytes()), depth, format_size(block));
  std::vector<Way> ways;
  ways.push_back({"plain loop past the page cache", [&] { plain_direct(file.path(), 0, file.bytes(), false); }});
  ways.push_back({"the same to fresh memory", [&] { plain_direct(file.path(), 0, file.bytes(), true); }});
  ways.push_back({"stream_file on cpu, direct", [&] { stream(file, FileAccess::direct); }});
  ways.push_back({"stream_file on cpu, auto", [&] { stream(file, FileAccess::automatic); }});
  ways.push_back(
      {"stream_file on cpu, direct, crc32c verified", [&] { stream(file, FileAccess::direct, Checksum::crc32c); }});
  ways.push_back(
      {"stream_file on cpu, direct, xxh3 verified", [&] { stream(file, FileAccess::direct, Checksum::xxh3); }});
  ways.push_back({"from_file on the host, direct", [&] { from_file_pass(file, FileAccess::direct); }});
  ways.push_back({"from_file on the host, auto", [&] { from_file_pass(file, FileAccess::automatic); }});
  ways.push_back({"from_file on a device, direct", [&] { from_file_to_device(file, FileAccess::direct); }});
  auto const ours = ways.size();
  ways.push_back({"stream_file on cpu, mapped", [&] { stream(file, FileAccess::mapped); }});
  ways.push_back({"from_file on the host, cached", [&] { from_file_pass(file, FileAccess::cached); }});
  if (has_program("fio")) ways.push_back({"fio, io_uring", {}, [&] { return fio_rate(file); }});
  ways.push_back({"dd iflag=direct bs=8M",
                  [&] { run_program("dd status=none bs=8M iflag=direct of=/dev/null if=" + file.path()); }});
  ways.push_back({"dd bs=8M", [&] { run_program("dd status=none bs=8M of=/dev/null if=" + file.path()); }});
  ways.push_back({"loop over a mapping", [&] { mapping_loop(file); }});
  // In another order each time: disks of virtual machines owe bursts to whom they have kept waiting.
  std::vector<Way*> order;
  order.reserve(ways.size());
  for (auto& way : ways) order.push_back(&way);
  std::mt19937 random{2026};
  for (int i = 0; i < rounds; ++i) {
    std::ranges::shuffle(order, random);
    for (auto* const way : order) {
      file.make_cold();
      way->round(file);
    }
  }
  for (auto const& way : ways) print(way, ways.front());
  for (std::size_t i = 2; i < ours; ++i) {
    auto const& beside = ways[ways[i].name.find("on the host") != std::string::npos ? 1 : 0];
    verdict(fmt::format("{} / {}", ways[i].name, beside.name).c_str(), ways[i].median() / beside.median(), ">", 0.9);
  }
  verdict("time with crc32c / without", ways[2].median() / ways[4].median(), "<", 1.05);
  verdict("time with xxh3 / without", ways[2].median() / ways[5].median(), "<", 1.05);
}

void warm(NoiseFile const& file, int rounds) {
  fmt::print("A file of {} that is in the page cache, on cpu:\n", format_size(file.bytes()));
  Resident resident(file);
  file.make_warm();
  std::vector<Way> ways;
  ways.push_back({"histogram of resident memory", [&] { resident.run(); }});
  ways.push_back({"stream_file, auto", [&] { stream(file, FileAccess::automatic); }});
  ways.push_back(
      {"stream_file, auto, crc32c verified", [&] { stream(file, FileAccess::automatic, Checksum::crc32c); }});
  ways.push_back({"stream_file, auto, xxh3 verified", [&] { stream(file, FileAccess::automatic, Checksum::xxh3); }});
  ways.push_back({"from_file on the host, auto", [&] { from_file_pass(file, FileAccess::automatic); }});
  ways.push_back({"from_file on the host, mapped", [&] { from_file_pass(file, FileAccess::mapped); }});
  ways.push_back({"loop over a mapping", [&] { mapping_loop(file); }});
  for (int i = 0; i < rounds; ++i) {
    for (auto& way : ways) way.round(file);
  }
  for (auto const& way : ways) print(way, ways.front());
  verdict("stream_file / resident memory", ways[1].median() / ways[0].median(), ">", 0.9);
  verdict("time with crc32c / without", ways[1].median() / ways[2].median(), "<", 1.15);
  verdict("time with xxh3 / without", ways[1].median() / ways[3].median(), "<", 1.15);
  verdict("from_file, mapped / loop over a mapping", ways[5].median() / ways[6].median(), ">", 0.9);
}

void passes(NoiseFile const& file) {
  constexpr std::size_t times = 5;
  auto const limit = file.bytes() / 2;
  fmt::print("{} passes over {} with {} of host memory:\n", times, format_size(file.bytes()), format_size(limit));
  // Of the second and later passes, what the limit holds is there.
  auto const optimum = static_cast<double>(file.bytes() + (times - 1) * (file.bytes() - limit));
  for (auto const access : {FileAccess::automatic, FileAccess::direct, FileAccess::cached}) {
    file.make_cold();
    MemoryManager manager;
    manager.set_limit(device("cpu"), limit);
    FileOptions options;
    options.access = access;
    options.manager = &manager;
    auto const disk = disk_bytes();
    double const seconds = seconds_of([&] {
      auto buffer = from_file<std::byte>(file.path(), options);
      for (std::size_t i = 0; i < times; ++i) pass(buffer, std::size_t{4} << 20);
    });
    auto const moved = manager.statistics();
    fmt::print("    {:<8} {:6.2f} s, {} read, {} past the cache, {} from the disk\n", to_string(access), seconds,
               format_size(moved.file_read_bytes), format_size(moved.file_direct_bytes),
               format_size(disk_bytes() - disk));
    verdict("bytes read / optimum", static_cast<double>(moved.file_read_bytes) / optimum, "<", 1.15);
  }
  if (std::system("python3 -c 'import numpy' 2>/dev/null") != 0) return;
  file.make_cold();
  fmt::print("    numpy.memmap (no limit): {:.2f} s\n", seconds_of([&] {
               run_program("python3 -c \"import numpy; a = numpy.memmap('" + file.path() +
                           "', numpy.uint8, 'r'); [int(a[::4096].sum()) for i in range(5)]\"");
             }));
}

}  // namespace

int main(int argc, char** argv) try {
  auto const asked = unimem::bench::parse(argc, argv, {.bytes = std::size_t{1} << 30U, .rounds = 7});
  if (!asked) return 2;
  NoiseFile const file(asked->folder, asked->bytes);
  Manifests const manifests(file);
  cold(file, asked->rounds);
  warm(file, asked->rounds);
  passes(file);
  return 0;
} catch (std::exception const& error) {
  fmt::print(stderr, "bench_files: {}\n", error.what());
  return 1;
}
