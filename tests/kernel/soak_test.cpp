#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/detail/environment.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/launch.hpp>

#include "core/sizes.hpp"
#include "device/temporary_folder.hpp"
#include "resident_bytes.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// A bounded program that goes on for as long as it is asked to: buffers are made, written, launched on, copied, moved,
// evicted, spilled and dropped on three devices, one of which keeps failing, by threads that compare all contents with
// vectors. Between rounds nothing is left, and what the process holds then must not grow.

namespace unimem::testing {
namespace {

using Clock = std::chrono::steady_clock;
using Words = std::vector<std::uint32_t>;

constexpr std::array names{"drop", "fault", "compare", "launch",         "launch",       "launch", "write", "fill",
                           "copy", "map",   "sync",    "release_device", "release_host", "resize", "clone", "optimize"};

constexpr std::size_t thread_count = 2, slot_count = 12, most_words = MiB / 4;

/// Seconds that are not looked at, and those that are (UNIMEM_SOAK_SECONDS="600+600"); without a second number there is
/// no judging of slopes.
struct Length {
  double warming = 3;
  std::optional<double> measured{};
};

Length length() {
  auto const wanted = environment("UNIMEM_SOAK_SECONDS");
  if (!wanted) return {};
  Length chosen;
  std::size_t used = 0;
  chosen.warming = std::stod(*wanted, &used);
  if (used < wanted->size()) chosen.measured = std::stod(wanted->substr(used + 1));
  return chosen;
}

struct Sample {
  double seconds = 0;
  std::size_t resident_bytes = 0;
  std::size_t allocated_bytes = 0;  ///< by malloc, and not freed
  std::size_t descriptors = 0;
  std::size_t threads = 0;
};

/// After malloc has handed back what it keeps for later: how much that is depends on where in its heaps the last blocks
/// lie.
Sample sample(double seconds) {
  ::malloc_trim(0);
  Sample taken{seconds, 0, ::mallinfo2().uordblks, 0, 0};
  taken.resident_bytes = testing::resident_bytes();
  auto const entries = [](char const* folder) {
    std::filesystem::directory_iterator const all(folder);
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
  };
  taken.descriptors = entries("/proc/self/fd");
  taken.threads = entries("/proc/self/task");
  return taken;
}

/// By least squares, over all of the time, in parts of the mean.
double rise_of(std::span<const Sample> samples) {
  double const n = static_cast<double>(samples.size());
  double mean_x = 0, mean_y = 0, covariance = 0, variance = 0;
  for (auto const& one : samples) {
    mean_x += one.seconds / n;
    mean_y += static_cast<double>(one.resident_bytes) / n;
  }
  for (auto const& one : samples) {
    covariance += (one.seconds - mean_x) * (static_cast<double>(one.resident_bytes) - mean_y);
    variance += (one.seconds - mean_x) * (one.seconds - mean_x);
  }
  return variance == 0 ? 0 : covariance / variance * (samples.back().seconds - samples.front().seconds) / mean_y;
}

/// What all threads share.
struct World {
  Clock::time_point const begin = Clock::now();
  TemporaryFolder folder;
  Device& tight = make_sim({.memory_bytes = 3 * MiB, .latency = std::chrono::microseconds(2)});
  Device& shaky = make_sim({.memory_bytes = 4 * MiB});
  /// OpenCL's, but where memory is judged: what PoCL keeps for itself goes up and down by some percent.
  Device& third;
  static Device& opencl_or_sim(bool judged) {
    for (Device& one : devices()) {
      if (one.backend() == Backend::opencl && !judged) return one;
    }
    return make_sim({.memory_bytes = 3 * MiB});
  }
  std::array<Device*, 3> all{&tight, &shaky, &third};
  MemoryManager manager{ManagerOptions{.spill = {.directory = folder.path().string()}}};
  Kernel add = Kernel("add")
                   .source(
                       "UNIMEM_KERNEL add(UNIMEM_BUFFER(unimem_u32, x), unimem_u32 a) {"
                       " UNIMEM_DATA(unimem_u32, x)[UNIMEM_ITEM_X] += a; }")
                   .host([](WorkItem i, std::span<std::uint32_t> x, std::uint32_t a) { x[i.x] += a; });
  std::atomic<std::size_t> operations{0}, failures{0}, lost{0}, compared{0};

