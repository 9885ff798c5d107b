#include "buffer/cuda_fixture.hpp"

#include "core/sizes.hpp"
#include "device/cuda/cuda_device.hpp"

#include <atomic>
#include <chrono>
#include <thread>

// How bytes of a buffer cross the bus: pinned and pageable memory, what is staged, and many pieces at once.

namespace unimem::testing {
namespace {

using detail::cuda::Result;

class CudaTransfers : public OnTwoGpus {
 protected:
  /// Whether another thread finishes `call` while everything that was submitted to any stream stays where it is.
  static bool returns_while_held(std::function<void()> const& call) {
    standin_control().hold(true);
    std::atomic<bool> returned{false};
    std::jthread const caller([&] {
      call();
      returned = true;
    });
    for (int tries = 0; tries < 2000 && !returned; ++tries) std::this_thread::sleep_for(std::chrono::milliseconds{1});
    bool const in_time = returned;
    standin_control().hold(false);
    return in_time;
  }
};

TEST_F(CudaTransfers, PinnedBuffersMoveAfterTheCallReturns) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  auto options = on(first);
  options.pinned = true;
  auto const registered = standin_control().live().registered;
  UnifiedBuffer<std::uint32_t> buffer(MiB, options);
  buffer.copy_from(counting(MiB));
  EXPECT_TRUE(buffer.is_pinned());
  EXPECT_EQ(standin_control().live().registered, registered + 1);
  buffer.allocate(true, true);
  Event up;
  EXPECT_TRUE(returns_while_held([&] {
    up = buffer.prefetch(first);
    EXPECT_FALSE(up.ready()) << "nothing has moved";
  }));
  up.wait();
  add(first.default_queue(), buffer.slice(0), 9).wait();
  Event down;
  EXPECT_TRUE(returns_while_held([&] {
    down = buffer.sync_to_host_async();
    EXPECT_FALSE(down.ready());
  }));
  down.wait();
  EXPECT_TRUE(buffer.to_vector() == counting(MiB, 9));
  EXPECT_EQ(moved(buffer.statistics()), (Moved{4 * MiB, 1, 4 * MiB, 1}));
}

TEST_F(CudaTransfers, ScatteredEditsAreOneDriverCommand) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  constexpr std::size_t pieces = 100, words = 1024, stride = 3000, count = pieces * stride;
  constexpr std::array commands{"cuLaunchKernel",    "cuMemcpyBatchAsync", "cuMemcpy2DAsync",
                                "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync",  "cuMemcpyDtoDAsync"};
  auto const commands_so_far = [&] {
    std::size_t sum = 0;
    for (auto const* const command : commands) sum += calls(command);
    return sum;
  };
  for (bool const pinned : {true, false}) {
    SCOPED_TRACE(pinned ? "pinned" : "pageable");
    auto options = on(first);
    options.pinned = pinned;
    UnifiedBuffer<std::uint32_t> buffer(count, options);
    auto expected = counting(count);
    for (std::uint32_t round = 0; round < 3; ++round) {
      {
        auto const lease = buffer.device_overwrite();
        first.default_queue().upload(lease.native(), expected.data(), count * 4).wait();
      }
      for (std::size_t i = 0; i < pieces; ++i) {
        auto const at = i * stride + i % 7;
        std::ranges::fill(buffer.host_overwrite(at, words), round + 1);
        std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(at), words, round + 1);
      }
      auto const sent = commands_so_far(), kernels = calls("cuLaunchKernel");
      buffer.sync_to_device();
      EXPECT_EQ(commands_so_far() - sent, 1U);
      EXPECT_EQ(calls("cuLaunchKernel") - kernels, 1U);
      EXPECT_EQ(device_words(buffer, first), expected);
    }
    EXPECT_EQ(buffer.statistics().host_to_device_copies, 3 * pieces);
    EXPECT_EQ(buffer.statistics().staged_copies, pinned ? 0U : 3 * pieces);
  }
}

TEST_F(CudaTransfers, LargePageableCopiesReturnAtOnce) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  auto& staged = device("cuda:0,staging=1MiB");
  warm_up(staged);
  manager.reset();
  before = InUse::now();
  manager.emplace();
  for (auto const chunks : {1, 3, 4, 9}) {
    SCOPED_TRACE(chunks);
    auto const words = static_cast<std::size_t>(chunks) * MiB - 17;
    UnifiedBuffer<std::uint32_t> buffer(words, on(staged));
    buffer.copy_from(counting(words));
    auto const up = calls("cuMemcpyHtoDAsync"), down = calls("cuMemcpyDtoHAsync");
    Event sent;
    EXPECT_TRUE(returns_while_held([&] { sent = buffer.prefetch(staged); }));
    sent.wait();
    EXPECT_EQ(calls("cuMemcpyHtoDAsync") - up, static_cast<std::size_t>(chunks));
    EXPECT_TRUE(device_words(buffer, staged) == counting(words));
    affine(staged.default_queue(), buffer.slice(0), 1, 3).wait();
    auto const fetched = calls("cuMemcpyDtoHAsync");
    EXPECT_TRUE(buffer.to_vector() == counting(words, 3));
    EXPECT_EQ(calls("cuMemcpyDtoHAsync") - fetched, static_cast<std::size_t>(chunks));
    EXPECT_GT(fetched, down);
    EXPECT_EQ(buffer.statistics().staged_copies, 2U);
    EXPECT_EQ(moved(buffer.statistics()), (Moved{words * 4, 1, words * 4, 1}));
  }
  EXPECT_LE(manager->pool(device("cpu"), Location::pinned).statistics().peak_reserved_bytes, 4 * 4 * MiB);
}

