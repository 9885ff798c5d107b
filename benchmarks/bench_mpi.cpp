// What messages between buffers take beside MPI's own calls, in the same run and in turns, and what a distributed array
// moves. Each rank is this program again. Least, quartiles and median, since the machine's other programs only add to a
// time.
//
//     bench_mpi [--quick]     two ranks; fewer rounds with --quick

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/size.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/operand.hpp>
#include <unimem/mpi.hpp>

#include "spread.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
namespace mpi = unimem::mpi;

constexpr int tag = 1;

double nanoseconds_since(Clock::time_point began) {
  return std::chrono::duration<double, std::nano>(Clock::now() - began).count();
}

int rank() {
  int number = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &number);
  return number;
}

bool is_shown() {
  return rank() == 0;
}

void verdict(char const* what, double value, char const* unit, bool is_met, std::string const& target) {
  if (is_shown())
    fmt::print("    {:<66} {:9.3f} {} target {}: {}\n", what, value, unit, target, is_met ? "met" : "MISSED");
}

/// The time of one way, in nanoseconds, of `count` messages there and back.
template <class Send, class Receive>
double ping_pong(int count, Send const& send, Receive const& receive) {
  MPI_Barrier(MPI_COMM_WORLD);
  auto const began = Clock::now();
  for (int i = 0; i < count; ++i) {
    if (rank() == 0) {
      send(1);
      receive(1);
    } else {
      receive(0);
      send(0);
    }
  }
  return nanoseconds_since(began) / count / 2;
}

void messages(int rounds) {
  if (is_shown()) fmt::print("A message of host bytes, one way, beside MPI_Send and MPI_Recv:\n");
  double most_added = 0;
  double least_ratio = 10;
  for (std::size_t const bytes : {std::size_t{8}, std::size_t{1024}, std::size_t{16} << 10, std::size_t{64} << 10,
                                  std::size_t{256} << 10, std::size_t{1} << 20, std::size_t{8} << 20}) {
    // MPI's own from memory that the library gives as well: where it begins and what pages it has decides more than
    // either does.
    unimem::UnifiedBuffer<std::byte> plain_buffer(bytes);
    auto const plain = plain_buffer.host_overwrite();
    std::ranges::fill(plain, std::byte{1});
    unimem::UnifiedBuffer<std::byte> buffer(bytes);
    std::ranges::copy(plain, buffer.host_overwrite().begin());
    auto const size = static_cast<int>(bytes);
    auto const raw = [&](int count) {
      return ping_pong(
          count, [&](int to) { MPI_Send(plain.data(), size, MPI_BYTE, to, tag, MPI_COMM_WORLD); },
          [&](int from) { MPI_Recv(plain.data(), size, MPI_BYTE, from, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE); });
    };
    auto const ours = [&](int count) {
      return ping_pong(
          count, [&](int to) { mpi::send(unimem::read(buffer), to, tag); },
          [&](int from) { mpi::receive(unimem::write(buffer), from, tag); });
    };
    int const count = static_cast<int>(std::clamp<std::size_t>((std::size_t{4} << 20) / bytes, 2, 200));
    static_cast<void>(raw(count) + ours(count));
    std::vector<double> raw_times, our_times;
    for (int i = 0; i < rounds; ++i) {
      raw_times.push_back(raw(count));
      our_times.push_back(ours(count));
    }
    auto const raw_least = *std::ranges::min_element(raw_times);
    auto const our_least = *std::ranges::min_element(our_times);
    auto const raw_median = unimem::bench::spread(raw_times).median;
    auto const our_median = unimem::bench::spread(our_times).median;
    if (bytes < (std::size_t{64} << 10)) most_added = std::max(most_added, our_least - raw_least);
    if (bytes >= (std::size_t{64} << 10)) least_ratio = std::min(least_ratio, raw_least / our_least);
    if (is_shown()) {
      fmt::print(
          "    {:>8}: MPI {:9.2f} µs, ours {:9.2f} µs, least {:9.2f} and {:9.2f}; throughput {:.2f} of MPI's, least "
          "{:.2f}\n",
          unimem::format_size(bytes), raw_median / 1e3, our_median / 1e3, raw_least / 1e3, our_least / 1e3,
          raw_median / our_median, raw_least / our_least);
    }
  }
  verdict("the worst throughput from 64 KiB up, of MPI's, by the least times", least_ratio, "", least_ratio >= 0.95,
          "≥ 0.95");
  verdict("the most added below that", most_added / 1e3, "µs", most_added <= 1000, "≤ 1 µs");
}

