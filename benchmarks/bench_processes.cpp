// What a buffer that processes share takes: to be opened, to have a write seen, and for a turn at its bytes. Each other
// process is this program again. Least, quartiles and median, since the machine's other programs only add to a time.
//
//     bench_processes [--quick]     1 GiB is opened (64 MiB with --quick)

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/size.hpp>
#include <unimem/share/buffer_registry.hpp>

#include "buffer/shared_book.hpp"
#include "process/segment.hpp"
#include "process/shared_lock.hpp"
#include "process/shared_ranges.hpp"
#include "spread.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace {

using Clock = std::chrono::steady_clock;
using Bytes = unimem::UnifiedBuffer<std::byte>;

constexpr std::size_t message = 4096;

double nanoseconds_since(Clock::time_point began) {
  return std::chrono::duration<double, std::nano>(Clock::now() - began).count();
}

void figure(std::string const& what, std::vector<double> const& nanoseconds, double unit, char const* name) {
  auto const [low, median, high] = unimem::bench::spread(nanoseconds);
  fmt::print("    {:<66} {:9.2f} {} ({:.2f} … {:.2f}), least {:.2f}\n", what, median / unit, name, low / unit,
             high / unit, *std::ranges::min_element(nanoseconds) / unit);
}

void verdict(char const* what, double value, char const* unit, double target) {
  fmt::print("    {:<66} {:9.2f} {} target ≤ {:g}: {}\n", what, value, unit, target,
             value <= target ? "met" : "MISSED");
}

unimem::BufferId id_from(std::string const& text) {
  auto const dash = text.find('-');
  return {std::stoull(text.substr(0, dash), nullptr, 16), std::stoull(text.substr(dash + 1))};
}

/// This program as another process.
class Other {
 public:
  explicit Other(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "bench_processes");
    std::vector<char*> pointers;
    pointers.reserve(arguments.size() + 1);
    for (auto& one : arguments) pointers.push_back(one.data());
    pointers.push_back(nullptr);
    if (::posix_spawn(&pid_, "/proc/self/exe", nullptr, nullptr, pointers.data(), environ) != 0) {
      throw std::runtime_error("cannot start another process");
    }
  }
  Other(Other const&) = delete;
  Other& operator=(Other const&) = delete;
  ~Other() {
    if (pid_ != 0) ::waitpid(pid_, nullptr, 0);
  }
  void wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    if (status != 0) throw std::runtime_error("another process has failed");
  }

 private:
  ::pid_t pid_ = 0;
};

// ---- Opening ------------------------------------------------------------------------------------------------------

long minor_faults() {
  ::rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return used.ru_minflt;
}

void open_often(unimem::BufferId id, int rounds) {
  std::vector<double> open, close, first;
  std::vector<double> faults;
  std::size_t copied = 0, bytes = 0;
  for (int i = 0; i < rounds; ++i) {
    auto const before = minor_faults();
    auto const began = Clock::now();
    auto buffer = std::make_unique<Bytes>(unimem::registry().open<std::byte>(id));
    open.push_back(nanoseconds_since(began));
    faults.push_back(static_cast<double>(minor_faults() - before));
    auto const looked = Clock::now();
    if (buffer->slice(0, 1).to_vector()[0] != std::byte{1}) throw std::runtime_error("it has other bytes");
    first.push_back(nanoseconds_since(looked));
    auto const moved = buffer->statistics();
    copied += moved.host_to_device_bytes + moved.device_to_host_bytes;
    for (auto const& link : buffer->migrations()) copied += link.bytes;
    bytes = buffer->size_bytes();
    auto const ended = Clock::now();
    buffer.reset();
    close.push_back(nanoseconds_since(ended));
  }
  fmt::print("Another process opens a buffer of {}:\n", unimem::format_size(bytes));
  figure("open, which asks who has it, and maps", open, 1e3, "µs");
  figure("minor faults meanwhile", faults, 1, "");
  figure("the first byte read", first, 1e3, "µs");
  figure("the end of it", close, 1e3, "µs");
  fmt::print("    {:<66} {:9}\n", "bytes copied by all of them", copied);
  verdict("open", unimem::bench::spread(open).median / 1e3, "µs", 500);
  verdict("bytes copied", static_cast<double>(copied), "B", 0);
}

// ---- A write, seen -------------------------------------------------------------------------------------------------

/// Whose turn it is, in memory that both map: spun on, so that nobody sleeps.
struct Flag {
  alignas(64) std::atomic<std::uint32_t> turn{0};
  alignas(64) std::atomic<std::uint32_t> there{0};
};