TEST_F(CudaTransfers, SuccessiveStagedDownloadsKeepTheirBytesApart) {
  auto& staged = device("cuda:0,staging=1MiB");
  warm_up(staged);
  manager.reset();
  before = InUse::now();
  manager.emplace();
  auto const words = MiB / 2;
  for (int round = 0; round < 20; ++round) {
    UnifiedBuffer<std::uint32_t> one(words, on(staged)), other(words, on(staged));
    set(staged.default_queue(), one.slice(0), 1);
    set(staged.default_queue(), other.slice(0), 2);
    std::optional<Gate> gate{staged.default_queue()};
    static_cast<void>(one.sync_to_host_async());
    static_cast<void>(other.sync_to_host_async());
    gate.reset();
    EXPECT_TRUE(one.to_vector() == std::vector<std::uint32_t>(words, 1)) << round;
    EXPECT_TRUE(other.to_vector() == std::vector<std::uint32_t>(words, 2)) << round;
    EXPECT_EQ(one.statistics().staged_copies, 1U);
  }
}

TEST(CudaStaging, IsTheDefaultGivenEnoughThreads) {
  EXPECT_EQ(detail::cuda::staging_by_default(1), std::nullopt);
  EXPECT_EQ(detail::cuda::staging_by_default(3), std::nullopt);
  EXPECT_EQ(detail::cuda::staging_by_default(4), 4 * MiB);
  EXPECT_EQ(detail::cuda::staging_by_default(64), 4 * MiB);
  EXPECT_EQ(device("cuda:0,staging=7MiB").staging_threshold(), 7 * MiB) << "what is said counts";
}

TEST_F(CudaTransfers, APageableUploadWaitsForAPendingWriter) {
  // The driver reads pageable memory in the very call, whatever the stream waits for.
  auto& cpu = device("cpu");
  auto writers = cpu.create_queue();
  UnifiedBuffer<std::uint32_t> buffer(1000, on(first));
  buffer.copy_from(counting(1000));
  auto const late = cpu.compile({"late", "", [](Range, std::size_t begin, std::size_t end, auto arguments) {
                                   std::this_thread::sleep_for(std::chrono::milliseconds{50});
                                   auto* const words = static_cast<std::uint32_t*>(arguments[0].data);
                                   for (auto i = begin; i < end; ++i) words[i] += 7;
                                 }});
  Operand const operand{&buffer.core(), {0, 4000}, Intent::read_write};
  use_on_device(writers, {&operand, 1}, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
    return writers.run(late, Range{1000}, std::array{argument_of(memory.front())}, needs);
  });
  buffer.prefetch(first).wait();
  EXPECT_EQ(device_words(buffer, first), counting(1000, 7));
  EXPECT_EQ(buffer.to_vector(), counting(1000, 7));
}

TEST_F(CudaTransfers, PageableBuffersAreRegisteredWithNobody) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  auto const registered = standin_control().live().registered;
  auto const buffer = synchronized(first, MiB);
  EXPECT_FALSE(buffer.is_pinned());
  EXPECT_EQ(standin_control().live().registered, registered);
}

TEST_F(CudaTransfers, PinningRefusedByTheDriverIsVisible) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  // And refuses again when caches have been given back for it.
  for (std::size_t nth = 1; nth <= 4; ++nth) {
    standin_control().fail("cuMemHostRegister", nth, Result::out_of_memory, standin::FaultKind::once);
  }
  auto options = on(first);
  options.pinned = true;
  UnifiedBuffer<std::uint32_t> buffer(1000, options);
  buffer.copy_from(counting(1000));
  EXPECT_FALSE(buffer.is_pinned());
  add(first.default_queue(), buffer.slice(0), 1);
  EXPECT_EQ(buffer.to_vector(), counting(1000, 1));
}

TEST_F(CudaTransfers, LargePageableCopiesAreStagedThroughRegisteredBlocks) {
  auto& staging = device(first_gpu("staging=1MiB"));
  warm_up(staging);
  before = InUse::now();
  auto const registered = InUse::now().registered;
  auto const count = 9 * MiB / 4 + 3;
  {
    UnifiedBuffer<std::uint32_t> buffer(count, on(staging));
    buffer.copy_from(counting(count));
    buffer.sync_to_device();
    if (!on_hardware) {
      EXPECT_GT(standin_control().live().registered, registered) << "blocks of pinned memory, kept for the next copy";
    }
    add(staging.default_queue(), buffer.slice(0), 3);
    EXPECT_TRUE(buffer.to_vector() == counting(count, 3));
    EXPECT_EQ(buffer.statistics().staged_copies, 2U);
    EXPECT_EQ(buffer.statistics().unstaged_copies, 0U);
  }
  staging.synchronize();
}

}  // namespace
}  // namespace unimem::testing
