#include "buffer/cuda_fixture.hpp"

#include "forked_child.hpp"

#include <chrono>
#include <cstdlib>
#include <thread>

// How a process with buffers on GPUs ends, and what is left of them in a forked child. Each scenario runs in a process
// of its own, as death tests that do not die.

namespace unimem::testing {
namespace {

using ::testing::ExitedWithCode;

/// Elements of a buffer, and how often they are filled; so many on hardware that to do it takes longer than to say so.
std::size_t const count = on_hardware ? std::size_t{32} << 20 : 10'000;
std::uint32_t const fills = on_hardware ? 250 : 1000;

class CudaProcessWithBuffers : public ::testing::Test {
 protected:
  CudaProcessWithBuffers() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  [[nodiscard]] static Device& gpu() { return device(first_gpu()); }
  [[nodiscard]] static BufferOptions here(bool pinned = false) {
    BufferOptions options;
    options.device = &gpu();
    options.pinned = pinned;
    return options;
  }

  /// Much more work than anybody waits for.
  static void keep_busy(UnifiedBuffer<std::uint32_t>& buffer) {
    if (!on_hardware) standin_control().set_latency(1000, 1000);
    auto& queue = gpu().default_queue();
    for (std::uint32_t i = 0; i < fills; ++i) {
      Operand const operand{&buffer.core(), {0, buffer.size_bytes()}, Intent::write};
      use_on_device(queue, {&operand, 1}, [&](std::span<const DeviceMemory> memory, std::span<const Event>) {
        return queue.fill(memory.front(), std::as_bytes(std::span{&i, 1}));
      });
    }
  }
};

TEST_F(CudaProcessWithBuffers, ExitsPromptlyDespiteWorkOnStaticBuffers) {
  auto const begin = std::chrono::steady_clock::now();
  auto const scenario = [] {
    // Made before the manager and the driver that serve it, so destroyed after whatever of them is destroyed.
    static std::optional<UnifiedBuffer<std::uint32_t>> early;
    static UnifiedBuffer<std::uint32_t> pinned(count, here(true));
    early.emplace(count, here());
    early->fill(1);
    pinned.fill(2);
    keep_busy(*early);
    keep_busy(pinned);
    static auto const slice = early->slice(0, 10);
    std::exit(gpu().default_queue().record().ready() ? 1 : 7);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(40)) << "what nobody waits for is not done";
}

TEST_F(CudaProcessWithBuffers, ExitsCleanlyWithUnfreedLeasesMappingsAndBuffers) {
  auto const scenario = [] {
    static DeviceSpan<std::uint32_t> lease;
    static Mapping<std::uint32_t> mapping;
    static auto* const never_destroyed = new UnifiedBuffer<std::uint32_t>(count, here());
    {
      UnifiedBuffer<std::uint32_t> buffer(count, here());
      buffer.fill(1);
      lease = buffer.device(gpu().default_queue());
      mapping = buffer.map(MapMode::read_write);
    }
    never_destroyed->fill(3);
    keep_busy(*never_destroyed);
    std::exit(mapping[count - 1] == 1 ? 7 : 1);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(CudaProcessWithBuffers, ExitsFromAnotherThreadWithALostGpu) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  auto const scenario = [] {
    static UnifiedBuffer<std::uint32_t> on_lost(count, here());
    on_lost.fill(1);
    keep_busy(on_lost);
    standin_control().lose(0, detail::cuda::Result::illegal_address);
    std::thread{[] { std::exit(7); }}.join();
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(CudaProcessWithBuffers, DoesNotWaitForEndlessWork) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  auto const begin = std::chrono::steady_clock::now();
  auto const scenario = [] {
    static UnifiedBuffer<std::uint32_t> buffer(count, here(true));
    buffer.fill(1);
    buffer.allocate(true, true);
    standin_control().hold(true);
    static_cast<void>(buffer.prefetch());
    std::exit(7);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

class CudaForkedChild : public OnTwoGpus {
 protected:
  /// By the library, or by the driver's floor in words of its own.
  template <class Operation>
  static bool is_unsupported(Operation const& operation) {
    try {
      operation();
    } catch (UnsupportedOperation const&) {
      return true;
    }
    return false;
  }
};

TEST_F(CudaForkedChild, UsesHostDataAndIsRefusedTheDevice) {
  auto buffer = synchronized(first);
  UnifiedBuffer<std::uint32_t> fresh(100, on(first));
  auto queue = first.create_queue();
  EXPECT_EQ(in_child([&] {
              EXPECT_HERE(buffer.to_vector() == counting(100));
              buffer.host()[5] = 500;
              EXPECT_HERE(is_unsupported([&] { buffer.sync_to_device(); }));
              EXPECT_HERE(is_unsupported([&] { std::ignore = buffer.device(queue); }));
              EXPECT_HERE(std::as_const(buffer).at(5) == 500);
              EXPECT_HERE(is_unsupported([&] { fresh.copy_from(counting(100, 9)); }));
              EXPECT_HERE(is_unsupported([&] { std::ignore = fresh.device_view(); }));
              EXPECT_HERE(is_unsupported([&] { std::ignore = second.create_queue(); }));
              EXPECT_HERE(is_unsupported([&] { std::ignore = affine_program(first); }));
              BufferOptions options;
              options.device = &first;
              UnifiedBuffer<std::uint32_t> own(100, options);
              own.copy_from(counting(100, 9));
              EXPECT_HERE(is_unsupported([&] { std::ignore = own.device_view(); }));
              auto copied = own.clone();
              EXPECT_HERE(copied.at(99) == 108);
              options.pinned = true;
              UnifiedBuffer<std::uint32_t> pinned(100, options);
              pinned.copy_from(counting(100, 3));
              EXPECT_HERE(std::as_const(pinned).at(1) == 4);
              return 7;
            }),
            7);
  EXPECT_EQ(buffer.to_vector(), counting(100)) << "the parent goes on as if nothing had been";
  EXPECT_EQ(device_words(buffer, first), counting(100));
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400, 1, 0, 0}));
}

TEST_F(CudaForkedChild, IsRefusedBytesThatOnlyAGpuHas) {
  auto buffer = synchronized(first);
  set(first.default_queue(), buffer.slice(50, 50), 9).wait();
  EXPECT_EQ(in_child([&] {
              EXPECT_HERE(std::as_const(buffer).host_view(0, 50)[49] == 49);
              EXPECT_HERE(is_unsupported([&] { std::ignore = std::as_const(buffer).host_view(); }));
              EXPECT_HERE(is_unsupported([&] { std::ignore = buffer.to_vector(); }));
              std::ranges::fill(buffer.host_overwrite(50, 50), 3U);
              EXPECT_HERE(buffer.to_vector()[99] == 3);
              return 7;
            }),
            7);
  auto expected = counting(100);
  std::fill_n(expected.begin() + 50, 50, 9U);
  EXPECT_EQ(buffer.to_vector(), expected);
}

TEST_F(CudaForkedChild, DestroysBuffersInUseByTheParent) {
  std::optional<UnifiedBuffer<std::uint32_t>> buffer{synchronized(first)};
  auto queue = first.create_queue();
  std::optional<Gate> gate{queue};
  auto const work = add(queue, buffer->slice(0), 1);
  EXPECT_EQ(in_child([&] {
              buffer.reset();
              return 7;
            }),
            7);
  EXPECT_FALSE(work.ready());
  gate.reset();
  EXPECT_EQ(buffer->to_vector(), counting(100, 1));
}

}  // namespace
}  // namespace unimem::testing
