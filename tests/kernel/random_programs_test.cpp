#include "core/sanitizers.hpp"

#include <unimem/buffer/buffer_pool.hpp>
#include <unimem/core/detail/environment.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/launch.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

// Random programs of host kernels on several threads: buffers dropped and freed while work runs on them, kernels that
// throw or look at other buffers, little memory, wrapped memory, pools, slices, queues. Vectors beside the buffers say
// what their contents must be. A program that hangs ends the process, with its seed and what each thread was doing.

namespace unimem::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t thread_count = 4;
constexpr auto longest = 60s;  ///< of a program, which takes less than one
/// What makes operations wait for each other until their patience is over takes ten seconds.
constexpr auto suspicious = 9s;

/// Operations of each thread in all programs together.
std::size_t operations() {
  constexpr std::size_t by_itself = detail::under_thread_sanitizer ? 1'000 : 3'000;
  auto const wanted = environment("UNIMEM_TEST_OPERATIONS");
  return wanted ? std::stoull(*wanted) : by_itself;
}

/// Ends the process when a program does not end: a thread that hangs could not be joined either.
class Watchdog {
 public:
  Watchdog(unsigned seed, std::array<std::atomic<char const*>, thread_count> const& doing)
      : thread_([this, seed, &doing] {
          std::unique_lock lock(mutex_);
          if (changed_.wait_for(lock, longest, [this] { return over_; })) return;
          fmt::print(stderr, "seed {} hangs; its threads:\n", seed);
          for (auto const& one : doing) fmt::print(stderr, "  {}\n", one.load());
          std::fflush(stderr);
          std::abort();
        }) {}
  Watchdog(Watchdog const&) = delete;
  Watchdog& operator=(Watchdog const&) = delete;
  ~Watchdog() {
    {
      std::lock_guard const lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

struct OnPurpose : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What all threads use.
struct World {
  /// A buffer that threads write by turns. The upper bits of an element say where it is, and the lower ones how often
  /// it was written.
  struct Shared {
    std::mutex turn;
    UnifiedBuffer<std::int32_t> buffer = UnifiedBuffer<std::int32_t>(0);
  };

  World(unsigned seed, std::vector<Device*> places) : devices(std::move(places)), pool({.manager = &manager}) {
    std::mt19937 draw(seed);
    for (auto* const one : devices) {
      if (!one->shares_storage_with_host()) {
        // The least has no room for what four threads use at once.
        manager.set_limit(*one, std::array<std::size_t, 4>{64, 96, 192, 1024}.at(draw() % 4) << 10);
      }
      constants.emplace_back(2000, on(*one));
      constants.back().copy_from(constant);
    }
    for (auto& one : shared) {
      one.buffer = UnifiedBuffer<std::int32_t>(500, on(*devices.at(draw() % devices.size())));
      std::vector<std::int32_t> positions(500);
      for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int32_t>(i * 256);
      one.buffer.copy_from(positions);
    }
  }

  BufferOptions on(Device& device) {
    BufferOptions options;
    options.manager = &manager;
    options.device = &device;
    return options;
  }

  std::vector<Device*> devices;
  MemoryManager manager;
  BufferPool pool;
  std::vector<std::int32_t> constant = [] {
    std::vector<std::int32_t> values(2000);
    std::iota(values.begin(), values.end(), -500);
    return values;
  }();
  std::vector<UnifiedBuffer<std::int32_t>> constants;
  std::array<Shared, 4> shared;
  std::atomic<std::size_t> wrapped{0};   ///< pieces of memory handed to buffers to keep
  std::atomic<std::size_t> returned{0};  ///< and given back
  Kernel add = Kernel("add").host([](WorkItem i, std::span<std::int32_t> x, std::int32_t a) { x[i.x] += a; });
  Kernel take = Kernel("take").host(
      [](WorkItem i, std::span<const std::int32_t> x, std::span<std::int32_t> y) { y[i.x] = x[i.x]; });
  Kernel turn = Kernel("turn").host(
      [](WorkItem i, std::span<std::int32_t> x) { x[i.x] = (x[i.x] & ~255) | ((x[i.x] + 1) & 255); });
  Kernel broken = Kernel("broken").host([](WorkItem i, std::span<std::int32_t> x) {
    x[i.x] = -77;
    if (i.x == x.size() / 2) throw OnPurpose("on purpose");
  });
};

bool are_in_their_places(std::span<const std::int32_t> seen) {
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if ((seen[i] & ~255) != static_cast<std::int32_t>(i * 256)) return false;
  }
  return true;
}

/// What one thread does: its buffers are its own, those of the world are everybody's.
class Program {
 public:
  Program(World& world, unsigned seed, std::atomic<char const*>& doing) : world_(world), draw_(seed), doing_(doing) {
    for (auto& one : pairs_) one = made();
  }

  /// Empty, or what went wrong.
  std::string run(std::size_t steps) {
    for (std::size_t step = 0; step < steps; ++step) {
      auto& pair = pairs_.at(draw_() % pairs_.size());
      auto const [name, act] = choices.at(draw_() % choices.size());
      doing_ = name;
      try {
        (this->*act)(pair);
      } catch (OutOfMemory const&) {  // NOLINT(bugprone-empty-catch): room is short
      } catch (std::exception const& error) {
        return fmt::format("step {}, {}: {}", step, name, error.what());
      }
    }
    doing_ = "the last look";
    for (auto& pair : pairs_) look(pair);
    doing_ = "done";
    return different_;
  }

 private:
  struct Pair {
    UnifiedBuffer<std::int32_t> buffer = UnifiedBuffer<std::int32_t>(0);
    std::vector<std::int32_t> model;
  };

  Pair made() {
    std::vector<std::int32_t> values(std::array<std::size_t, 4>{1, 7, 300, 2000}.at(draw_() % 4));
    for (auto& one : values) one = static_cast<std::int32_t>(draw_() % 2000);
    UnifiedBuffer<std::int32_t> buffer(values.size(), world_.on(device()));
    buffer.copy_from(values);
    return {std::move(buffer), std::move(values)};
  }
  Device& device() { return *world_.devices.at(draw_() % world_.devices.size()); }
  std::pair<std::size_t, std::size_t> part(Pair const& pair) {
    auto const begin = draw_() % pair.model.size();
    return {begin, 1 + draw_() % (pair.model.size() - begin)};
  }
  static auto within(Pair& pair, std::size_t begin, std::size_t count) {
    return std::span(pair.model).subspan(begin, count);
  }
  void expect(bool holds, char const* what) {
    if (!holds && different_.empty()) different_ = fmt::format("{} differs in {}", what, doing_.load());
  }

  void write_on_the_host(Pair& pair) {
    auto const [begin, count] = part(pair);
    std::ranges::fill(pair.buffer.host().subspan(begin, count), 5);
    std::ranges::fill(within(pair, begin, count), 5);
  }
  void write_through_a_slice(Pair& pair) {
    auto const [begin, count] = part(pair);
    auto slice = pair.buffer.slice(begin, count);
    std::ranges::fill(slice.host(), 6);
    std::ranges::fill(within(pair, begin, count), 6);
  }
  void fill(Pair& pair) {
    auto const [begin, count] = part(pair);
    pair.buffer.fill(7, begin, count);
    std::ranges::fill(within(pair, begin, count), 7);
  }
  void add(Pair& pair) {
    auto const [begin, count] = part(pair);
    launch(device().default_queue(), world_.add, Range{count}, readwrite(pair.buffer, begin, count), 2);
    for (auto& one : within(pair, begin, count)) one += 2;
  }
  void add_on_a_queue_that_goes(Pair& pair) {
    auto queue = device().create_queue();
    launch(queue, world_.add, Range{pair.model.size()}, readwrite(pair.buffer), 3);
    for (auto& one : pair.model) one += 3;
  }
  void take_what_all_read(Pair& pair) {
    auto& constant = world_.constants.at(draw_() % world_.constants.size());
    auto const count = pair.model.size();
    launch(device().default_queue(), world_.take, Range{count}, read(constant, 0, count), write(pair.buffer));
    std::copy_n(world_.constant.begin(), count, pair.model.begin());
  }
  void read_what_all_read(Pair& /*pair*/) {
    auto const& constant = world_.constants.at(draw_() % world_.constants.size());
    expect(std::ranges::equal(constant.host_view(), world_.constant), "what all read");
  }
  void turn_what_threads_share(Pair& /*pair*/) {
    auto& one = world_.shared.at(draw_() % world_.shared.size());
    std::lock_guard const turn(one.turn);
    launch(device().default_queue(), world_.turn, Range{500}, readwrite(one.buffer));
  }
  void read_what_threads_share(Pair& /*pair*/) {
    auto& one = world_.shared.at(draw_() % world_.shared.size());
    std::lock_guard const turn(one.turn);
    expect(are_in_their_places(one.buffer.to_vector()), "what threads share");
  }
  void look_from_a_kernel(Pair& pair) {
    bool const own = draw_() % 4 == 0;
    auto* const theirs = own ? &pair.buffer : &world_.shared.at(draw_() % world_.shared.size()).buffer;
    std::atomic<bool> good{true};
    auto const looking = Kernel("look").host([&](WorkItem i, std::span<std::int32_t> x) {
      x[i.x] += 1;
      if (i.x != 0) return;
      try {
        auto const seen = theirs->to_vector();
        if (!own && !are_in_their_places(seen)) good = false;
      } catch (UnsupportedOperation const&) {  // NOLINT(bugprone-empty-catch): it would have waited for itself
      }
    });
    launch(device().default_queue(), looking, Range{pair.model.size()}, readwrite(pair.buffer)).wait();
    for (auto& one : pair.model) one += 1;
    expect(good, "what a kernel saw");
  }
  void fail(Pair& pair) {
    pair.buffer.synchronize();
    auto& on = device();
    auto const event = launch(on.default_queue(), world_.broken, Range{pair.model.size()}, readwrite(pair.buffer));
    bool failed = false;
    try {
      event.wait();
    } catch (OnPurpose const&) {
      failed = true;
    }
    expect(failed, "a failure");
    try {
      std::ignore = pair.buffer.to_vector();
      expect(false, "what is told of a failure");
    } catch (OnPurpose const&) {  // NOLINT(bugprone-empty-catch): told once more
    }
    try {
      expect(pair.buffer.to_vector() == pair.model, "the last good copy");
    } catch (DataLost const&) {
      if (!on.shares_storage_with_host()) throw;
      pair.buffer.copy_from(pair.model);
    }
  }
  void drop_while_work_runs(Pair& pair) {
    launch(device().default_queue(), world_.add, Range{pair.model.size()}, readwrite(pair.buffer), 1);
    pair = made();
  }
  void free_while_work_runs(Pair& pair) {
    launch(device().default_queue(), world_.add, Range{pair.model.size()}, readwrite(pair.buffer), 1);
    pair.buffer.free();
    std::ranges::fill(pair.model, 9);
    pair.buffer.copy_from(pair.model);
  }
  void resize(Pair& pair) {
    auto const count = std::array<std::size_t, 4>{1, 7, 300, 2000}.at(draw_() % 4);
    auto const kept = std::min(count, pair.model.size());
    pair.buffer.resize(count);
    if (kept < count) pair.buffer.fill(0, kept, count - kept);
    pair.model.resize(kept);
    pair.model.resize(count, 0);
  }
  void wrap(Pair& /*pair*/) {
    auto memory = std::make_unique<std::vector<std::int32_t>>(300, 4);
    auto* const kept = memory.get();
    ++world_.wrapped;
    auto buffer = world_.manager.wrap<std::int32_t>(kept->data(), kept->size(), Location::host,
                                                    Ownership::take([&world = world_, kept](void*) {
                                                      // Another thread's eviction may be what lets go last, after this
                                                      // program.
                                                      delete kept;  // NOLINT(cppcoreguidelines-owning-memory)
                                                      ++world.returned;
                                                    }));
    std::ignore = memory.release();
    launch(device().default_queue(), world_.add, Range{300}, readwrite(buffer), 1);
    if (draw_() % 2 == 0) expect(std::ranges::count(buffer.host_view(), 5) == 300, "wrapped memory");
  }
  void use_the_pool(Pair& /*pair*/) {
    auto lent = world_.pool.acquire<std::int32_t>({300});
    lent.fill(10);
    launch(device().default_queue(), world_.add, Range{300}, readwrite(lent), 1);
    if (draw_() % 2 == 0) expect(std::ranges::count(lent.to_vector(), 11) == 300, "a pooled buffer");
    world_.pool.release(lent);
  }
  void look(Pair& pair) { expect(pair.buffer.to_vector() == pair.model, "a buffer"); }
  void move(Pair& pair) {
    switch (draw_() % 4) {
      case 0:
        pair.buffer.sync_to_device(device());
        break;
      case 1:
        pair.buffer.prefetch(device());
        break;
      case 2:
        pair.buffer.release_device();
        break;
      default:
        world_.manager.cleanup();
    }
  }

  using Act = void (Program::*)(Pair&);
  struct Choice {
    char const* name;
    Act act;
  };
  static constexpr std::array choices{Choice{"write_on_the_host", &Program::write_on_the_host},
                                      Choice{"write_through_a_slice", &Program::write_through_a_slice},
                                      Choice{"fill", &Program::fill},
                                      Choice{"add", &Program::add},
                                      Choice{"add again", &Program::add},
                                      Choice{"add_on_a_queue_that_goes", &Program::add_on_a_queue_that_goes},
                                      Choice{"take_what_all_read", &Program::take_what_all_read},
                                      Choice{"read_what_all_read", &Program::read_what_all_read},
                                      Choice{"turn_what_threads_share", &Program::turn_what_threads_share},
                                      Choice{"read_what_threads_share", &Program::read_what_threads_share},
                                      Choice{"look_from_a_kernel", &Program::look_from_a_kernel},
                                      Choice{"fail", &Program::fail},
                                      Choice{"drop_while_work_runs", &Program::drop_while_work_runs},
                                      Choice{"free_while_work_runs", &Program::free_while_work_runs},
                                      Choice{"resize", &Program::resize},
                                      Choice{"wrap", &Program::wrap},
                                      Choice{"use_the_pool", &Program::use_the_pool},
                                      Choice{"look", &Program::look},
                                      Choice{"move", &Program::move}};

  World& world_;
  std::mt19937 draw_;
  std::atomic<char const*>& doing_;
  std::array<Pair, 4> pairs_;
  std::string different_;
};

class RandomPrograms : public ::testing::TestWithParam<std::vector<char const*>> {};

TEST_P(RandomPrograms, EndAndHoldWhatVectorsHold) {
  auto const wanted = environment("UNIMEM_TEST_SEED");
  auto seed = wanted ? static_cast<unsigned>(std::stoul(*wanted)) : std::random_device{}();
  fmt::print("UNIMEM_TEST_SEED={}\n", seed);
  std::vector<Device*> devices;
  for (auto const* const id : GetParam()) devices.push_back(&device(id));
  constexpr std::size_t steps = 200;
  for (std::size_t done = 0; done < operations(); done += steps, ++seed) {
    std::array<std::atomic<char const*>, thread_count> doing{"", "", "", ""};
    std::array<std::string, thread_count> wrong;
    Watchdog const watchdog(seed, doing);
    auto const begin = std::chrono::steady_clock::now();
    World world(seed, devices);
    {
      std::vector<std::jthread> threads;
      for (unsigned i = 0; i < thread_count; ++i) {
        threads.emplace_back([&, i] {
          try {
            wrong.at(i) = Program(world, seed * 31 + i, doing.at(i)).run(steps);
          } catch (std::exception const& error) {
            wrong.at(i) = error.what();
          }
        });
      }
    }
    for (auto const& one : wrong) ASSERT_EQ(one, "") << "seed " << seed;
    ASSERT_LT(std::chrono::steady_clock::now() - begin, suspicious) << "seed " << seed;
    for (auto& one : world.shared) ASSERT_TRUE(are_in_their_places(one.buffer.to_vector())) << "seed " << seed;
    for (auto* const one : devices) one->synchronize();
    ASSERT_EQ(world.wrapped, world.returned) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(On, RandomPrograms,
                         ::testing::Values(std::vector<char const*>{"cpu"},
                                           std::vector<char const*>{"sim:memory=16MiB", "sim:memory=17MiB"},
                                           std::vector<char const*>{"cpu", "sim:memory=16MiB", "sim:memory=17MiB"}),
                         [](auto const& info) {
                           return std::string(info.index == 0 ? "cpu" : info.index == 1 ? "sim" : "both");
                         });

}  // namespace
}  // namespace unimem::testing