class SharedFlag {
 public:
  SharedFlag() : descriptor_(::memfd_create("flag", 0)) {
    if (::ftruncate(descriptor_, 4096) != 0) throw std::runtime_error("no memory for a flag");
    flag_ = new (map()) Flag;
  }
  explicit SharedFlag(int descriptor) : descriptor_(descriptor), flag_(static_cast<Flag*>(map())) {}
  SharedFlag(SharedFlag const&) = delete;
  SharedFlag& operator=(SharedFlag const&) = delete;
  ~SharedFlag() { ::close(descriptor_); }
  [[nodiscard]] int descriptor() const { return descriptor_; }
  Flag* operator->() const { return flag_; }

 private:
  [[nodiscard]] void* map() const {
    void* const at = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (at == MAP_FAILED) throw std::runtime_error("no addresses for a flag");
    return at;
  }
  int descriptor_;
  Flag* flag_;
};

void await(std::atomic<std::uint32_t> const& turn, std::uint32_t value) {
  while (turn.load(std::memory_order_acquire) != value) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
}

/// One of the two: sees what the other has written, and writes what it is to see.
class Player {
 public:
  Player(Bytes& buffer, std::size_t self) : own_(part(buffer, self)), others_(part(buffer, 1 - self)) {}

  void write(std::uint32_t round) {
    bytes_[0] = static_cast<std::byte>(round);
    bytes_[message - 1] = static_cast<std::byte>(round);
    own_.copy_from(bytes_);
  }
  void see(std::uint32_t round) {
    others_.sync_to_host();
    auto const there = others_.host_view();
    if (there[0] != static_cast<std::byte>(round) || there[message - 1] != static_cast<std::byte>(round)) {
      throw std::runtime_error("a write is not seen");
    }
  }

 private:
  static unimem::BufferSlice<std::byte> part(Bytes& buffer, std::size_t index) {
    return buffer.slice(index * message, message);
  }
  unimem::BufferSlice<std::byte> own_, others_;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(message);
};

/// Round trips: first of the flag alone, then with a write before each hand-over and a look behind it.
struct PingPong {
  std::vector<double> flag, both;
};
PingPong play(SharedFlag& flag, Player& player, bool begins, std::uint32_t rounds) {
  PingPong times;
  std::uint32_t number = 0;
  for (bool const writes : {false, true}) {
    for (std::uint32_t i = 0; i < rounds; ++i) {
      auto const began = Clock::now();
      if (begins) {
        if (writes) player.write(i);
        flag->turn.store(++number, std::memory_order_release);
        await(flag->turn, ++number);
        if (writes) player.see(i);
      } else {
        await(flag->turn, ++number);
        if (writes) player.see(i);
        if (writes) player.write(i);
        flag->turn.store(++number, std::memory_order_release);
      }
      (writes ? times.both : times.flag).push_back(nanoseconds_since(began));
    }
  }
  return times;
}

void bind_to(int processor) {
  ::cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  static_cast<void>(::sched_setaffinity(0, sizeof set, &set));
}

void answer(unimem::BufferId id, int descriptor, std::uint32_t rounds) {
  bind_to(1);
  SharedFlag flag(descriptor);
  auto buffer = unimem::registry().open<std::byte>(id);
  Player player(buffer, 1);
  flag->there.store(1);
  static_cast<void>(play(flag, player, false, rounds));
}

double lock_nanoseconds() {
  auto const memory = unimem::detail::Segment::make("a lock", 4096);
  auto& lock = *new (memory.data()) unimem::detail::SharedLock;
  lock.make();
  std::vector<double> times;
  for (int i = 0; i < 101; ++i) {
    auto const began = Clock::now();
    for (int j = 0; j < 1000; ++j) {
      static_cast<void>(lock.take(std::chrono::milliseconds(1000)));
      lock.release();
    }
    times.push_back(nanoseconds_since(began) / 1000);
  }
  figure("a lock of that kind, taken and released", times, 1, "ns");
  return unimem::bench::spread(times).median;
}