/// What a device alone has, to a rank that receives it on the host: whole, or in pieces of which one comes from the
/// device while another is sent.
void from_a_device(int rounds) {
  constexpr std::size_t bytes = std::size_t{64} << 20;
  auto& device = unimem::make_sim({.memory_bytes = std::size_t{256} << 20, .download_bytes_per_second = 3e9});
  unimem::UnifiedBuffer<std::byte> buffer(bytes, {.device = &device});
  std::vector<double> whole, pieces;
  for (int i = 0; i < rounds; ++i) {
    for (bool const as_one_message : {true, false}) {
      if (rank() == 0) {
        static_cast<void>(buffer.device_overwrite(device));
        buffer.release_host();
      } else {
        buffer.fill(std::byte{0});  // its pages are there
      }
      MPI_Barrier(MPI_COMM_WORLD);
      auto const began = Clock::now();
      if (rank() == 0) {
        mpi::send(unimem::read(buffer), 1, tag, MPI_COMM_WORLD,
                  {.piece_bytes = as_one_message ? 0 : std::size_t{4} << 20});
      } else {
        mpi::receive(unimem::write(buffer), 0, tag);
      }
      MPI_Barrier(MPI_COMM_WORLD);
      (as_one_message ? whole : pieces).push_back(nanoseconds_since(began));
    }
  }
  if (!is_shown()) return;
  fmt::print("{} from a simulated device that gives 3 GB/s, which alone takes {:.1f} ms:\n", unimem::format_size(bytes),
             static_cast<double>(bytes) / 3e6);
  fmt::print("    as one message {:.1f} ms, in pieces {:.1f} ms; least {:.1f} and {:.1f}\n",
             unimem::bench::spread(whole).median / 1e6, unimem::bench::spread(pieces).median / 1e6,
             *std::ranges::min_element(whole) / 1e6, *std::ranges::min_element(pieces) / 1e6);
}

void halos(int rounds) {
  constexpr std::size_t halo = 8192;
  mpi::DistributedArray<double> array(std::size_t{1} << 20, MPI_COMM_WORLD, {.halo = halo});
  auto local = array.local();
  std::vector<double> fence, read;
  std::size_t changed = 0;
  for (int step = 0; step < rounds; ++step) {
    auto elements = local.host();
    auto const edge = rank() == 0 ? elements.last(halo) : elements.first(halo);  // of two ranks each has one edge
    for (auto& element : edge) element += 1;
    changed += edge.size_bytes();
    MPI_Barrier(MPI_COMM_WORLD);
    auto began = Clock::now();
    array.fence();
    fence.push_back(nanoseconds_since(began));
    began = Clock::now();
    static_cast<void>(array.read(array.reach()));
    read.push_back(nanoseconds_since(began));
  }
  auto const moved = array.statistics();
  if (is_shown()) {
    fmt::print("A halo of {} of which all changes in each step:\n", unimem::format_size(halo * sizeof(double)));
    fmt::print("    {:<66} {:9.2f} µs, least {:.2f}\n", "fence: comparing, storing, telling",
               unimem::bench::spread(fence).median / 1e3, *std::ranges::min_element(fence) / 1e3);
    fmt::print("    {:<66} {:9.2f} µs, least {:.2f}\n", "read: bringing it", unimem::bench::spread(read).median / 1e3,
               *std::ranges::min_element(read) / 1e3);
  }
  auto const ratio = static_cast<double>(moved.read_bytes + moved.notice_bytes) / static_cast<double>(changed);
  verdict("bytes moved, notices included, of what has changed", ratio, "", ratio <= 1.05, "≤ 1.05");

  constexpr int reads = 10'000;
  std::vector<double> current;
  for (int i = 0; i < rounds; ++i) {
    auto const began = Clock::now();
    for (int k = 0; k < reads; ++k) static_cast<void>(array.read(array.reach()));
    current.push_back(nanoseconds_since(began) / reads);
  }
  auto const least = *std::ranges::min_element(current);
  if (is_shown())
    fmt::print("    {:<66} {:9.2f} ns\n", "a read of what is current, median", unimem::bench::spread(current).median);
  verdict("a read of what is current, least", least, "ns", least <= 100, "≤ 100 ns");

  auto const before = array.statistics();
  auto elements = local.host();
  auto const edge = rank() == 0 ? elements.last(halo) : elements.first(halo);
  for (std::size_t i = 0; i < 100; ++i) edge[i * 80] += 1;
  array.fence();
  static_cast<void>(array.read(array.reach()));
  auto const after = array.statistics();
  if (is_shown()) {
    fmt::print("    a hundred edits, 640 bytes apart: {} reads of {} bytes, told by {} bytes; of a halo of {}\n",
               after.reads - before.reads, after.read_bytes - before.read_bytes,
               after.notice_bytes - before.notice_bytes, halo * sizeof(double));
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

int run_ranks(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  bool const quick = argc > 2 && std::strcmp(argv[2], "--quick") == 0;
  if (is_shown()) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(version, &length);
    std::string const all(version, static_cast<std::size_t>(length));
    fmt::print("{}\n", all.substr(0, all.find_first_of(",\n")));
  }
  messages(quick ? 20 : 200);
  from_a_device(quick ? 3 : 10);
  halos(quick ? 20 : 200);
  MPI_Finalize();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc > 1 && std::strcmp(argv[1], "--rank") == 0) return run_ranks(argc, argv);
    std::vector<char const*> command{UNIMEM_MPI_LAUNCHER, "-n", "2", "/proc/self/exe", "--rank"};
    char self[4096] = {};
    if (::readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) throw std::runtime_error("this program has no path");
    command[3] = self;
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    for (int i = 1; i < argc; ++i) command.push_back(argv[i]);
    command.push_back(nullptr);
    ::execv(command[0], const_cast<char* const*>(command.data()));
    throw std::runtime_error(fmt::format("cannot start {}", command[0]));
  } catch (std::exception const& error) {
    fmt::print(stderr, "bench_mpi: {}\n", error.what());
    return 1;
  }
}