  explicit World(bool judged) : third(opencl_or_sim(judged)) {
    manager.set_limit(device("cpu"), Location::host, 3 * MiB);
    manager.set_limit(third, Location::device, 3 * MiB);
  }
};

/// Fills what each queue keeps of its latest failures, which is bounded and takes long where work seldom fails.
void fail_often(World& world) {
  for (Device* const device : world.all) {
    for (int i = 0; i < 300; ++i) {
      UnifiedBuffer<std::uint32_t> buffer(16, {.manager = &world.manager, .device = device});
      buffer.fill(0);
      set_sim_faults(*device, {.fail_run = 1});
      auto const ended = launch(device->default_queue(), world.add, Range{buffer.size()}, readwrite(buffer), 1U);
      if (!ended.wait_for_error()) throw std::logic_error("a run that was to fail did not");
    }
    set_sim_faults(*device, {});
  }
}

class Worker {
 public:
  Worker(World& world, unsigned seed) : world_(world), random_(seed), seen_(most_words), data_(most_words) {
    for (auto& slot : slots_) {  // what the test itself takes must not move
      slot.truth.reserve(most_words);
      slot.after.reserve(most_words);
    }
  }

  void step() {
    ++world_.operations;
    auto& slot = slots_[below(slot_count)];
    if (!slot.buffer) return make(slot);
    auto const kind = below(16);
    if (kind == 0) return static_cast<void>(slot.buffer.reset());
    if (kind == 1) return fault();
    if (kind == 2) return compare(slot);
    changed_ = false;
    doing_ =
        fmt::format("{:.6f} {}", std::chrono::duration<double>(Clock::now() - world_.begin).count(), names.at(kind));
    try {
      change(slot, kind);
      if (changed_) slot.truth.swap(slot.after);
      slot.history.push_back(doing_);
    } catch (Error const& error) {
      ++world_.failures;
      slot.history.push_back(doing_ + ": " + error.what());
      compare(slot);  // with what it was
    }
  }

  void end_round() {
    for (auto& slot : slots_) {
      if (slot.buffer) compare(slot);
      slot.buffer.reset();
    }
  }

 private:
  struct Slot {
    std::optional<UnifiedBuffer<std::uint32_t>> buffer;
    Words truth, after;
    std::vector<std::string> history;  ///< of the buffer
  };

  std::size_t below(std::size_t end) { return random_() % end; }
  Device& any_device() { return *world_.all[below(world_.all.size())]; }
  std::span<const std::uint32_t> any_data(std::size_t count) {
    std::iota(data_.begin(), data_.begin() + static_cast<std::ptrdiff_t>(count), static_cast<std::uint32_t>(random_()));
    return std::span(data_).first(count);
  }

  void make(Slot& slot) {
    BufferOptions options;
    options.manager = &world_.manager;
    options.device = &any_device();
    options.pinned = below(8) == 0;
    options.name = fmt::format("slot {}", &slot - slots_.data());
    auto const count = std::size_t{1} << (4 + below(15));
    auto const data = any_data(count);
    try {
      slot.history.assign(
          {fmt::format("made of {} words for {}{}", count, options.device->id(), options.pinned ? ", pinned" : "")});
      slot.buffer.emplace(count, options);
      slot.truth.assign(count, 0);
      slot.buffer->fill(0);
      slot.buffer->copy_from(data);
      slot.truth.assign(data.begin(), data.end());
    } catch (Error const&) {
      ++world_.failures;
      slot.buffer.reset();
    }
  }

  /// Something of the shaky device's is going to fail, or it is gone until the next fault.
  void fault() {
    auto const soon = 1 + below(20);
    switch (below(6)) {
      case 0:
        return set_sim_faults(world_.shaky, {.fail_allocation = soon});
      case 1:
        return set_sim_faults(world_.shaky, {.fail_upload = soon});
      case 2:
        return set_sim_faults(world_.shaky, {.fail_download = soon});
      case 3:
        return set_sim_faults(world_.shaky, {.fail_run = soon});
      case 4:
        return set_sim_faults(world_.shaky, {.fail_call = soon});
      default:
        return set_sim_faults(world_.shaky, {.lose_after = soon});
    }
  }

