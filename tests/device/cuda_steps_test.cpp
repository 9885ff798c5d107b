#include <unimem/core/error.hpp>

#include "core/sizes.hpp"
#include "device/conformance_fixture.hpp"
#include "device/cuda/driver.hpp"
#include "device/cuda_fixture.hpp"
#include "device/pieces.hpp"
#include "device/reserved_pages.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <vector>

// Steps of `./dev gpu` that are of a size, or of a setting, of their own. On the stand-in they run with little of
// everything: that they are right is shown there, and on a GPU that a driver bears it. A line that begins with "step: "
// goes into the table.

namespace unimem {
namespace {

using Seconds = std::chrono::duration<double>;
using std::chrono::steady_clock;

/// Whether the driver is the stand-in, under whatever name the tests know it: its memory is the machine's.
bool is_standin(Device& gpu) {
  return gpu.info().name.find("Stand-in") != std::string::npos;
}

detail::cuda::Driver const& driver() {
  static auto const loaded = detail::cuda::load_driver();
  return loaded.driver;
}

class CudaSteps : public OnStandIn {};

// The first of the program: later ones have made contexts.
TEST_F(CudaSteps, ListingMakesNoContext) {
  std::size_t gpus = 0;
  for (Device const& each : devices()) {
    if (each.backend() != Backend::cuda) continue;
    ++gpus;
    EXPECT_GT(each.info().total_bytes, 0U);
    EXPECT_FALSE(each.info().name.empty());
    static_cast<void>(each.hardware_id());
  }
  ASSERT_GT(gpus, 0U);
  ASSERT_NE(driver().cuDevicePrimaryCtxGetState, nullptr);
  int count = 0;
  ASSERT_EQ(driver().cuDeviceGetCount(&count), detail::cuda::Result::success);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    detail::cuda::Device gpu = 0;
    unsigned flags = 0;
    int active = -1;
    ASSERT_EQ(driver().cuDeviceGet(&gpu, ordinal), detail::cuda::Result::success);
    ASSERT_EQ(driver().cuDevicePrimaryCtxGetState(gpu, &flags, &active), detail::cuda::Result::success);
    EXPECT_EQ(active, 0) << "of device " << ordinal;
  }
  detail::cuda::Context current = nullptr;
  EXPECT_EQ(driver().cuCtxGetCurrent(&current), detail::cuda::Result::success);
  EXPECT_EQ(current, nullptr);
}

// `./dev gpu` says CUDA_DEVICE_MAX_CONNECTIONS=1 for it. What streams wait for is never what the other thread does.
TEST_F(CudaSteps, StreamsStayInOrderWhileAnotherThreadFreesPinsCompilesAndCopies) {
  auto& gpu = device(first_gpu());
  auto& plain = device(first_gpu("allocator=plain"));
  auto& cpu = device("cpu");
  bool const little = is_standin(gpu);
  std::size_t const rounds = little ? 20 : 300, streams = 8, words = 1024, compiled = little ? 2 : 12;
  auto const add = gpu.compile(add_kernel());
  auto const add_on_host = cpu.compile(add_kernel());

  std::atomic<bool> done = false;
  std::size_t turns = 0;
  std::string problem;
  std::jthread disturbs{[&] {
    try {
      auto queue = plain.create_queue();
      for (std::size_t turn = 0; !done || turn == 0; turn = ++turns) {
        Allocated const freed{plain, 64 * KiB + turn % 7 * 4096};
        Allocated const pinned{cpu, 64 * KiB, Location::pinned};
        if (turn < compiled) {
          auto source = add_kernel();
          source.source += "\n// step " + std::to_string(turn);
          static_cast<void>(plain.compile(source));
        }
        auto* const host = reinterpret_cast<std::byte*>(pinned.memory().object);
        std::fill_n(host, 64 * KiB, std::byte(turn));
        queue.upload(freed.window(0, 64 * KiB), host, 64 * KiB);
        Bytes back(64 * KiB);
        queue.download(back.data(), freed.window(0, 64 * KiB), back.size()).wait();
        if (back != repeated(64 * KiB, static_cast<unsigned char>(turn))) problem = "wrong bytes came back";
      }
    } catch (std::exception const& failure) {
      problem = failure.what();
    }
  }};

  {
    std::vector<Queue> queues;
    for (std::size_t i = 0; i < streams; ++i) queues.push_back(gpu.create_queue());
    auto host_queue = cpu.create_queue();
    Allocated const there{gpu, words * 4}, host{cpu, words * 4, Location::pinned};
    queues[0].fill(there.memory(), repeated(1, 0)).wait();
    auto* const counted = reinterpret_cast<std::uint32_t*>(host.memory().object);
    std::fill_n(counted, words, 0U);
    std::array const on_gpu{memory_argument(there.memory()), scalar_argument(std::uint32_t{1})};
    std::array const on_host{memory_argument(host.memory()), scalar_argument(std::uint32_t{1})};
    // From stream to stream and by way of the host, each behind the one before it.
    for (std::size_t round = 0; round < rounds; ++round) {
      Event before;
      for (auto& queue : queues) {
        queue.wait(before);
        before = queue.run(add, Range{words}, on_gpu);
      }
      queues[0].wait(before);
      queues[0].download(counted, there.memory(), words * 4);
      host_queue.wait(queues[0].record());
      queues[1].wait(host_queue.run(add_on_host, Range{words}, on_host));
      queues[1].upload(there.memory(), counted, words * 4);
      queues[0].wait(queues[1].record());
    }
    queues[0].download(counted, there.memory(), words * 4).wait();
    EXPECT_TRUE(std::ranges::all_of(std::span{counted, words},
                                    [&](std::uint32_t each) { return each == rounds * (streams + 1); }))
        << counted[0] << " and not " << rounds * (streams + 1);
  }
  done = true;
  disturbs.join();
  EXPECT_EQ(problem, "");
  std::printf("step: %zu rounds over %zu streams, %zu turns of the other thread\n", rounds, streams, turns);
}

TEST_F(CudaSteps, SixtyThousandPinnedPiecesGoAgainAndAgain) {
  auto& gpu = device(first_gpu());
  bool const little = is_standin(gpu);
  std::size_t const count = 60'000, stride = 96, rounds = little ? 2 : 1000;
  constexpr Seconds at_most{45};
  Allocated const pinned{device("cpu"), count * stride, Location::pinned}, there{gpu, count * stride};
  auto* const memory = reinterpret_cast<std::byte*>(pinned.memory().object);
  std::vector<CopyPiece> pieces;
  for (std::size_t i = 0; i < count; ++i) pieces.push_back({i * stride + i % 7, i * stride + i % 5, 32 + i % 33});
  auto queue = gpu.create_queue();
  auto const begin = steady_clock::now();
  std::size_t round = 0;
  while (round < rounds && steady_clock::now() - begin < at_most) {
    bool const looks = round % 100 == 0;
    auto const news = looks ? noise(count * stride, static_cast<unsigned>(round)) : Bytes{};
    if (looks) {
      std::ranges::copy(news, memory);
      queue.fill(there.memory(), repeated(1, 0));
    }
    queue.upload(there.memory(), memory, pieces).wait();
    if (looks) {
      Bytes back(count * stride);
      queue.download(back.data(), there.memory(), back.size()).wait();
      ASSERT_TRUE(back == after(Bytes(back.size()), news, pieces)) << "up, round " << round;
      std::fill_n(memory, count * stride, std::byte{});
      queue.download(memory, there.memory(), pieces).wait();
      ASSERT_TRUE(std::ranges::equal(std::span{memory, back.size()}, after(Bytes(back.size()), back, pieces)))
          << "down, round " << round;
    } else {
      queue.download(memory, there.memory(), pieces).wait();
    }
    ++round;
  }
  std::printf("step: %zu rounds of %zu pieces up and down in %.1f s\n", round, count,
              Seconds(steady_clock::now() - begin).count());
  EXPECT_GT(round, 0U);
}

TEST_F(CudaSteps, PagesGrowToMostOfTheMemoryAndGoBack) {
  auto& gpu = device(first_gpu());
  bool const little = is_standin(gpu);
  if (gpu.pages() == nullptr) GTEST_SKIP() << "the GPU maps no pages";
  auto& source = *gpu.pages();
  auto const free = gpu.memory_info().free_bytes;
  std::size_t const step = little ? 64 * MiB : 1024 * MiB;
  auto const steps = std::max<std::size_t>((little ? std::min(free, 256 * MiB) : free) / 10 * 9 / step, 1);
  auto queue = gpu.create_queue();
  Reserved range{source, steps * step};
  auto const begin = steady_clock::now();
  for (std::size_t i = 0; i < steps; ++i) range.map(i * step, source.create_pages(step));
  Seconds const grown = steady_clock::now() - begin;
  EXPECT_LE(gpu.memory_info().free_bytes, free - steps * step);
  for (std::size_t i = 0; i < steps; ++i) {  // over the seams too
    for (auto const at : {i * step, (i + 1) * step - 16}) {
      queue.fill(range.memory(at, 16), repeated(1, static_cast<unsigned char>(i + 1)));
    }
  }
  for (std::size_t i = 0; i < steps; ++i) {
    for (auto const at : {i * step, (i + 1) * step - 16}) {
      Bytes back(16);
      queue.download(back.data(), range.memory(at, 16), back.size()).wait();
      EXPECT_EQ(back, repeated(16, static_cast<unsigned char>(i + 1))) << "step " << i;
    }
  }
  auto const middle = steady_clock::now();
  for (std::size_t i = 0; i < steps; ++i) source.free_pages(range.unmap(i * step, step));
  Seconds const shrunk = steady_clock::now() - middle;
  EXPECT_GE(gpu.memory_info().free_bytes, free / 10 * 9) << "it came back";
  std::printf("step: %zu MiB in %.2f s, given back in %.2f s\n", steps * step / MiB, grown.count(), shrunk.count());
}

}  // namespace
}  // namespace unimem