void see_writes(std::uint32_t rounds) {
  fmt::print(
      "4 KiB written in one process and seen in another, and back, each on a processor of its own, both spinning:\n");
  unimem::BufferOptions options;
  options.shared = true;
  Bytes buffer(2 * message, std::move(options));
  buffer.fill(std::byte{0});
  auto const id = unimem::registry().publish(buffer, {.cross_process = true});
  SharedFlag flag;
  Other other({"--answer", to_string(id), std::to_string(flag.descriptor()), std::to_string(rounds)});
  ::cpu_set_t before;
  ::sched_getaffinity(0, sizeof before, &before);
  bind_to(0);
  await(flag->there, 1);
  Player player(buffer, 0);
  auto const times = play(flag, player, true, rounds);
  other.wait();
  ::sched_setaffinity(0, sizeof before, &before);
  unimem::registry().release(id);
  figure("the hand-over alone, there and back", times.flag, 1e3, "µs");
  figure("with a write before it, and a look behind it, at each end", times.both, 1e3, "µs");
  auto const lock = lock_nanoseconds();
  auto const one_way = (unimem::bench::spread(times.both).median - unimem::bench::spread(times.flag).median) / 2;
  // A write takes the lock to begin and to end, a look to learn what was written, and its own turn, there and back.
  constexpr double locks = 5;
  verdict("a write and a look, without the hand-over", one_way / 1e3, "µs", 5 + locks * lock / 1e3);
}

// ---- Turns ---------------------------------------------------------------------------------------------------------

double each(std::function<void()> const& work, int times) {
  auto const began = Clock::now();
  for (int i = 0; i < times; ++i) work();
  return nanoseconds_since(began) / times;
}

void take_turns(int rounds) {
  fmt::print("A turn that no other process is in the way of:\n");
  std::vector<double> writes, reads, copies, plain_copies, looks, plain_looks;
  unimem::BufferOptions options;
  options.shared = true;
  Bytes buffer(2 * message, std::move(options)), plain(2 * message);
  buffer.fill(std::byte{0});
  plain.fill(std::byte{0});
  auto const book = unimem::detail::SharedBooks::of_this_process().all().at(0);
  auto& ranges = book->ranges();
  auto const self = book->self();
  auto own = buffer.slice(0, message), beside = plain.slice(0, message);
  std::vector<std::byte> const bytes(message);
  constexpr int times = 1000;
  for (int i = 0; i < rounds; ++i) {
    writes.push_back(each(
        [&] {
          static_cast<void>(ranges.begin_write(self, {0, message}));
          ranges.end_write(self, {0, message});
        },
        times));
    reads.push_back(each(
        [&] {
          static_cast<void>(ranges.begin_read(self, {0, message}));
          ranges.end_read(self, {0, message});
        },
        times));
    copies.push_back(each([&] { own.copy_from(bytes); }, times));
    plain_copies.push_back(each([&] { beside.copy_from(bytes); }, times));
    looks.push_back(each([&] { static_cast<void>(own.host_view()); }, times));
    plain_looks.push_back(each([&] { static_cast<void>(beside.host_view()); }, times));
  }
  figure("in the book: a write begins and ends", writes, 1, "ns");
  figure("in the book: a read begins and ends", reads, 1, "ns");
  figure("4 KiB copied to a shared buffer", copies, 1, "ns");
  figure("the same to one that is not shared", plain_copies, 1, "ns");
  figure("a look at a shared buffer (host_view)", looks, 1, "ns");
  figure("the same at one that is not shared", plain_looks, 1, "ns");
}

int run(std::vector<std::string> const& arguments) {
  if (arguments.size() == 3 && arguments[0] == "--open") {
    open_often(id_from(arguments[1]), std::stoi(arguments[2]));
    return 0;
  }
  if (arguments.size() == 4 && arguments[0] == "--answer") {
    answer(id_from(arguments[1]), std::stoi(arguments[2]), static_cast<std::uint32_t>(std::stoul(arguments[3])));
    return 0;
  }
  bool const quick = arguments.size() == 1 && arguments[0] == "--quick";
  if (!arguments.empty() && !quick) {
    fmt::print(stderr, "usage: bench_processes [--quick]\n");
    return 2;
  }
  {
    unimem::BufferOptions options;
    options.shared = true;
    Bytes buffer(std::size_t{1} << (quick ? 26U : 30U), std::move(options));
    buffer.fill(std::byte{1});
    auto const id = unimem::registry().publish(buffer, {.cross_process = true});
    std::fflush(stdout);
    Other({"--open", to_string(id), quick ? "20" : "100"}).wait();
    unimem::registry().release(id);
  }
  see_writes(quick ? 2'000 : 20'000);
  take_turns(quick ? 21 : 101);
  return 0;
}

}  // namespace

int main(int argc, char** argv) try { return run({argv + 1, argv + argc}); } catch (std::exception const& error) {
  fmt::print(stderr, "bench_processes: {}\n", error.what());
  return 1;
}