  /// The slot's `after` is what it is to be if this ends well and `changed_` says so.
  void change(Slot& slot, std::size_t kind) {
    auto& buffer = *slot.buffer;
    auto const count = buffer.size();
    auto const become = [&]() -> Words& {
      changed_ = true;
      slot.after.assign(slot.truth.begin(), slot.truth.end());
      return slot.after;
    };
    switch (kind) {
      case 3:
      case 4:
      case 5: {
        auto const amount = static_cast<std::uint32_t>(random_());
        for (auto& word : become()) word += amount;
        auto& on = any_device();
        doing_ += fmt::format(" on {}, adding {}", on.id(), amount);
        return ended(launch(on.default_queue(), world_.add, Range{count}, readwrite(buffer), amount));
      }
      case 6: {
        auto const offset = below(count), part = 1 + below(count - offset);
        auto const data = any_data(part);
        std::ranges::copy(data, become().begin() + static_cast<std::ptrdiff_t>(offset));
        return buffer.copy_from(data, offset);
      }
      case 7: {
        auto const value = static_cast<std::uint32_t>(random_());
        std::ranges::fill(become(), value);
        return ended(buffer.fill_async(value));
      }
      case 8: {
        auto& other = slots_[below(slot_count)];
        if (!other.buffer || &other == &slot) return;
        auto const part = std::min(count, other.buffer->size());
        doing_ += fmt::format(" of {} words, the first {}, {} of {} ({})", part, other.truth.front(),
                              to_string(other.buffer->state()), other.buffer->size(), other.history.front());
        std::copy_n(other.truth.begin(), part, become().begin());
        return ended(copy_async(other.buffer->slice(0, part), buffer.slice(0, part)));
      }
      case 9: {
        auto mapped = buffer.map(MapMode::read_write);
        auto& after = become();
        for (std::size_t i = 0; i < count; i += 7) after[i] = mapped.data()[i] += 3;
        slot.truth.swap(after);  // it is written now, whatever unmapping tells of earlier work
        changed_ = false;
        return mapped.unmap();
      }
      case 10: {
        auto& on = any_device();
        doing_ += " " + std::string(on.id());
        return buffer.sync_to_device(on);
      }
      case 11:
        return buffer.release_device();
      case 12:
        return buffer.release_host();
      case 13: {
        become().resize(std::max<std::size_t>(count / 2, 1));
        slot.buffer->resize(std::max<std::size_t>(count / 2, 1));
        return;
      }
      case 14: {
        auto [copied, event] = buffer.clone_async();
        ended(event);
        slot.buffer.emplace(std::move(copied));
        return;
      }
      default:
        return static_cast<void>(world_.manager.optimize());
    }
  }

  static void ended(Event event) {
    if (auto const failure = event.wait_for_error()) std::rethrow_exception(failure);
  }

  void expect_equal(Slot& slot, std::span<const std::uint32_t> seen) {
    auto const [at, expected] = std::ranges::mismatch(seen, slot.truth);
    if (at == seen.end() && expected == slot.truth.end()) return;
    auto text = fmt::format("wrong contents of {} words:", seen.size());
    // Pieces of the same difference, which is what an operation's loss or repetition looks like.
    for (std::size_t i = 0, pieces = 0; i < seen.size() && pieces < 8;) {
      auto const difference = seen[i] - slot.truth[i];
      auto const begin = i;
      while (i < seen.size() && seen[i] - slot.truth[i] == difference) ++i;
      if (difference == 0) continue;
      text += fmt::format("\n  [{}, {}) from {} instead of {}, {} too much", begin, i, seen[begin], slot.truth[begin],
                          difference);
      ++pieces;
    }
    text += fmt::format("\n  {}, valid on the host {}", to_string(slot.buffer->state()), slot.buffer->valid_on_host());
    std::vector<std::uint32_t> again(seen.size());
    slot.buffer->copy_to(again);
    text += again == slot.truth               ? "\n  read again, it is right"
            : std::ranges::equal(again, seen) ? "\n  read again, it is the same"
                                              : "\n  read again, it is something else";
    for (auto const& one : slot.history) text += "\n  " + one;
    throw std::logic_error(text);
  }

  /// Reads until it succeeds: what has failed is told first, and faults come once, unless the device is gone.
  void compare(Slot& slot) {
    for (int tries = 0; tries < 1000; ++tries) {
      try {
        auto const seen = std::span(seen_).first(slot.buffer->size());
        slot.buffer->copy_to(seen);
        ++world_.compared;
        expect_equal(slot, seen);
        slot.history.push_back("compare");
        return;
      } catch (DataLost const&) {  // a kernel failed on the only copy
        ++world_.lost;
        slot.buffer.reset();
        return;
      } catch (Error const& error) {
        slot.history.push_back(std::string("compare: ") + error.what());
        set_sim_faults(world_.shaky, {});
      }
    }
    throw std::logic_error("cannot be read: " + std::string(slot.buffer->name()));
  }

