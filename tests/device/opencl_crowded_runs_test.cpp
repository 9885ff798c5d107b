#include "device/opencl_fixture.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

namespace unimem {
namespace {

// Runs of one kernel in several queues at once, on more threads than two cores would give PoCL. Without the order that
// PoCL needs (PoclRunOrder) these tests end the process: pocl_release_dlhandle_cache, found->ref_count > 0.

// Also where the program is started by hand. PoCL reads it when it is first used.
[[maybe_unused]] int const threads_chosen = setenv("POCL_MAX_PTHREAD_COUNT", "4", 1);

using OpenClCrowdedRuns = OpenClTest;

/// v → factor · v + summand, `count` times.
std::uint32_t stepped(std::uint32_t value, std::uint32_t count) {
  // By squaring the step: a host of few cores has better to do.
  std::uint32_t factor = 1664525, summand = 1013904223;
  for (; count != 0; count >>= 1U) {
    if ((count & 1U) != 0) value = factor * value + summand;
    summand = (factor + 1) * summand;
    factor *= factor;
  }
  return value;
}

constexpr std::uint32_t nearly_forever = 100'000'000, moment = 1000;

/// A kernel of that name that makes each item of its range take `steps` steps.
std::shared_ptr<Program const> stepping(Device& device, std::string const& name) {
  return compile(device, name, "UNIMEM_KERNEL " + name + R"((UNIMEM_BUFFER(unimem_u32, x), unimem_u32 steps) {
    unimem_u32 v = UNIMEM_DATA(unimem_u32, x)[UNIMEM_ITEM_X];
    for (unimem_u32 i = 0; i < steps; ++i) v = v * 1664525u + 1013904223u;
    UNIMEM_DATA(unimem_u32, x)[UNIMEM_ITEM_X] = v;
  })");
}

/// A run over words of its own, in a queue of its own.
class Stepping {
 public:
  Stepping(Device& device, DeviceMemory memory) : queue_(device.create_queue()), memory_(memory) {
    for (std::size_t i = 0; i < memory.bytes / 4; ++i) expected_.push_back(static_cast<std::uint32_t>(i * 2654435761U));
    queue_.upload(memory_, expected_.data(), memory_.bytes).wait();
  }

  void run(std::shared_ptr<Program const> const& program, std::size_t items, std::uint32_t steps) {
    queue_.run(program, {items}, std::vector{argument(memory_), scalar(steps)});
    for (std::size_t i = 0; i < items; ++i) expected_[i] = stepped(expected_[i], steps);
  }

  void expect_right() {
    std::vector<std::uint32_t> values(expected_.size());
    queue_.download(values.data(), memory_, memory_.bytes).wait();
    EXPECT_EQ(values, expected_);
  }

 private:
  Queue queue_;
  DeviceMemory memory_;
  std::vector<std::uint32_t> expected_;
};

TEST_F(OpenClCrowdedRuns, AWiderRunMayFollowNarrowOnes) {
  auto const program = stepping(device(), "widening");
  std::vector<Stepping> all;
  for (int i = 0; i < 4; ++i) all.emplace_back(device(), take(device(), 4096));
  for (std::size_t i = 0; i < 3; ++i) all[i].run(program, 1, nearly_forever);
  all[3].run(program, 50, moment);
  for (auto& one : all) one.expect_right();
}

TEST_F(OpenClCrowdedRuns, AnOddRunMayFollowAFewItems) {
  auto const program = stepping(device(), "odd");
  std::vector<Stepping> all;
  for (int i = 0; i < 4; ++i) all.emplace_back(device(), take(device(), 4096));
  for (std::size_t i = 0; i < 3; ++i) all[i].run(program, 1, nearly_forever);
  all[3].run(program, 257, moment);  // the last item is a run of its own, from 256 on
  for (auto& one : all) one.expect_right();
}

TEST_F(OpenClCrowdedRuns, AWiderRunMayComeInAnotherContext) {
  static Device& other = kept(detail::open_opencl_device(0, "zero_copy=0"));
  auto const program = stepping(device(), "elsewhere"), far = stepping(other, "elsewhere");
  std::vector<Stepping> all;
  for (int i = 0; i < 3; ++i) all.emplace_back(device(), take(device(), 4096));
  all.emplace_back(other, take(other, 4096));
  for (std::size_t i = 0; i < 3; ++i) all[i].run(program, 1, nearly_forever);
  all[3].run(far, 50, moment);
  for (auto& one : all) one.expect_right();
}

TEST_F(OpenClCrowdedRuns, PlainKernelsMayWidenToo) {
  auto const program = compile(device(), "plain", R"(
    __kernel void plain(__global uint* x, uint steps) {
      uint v = x[get_global_id(0)];
      for (uint i = 0; i < steps; ++i) v = v * 1664525u + 1013904223u;
      x[get_global_id(0)] = v;
    })");
  std::vector<Stepping> all;
  for (int i = 0; i < 4; ++i) all.emplace_back(device(), take(device(), 4096));
  for (std::size_t i = 0; i < 3; ++i) all[i].run(program, 127, nearly_forever / 100);
  all[3].run(program, 127 * 3, moment);  // both in groups of 127
  for (auto& one : all) one.expect_right();
}

TEST_F(OpenClCrowdedRuns, ManyThreadsRunWhatSizesTheyLike) {
  auto const seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  constexpr unsigned threads = 6, kernels = 8, rounds = 12;
  // Several kernels: what PoCL counts too little for one may be what it has counted too much before.
  std::vector<std::shared_ptr<Program const>> programs;
  for (unsigned i = 0; i < kernels; ++i) programs.push_back(stepping(device(), "crowded" + std::to_string(i)));
  std::vector<Stepping> all;
  for (unsigned i = 0; i < threads; ++i) all.emplace_back(device(), take(device(), 4096));
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      std::minstd_rand random{seed + t};
      for (auto const& program : programs) {
        for (unsigned round = 0; round < rounds; ++round) {
          auto const items = 1 + random() % (round < 4 ? 10 : 700);
          all[t].run(program, items, static_cast<std::uint32_t>(random() % 3'000'000 / items));
        }
        all[t].expect_right();
      }
    });
  }
  for (auto& worker : workers) worker.join();
  for (auto& one : all) one.expect_right();
}

}  // namespace
}  // namespace unimem