  std::string doing_;
  World& world_;
  std::mt19937 random_;
  std::array<Slot, slot_count> slots_;
  Words seen_, data_;
  bool changed_ = false;
};

TEST(Soak, WhatAProgramHoldsDoesNotGrow) {
  auto const wanted = length();
  auto const seed = std::random_device{}();
  fmt::print("seed {}\n", seed);
  constexpr int steps = 300;
  World world(wanted.measured.has_value());
  if (wanted.measured) fail_often(world);
  std::vector<Worker> workers;
  for (unsigned i = 0; i < thread_count; ++i) workers.emplace_back(world, seed + i);
  std::vector<Sample> samples;
  samples.reserve(static_cast<std::size_t>(5 * (wanted.warming + wanted.measured.value_or(0) + 10)));
  std::atomic<bool> over{false};
  std::string failure;
  auto const begin = Clock::now();
  auto last_told = begin;
  auto const total = wanted.warming + wanted.measured.value_or(0);
  // What is made once, when it is first needed, is there by then.
  auto const is_warm = [&](Sample const& one) { return one.seconds >= wanted.warming / 2; };
  auto const between_rounds = [&]() noexcept {
    auto const now = Clock::now();
    auto const seconds = std::chrono::duration<double>(now - begin).count();
    set_sim_faults(world.shaky, {});
    // A round takes a second where the machine is busy and the code instrumented: so long as it takes to judge by some.
    over = over || (seconds > total && std::ranges::count_if(samples, is_warm) > 2);
    if (!samples.empty() && seconds < samples.back().seconds + 0.25) return;
    world.manager.cleanup();
    samples.push_back(sample(seconds));
    if (now - last_told > std::chrono::seconds(10)) {
      last_told = now;
      auto const& one = samples.back();
      fmt::print("{:6.0f} s {:8} KiB {:8} KiB allocated {:3} descriptors {:3} threads {:9} operations {:7} failures\n",
                 one.seconds, one.resident_bytes / KiB, one.allocated_bytes / KiB, one.descriptors, one.threads,
                 world.operations.load(), world.failures.load());
      std::fflush(stdout);
    }
  };
  std::barrier round(thread_count, between_rounds);
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (auto& worker : workers) {
    threads.emplace_back([&] {
      while (!over) {
        try {
          for (int i = 0; i < steps; ++i) worker.step();
          worker.end_round();
        } catch (std::exception const& error) {
          std::lock_guard const lock{mutex};
          failure = error.what();
          over = true;
        }
        round.arrive_and_wait();
      }
    });
  }
  for (auto& one : threads) one.join();
  ASSERT_EQ(failure, "");

  fmt::print("{} operations, {} failures, {} contents compared, {} lost by failed kernels, {} samples\n",
             world.operations.load(), world.failures.load(), world.compared.load(), world.lost.load(), samples.size());
  auto const counts = world.manager.statistics();
  fmt::print("{} reclaims, {} spills, {} restores, {} waits, {} refusals\n", counts.reclaims, counts.spills,
             counts.restores, counts.waits, counts.refusals);
  EXPECT_GT(world.failures, 0U);
  EXPECT_GT(counts.reclaims, 0U);
  EXPECT_GT(counts.spills, 0U);
  EXPECT_GT(counts.restores, 0U);
  EXPECT_EQ(counts.active_bytes, 0U);
  EXPECT_EQ(counts.spill_file_bytes, 0U);

  std::erase_if(samples, [&](Sample const& one) { return !is_warm(one); });
  ASSERT_GT(samples.size(), 2U);
  auto const descriptors = std::ranges::minmax(samples, {}, &Sample::descriptors);
  EXPECT_EQ(descriptors.min.descriptors, descriptors.max.descriptors);
  if (!wanted.measured) return;
  std::erase_if(samples, [&](Sample const& one) { return one.seconds < wanted.warming; });
  auto const threads_seen = std::ranges::minmax(samples, {}, &Sample::threads);
  EXPECT_EQ(threads_seen.min.threads, threads_seen.max.threads);
  auto const rise = rise_of(samples);
  fmt::print("resident memory rises by {:.3f} % in {:.0f} s\n", 100 * rise, *wanted.measured);
  EXPECT_LE(rise, 0.001);
}

}  // namespace
}  // namespace unimem::testing
