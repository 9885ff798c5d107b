#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>

#include "device/conformance_fixture.hpp"
#include "device/cuda/declarations.hpp"
#include "device/cuda/driver.hpp"
#include "device/cuda_fixture.hpp"
#include "device/gate.hpp"
#include "device/reserved_pages.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

// Streams that wait for host work, on a driver whose streams share one hardware queue, and whose calls wait for all
// work of the GPU where they may: what stands in there for the host's sake would be in the way of all else.

namespace unimem {
namespace {

using detail::cuda::Driver;
using detail::cuda::Result;
using detail::cuda::Stream;

class OneHardwareQueue : public OnStandIn {
 protected:
  void SetUp() override {
    OnStandIn::SetUp();
    standin_control().share_hardware(1);
  }
  void TearDown() override {
    OnStandIn::TearDown();
    standin_control().reset();
  }

  /// Runs a callable as a kernel on the host.
  template <class Call>
  [[nodiscard]] Event on_host(Call call) {
    return host.run(device("cpu").compile({"host work", "", [call](Range, std::size_t, std::size_t, auto) { call(); }}),
                    Range{1}, {});
  }
  [[nodiscard]] static std::size_t calls(char const* function) { return standin_control().calls(function); }
  [[nodiscard]] static Bytes seen(Device& of, DeviceMemory memory) {
    Bytes bytes(memory.bytes);
    of.create_queue().download(bytes.data(), memory, bytes.size()).wait();
    return bytes;
  }

  Device& gpu = device("cuda:0");
  Device& plain = device("cuda:0,allocator=plain");
  Queue host = device("cpu").create_queue();
};

TEST_F(OneHardwareQueue, HostWorkThatAStreamWaitsForUsesTheGpu) {
  Allocated const first{gpu, 100}, second{gpu, 100};
  auto waits = gpu.create_queue(), other = gpu.create_queue();
  other.fill(second.memory(), repeated(1, 1)).wait();
  std::atomic<bool> begin = false;
  Bytes within(100);
  auto const work = on_host([&] {
    begin.wait(false);
    other.fill(second.memory(), repeated(1, 2));
    other.download(within.data(), second.memory(), within.size()).wait();
  });
  waits.wait(work);
  auto const behind = waits.fill(first.memory(), repeated(1, 3));
  begin = true;
  begin.notify_all();
  behind.wait();
  EXPECT_EQ(within, repeated(100, 2));
  EXPECT_EQ(seen(gpu, first.memory()), repeated(100, 3));
}

TEST_F(OneHardwareQueue, HostWorkThatAStreamWaitsForMakesTheDriverWaitForTheGpu) {
  Allocated const there{gpu, 100};
  auto waits = gpu.create_queue();
  std::atomic<bool> begin = false;
  std::uint32_t sum = 0;
  auto const work = on_host([&] {
    begin.wait(false);
    {
      Allocated const freed{plain, 1000};
    }
    {
      Allocated const freed{gpu, 1000, Location::pinned};
    }
    {
      Allocated const unpinned{device("cpu"), 1000, Location::pinned};
    }
    auto& source = *gpu.pages();
    {
      Reserved range{source, source.page_bytes()};
      range.map(0, source.create_pages(source.page_bytes()));
    }
    Allocated const words{gpu, sizeof sum};
    auto queue = gpu.create_queue();
    queue.fill(words.memory(), repeated(1, 0));
    std::array const arguments{memory_argument(words.memory()), scalar_argument(std::uint32_t{7})};
    queue.run(gpu.compile(add_kernel()), Range{1}, arguments);
    queue.download(&sum, words.memory(), sizeof sum).wait();
  });
  waits.wait(work);
  auto const behind = waits.fill(there.memory(), repeated(1, 3));
  begin = true;
  begin.notify_all();
  behind.wait();
  EXPECT_EQ(sum, 7U);
}

TEST_F(OneHardwareQueue, AThreadFreesPinsAndCompilesBeforeItLetsHostWorkGoOn) {
  Allocated const there{gpu, 100};
  auto waits = gpu.create_queue();
  std::optional<Gate> gate{waits};
  auto const behind = waits.fill(there.memory(), repeated(1, 3));
  {
    Allocated const freed{plain, 1000};
  }
  {
    Allocated const unpinned{device("cpu"), 1000, Location::pinned};
  }
  static_cast<void>(gpu.compile(add_kernel()));
  EXPECT_FALSE(behind.ready());
  gate.reset();
  behind.wait();
  EXPECT_EQ(seen(gpu, there.memory()), repeated(100, 3));
}

TEST_F(OneHardwareQueue, WorkIsNotGivenToTheDriverBeforeHostWorkHasEnded) {
  Allocated const there{gpu, 100};
  auto first = gpu.create_queue(), second = gpu.create_queue();
  std::optional<Gate> gate{first};
  auto const before = calls("cuMemsetD8Async");
  auto const filled = first.fill(there.memory(), repeated(1, 1));
  second.wait(filled);
  auto const after = second.fill(there.memory(), repeated(1, 2));
  Bytes back(100);
  auto const downloaded = second.download(back.data(), there.memory(), back.size());  // and pageable memory at that
  EXPECT_EQ(calls("cuMemsetD8Async"), before);
  EXPECT_EQ(standin_control().live().pending, 0U);
  for (auto const event : {filled, after, downloaded}) EXPECT_FALSE(event.ready());
  gate.reset();
  downloaded.wait();
  EXPECT_EQ(back, repeated(100, 2));
  EXPECT_EQ(calls("cuMemsetD8Async"), before + 2);
  EXPECT_EQ(calls("cuStreamWaitValue32"), 0U);
}

TEST_F(OneHardwareQueue, AnUploadOfWhatHostWorkWritesDoesNotHoldUpItsCaller) {
  Allocated const there{gpu, 100};
  Bytes source = repeated(100, 1);
  std::atomic<bool> begin = false;
  auto const work = on_host([&] {
    begin.wait(false);
    std::ranges::fill(source, std::byte{2});
  });
  auto queue = gpu.create_queue();
  auto const sent = queue.upload(there.memory(), source.data(), source.size(), {{work}});
  EXPECT_FALSE(sent.ready());
  begin = true;
  begin.notify_all();
  sent.wait();
  EXPECT_EQ(seen(gpu, there.memory()), repeated(100, 2));
}

TEST_F(OneHardwareQueue, EveryKindOfWorkIsKeptWithWhatItNeeds) {
  constexpr std::size_t pieces = 100, stride = 1000;
  Allocated const words{gpu, 400}, first{gpu, pieces * stride}, second{gpu, pieces * stride},
      pinned{device("cpu"), pieces * stride, Location::pinned};
  auto* const pinned_bytes = reinterpret_cast<std::byte*>(pinned.memory().object);
  auto const news = noise(pieces * stride, 1);
  std::ranges::copy(news, pinned_bytes);
  auto queue = gpu.create_queue();
  queue.fill(words.memory(), repeated(1, 0));
  queue.fill(first.memory(), repeated(1, 0));
  auto const program = gpu.compile(add_kernel());
  std::vector<ProgramRun> runs;
  runs.push_back({program, Range{100}, {memory_argument(words.memory()), scalar_argument(std::uint32_t{1})}});
  auto graph = queue.capture(runs);
  std::optional<Gate> gate{queue};
  Bytes expected(pieces * stride);
  {  // Nothing of this is there any more when the work begins.
    std::array arguments{memory_argument(words.memory()), scalar_argument(std::uint32_t{2})};
    queue.run(program, Range{100}, arguments);
    arguments = {};
    queue.run(std::move(graph));
    auto pattern = noise(16, 2);
    queue.fill(second.memory(), pattern);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = pattern[i % 16];
    pattern.assign(16, {});
    std::vector<CopyPiece> list;
    for (std::size_t i = 0; i < pieces; ++i) list.push_back({i * stride + i % 7, i * stride, 300});
    queue.upload(first.memory(), pinned_bytes, list);
    queue.copy(second.memory(), first.memory(), list);
    for (auto const& [to, from, bytes] : list) {
      std::vector<std::byte> sent(bytes);  // as it lies in `first`, whose pieces begin elsewhere
      for (std::size_t at = 0; at < bytes; ++at) {
        auto const skipped = from / stride % 7;
        sent[at] = at < skipped ? std::byte{0} : news[from + at - skipped];
      }
      std::ranges::copy(sent, expected.begin() + static_cast<std::ptrdiff_t>(to));
    }
    list.assign(pieces, {});
  }
  std::vector<std::uint32_t> sums(100);
  Bytes back(expected.size());
  queue.download(sums.data(), words.memory(), 400);
  auto const last = queue.download(back.data(), second.memory(), back.size());
  gate.reset();
  last.wait();
  EXPECT_THAT(sums, testing::Each(3U));
  EXPECT_TRUE(back == expected);
}

TEST_F(OneHardwareQueue, ARefusalWhenItsTurnComesIsTheWorksFailure) {
  Allocated const there{gpu, 100};
  auto queue = gpu.create_queue();
  queue.fill(there.memory(), repeated(1, 1)).wait();
  std::optional<Gate> gate{queue};
  auto const refused = queue.fill(there.memory(), repeated(1, 2));
  auto const next = queue.fill(there.window(0, 50), repeated(1, 3));
  standin_control().fail("cuMemsetD8Async", 1, Result::out_of_memory, standin::FaultKind::once);
  gate.reset();
  EXPECT_THAT(message_of(refused.wait_for_error()), testing::HasSubstr("cuMemsetD8Async"));
  EXPECT_EQ(next.wait_for_error(), nullptr);
  auto expected = repeated(100, 1);
  std::fill_n(expected.begin(), 50, std::byte{3});
  EXPECT_EQ(seen(gpu, there.memory()), expected);
}

TEST_F(OneHardwareQueue, ArgumentsThatDoNotFitAreRefusedBeforeTheirTurn) {
  Allocated const there{gpu, 400};
  auto const program = gpu.compile(add_kernel());
  auto queue = gpu.create_queue();
  std::optional<Gate> gate{queue};
  std::array const one{memory_argument(there.memory())};
  EXPECT_THROW(queue.run(program, Range{1}, one), KernelError);
  std::array const wrong{scalar_argument(std::uint32_t{1}), scalar_argument(std::uint32_t{1})};
  EXPECT_THROW(queue.run(program, Range{1}, wrong), KernelError);
  auto const last = queue.record();
  gate.reset();
  last.wait();
}

TEST_F(OneHardwareQueue, WhatIsHeldBackFailsWithItsGpu) {
  auto& lost = device("cuda:1,memory=77MiB");
  Allocated const there{lost, 100};
  auto queue = lost.create_queue();
  std::optional<Gate> gate{queue};
  auto const behind = queue.fill(there.memory(), repeated(1, 1));
  queue.wait(host.record());
  standin_control().lose(1, Result::illegal_address);
  gate.reset();
  EXPECT_THAT(message_of(behind.wait_for_error()), testing::HasSubstr("ILLEGAL_ADDRESS"));
  EXPECT_TRUE(lost.is_lost());
  standin_control().reset_context(1);
}

TEST_F(OneHardwareQueue, AStreamThatOthersKnowHasItsWorkInOrderWithTheirs) {
  static auto const loaded = detail::cuda::load_driver();
  Allocated const there{gpu, 100};
  auto queue = gpu.create_queue();
  std::optional<Gate> gate{queue};
  queue.fill(there.memory(), repeated(1, 1));
  auto* const stream = queue.native<Stream>();  // what was held back is in there from here on, behind a word
  EXPECT_EQ(calls("cuStreamWaitValue32"), 1U);
  queue.run_native(
      [&](void*) { EXPECT_EQ(loaded.driver.cuMemsetD8Async(there.memory().object, 2, 50, stream), Result::success); });
  auto const last = queue.fill(there.window(0, 25), repeated(1, 3));
  EXPECT_FALSE(last.ready());
  gate.reset();
  last.wait();
  auto expected = repeated(100, 1);
  std::fill_n(expected.begin(), 50, std::byte{2});
  std::fill_n(expected.begin(), 25, std::byte{3});
  EXPECT_EQ(seen(gpu, there.memory()), expected);
}

/// Queues of both kinds wait for each other's work and for their own, in an order that the host decides, and every
/// piece of work adds to what those before it have left. Another thread frees memory meanwhile.
TEST_F(OneHardwareQueue, RandomChainsOverHostAndGpusEnd) {
  constexpr std::size_t queues = 6, steps = 200;
  std::random_device::result_type const seed = 2026;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::minstd_rand random{seed};
  std::vector<Queue> on_gpu, on_cpu;
  for (std::size_t i = 0; i < queues; ++i) {
    on_gpu.push_back(gpu.create_queue());
    on_cpu.push_back(device("cpu").create_queue());
  }
  Allocated const words{gpu, 4};
  std::uint32_t on_host_side = 0, expected = 0;
  auto const program = gpu.compile(add_kernel());
  on_gpu[0].fill(words.memory(), repeated(1, 0)).wait();
  std::atomic<bool> over = false;
  std::jthread const frees{[&] {
    for (int times = 0; times < 200 && !over; ++times) {
      {
        Allocated const freed{plain, 100};
      }
      {
        Allocated const unpinned{device("cpu"), 100, Location::pinned};
      }
    }
  }};
  Event last;
  for (std::size_t step = 0; step < steps; ++step) {
    auto& queue = on_gpu[random() % queues];
    queue.wait(last);
    auto const amount = static_cast<std::uint32_t>(random() % 1000);
    expected += amount;
    switch (random() % 3) {
      case 0: {
        std::array const arguments{memory_argument(words.memory()), scalar_argument(amount)};
        last = queue.run(program, Range{1}, arguments);
        break;
      }
      default: {
        auto& cpu = on_cpu[random() % queues];
        cpu.wait(queue.download(&on_host_side, words.memory(), 4));
        auto const adds = [&, amount](Range, std::size_t, std::size_t, auto) { on_host_side += amount; };
        queue.wait(cpu.run(device("cpu").compile({"adds", "", adds}), Range{1}, {}));
        last = queue.upload(words.memory(), &on_host_side, 4);
      }
    }
  }
  last.wait();
  over = true;
  std::uint32_t sum = 0;
  on_gpu[0].download(&sum, words.memory(), 4).wait();
  EXPECT_EQ(sum, expected);
}

/// What the driver is asked for, beside the work itself.
class DriverCalls : public OnStandIn {
 protected:
  [[nodiscard]] static std::size_t calls(char const* function) { return standin_control().calls(function); }

  Device& gpu = device("cuda:0");
};

TEST_F(DriverCalls, ALaunchIsNextToNothingElse) {
  constexpr std::size_t launches = 160, looks = launches / 16;
  Allocated const there{gpu, 400};
  auto queue = gpu.create_queue();
  auto const program = gpu.compile(add_kernel());
  queue.fill(there.memory(), repeated(1, 0)).wait();
  std::array const arguments{memory_argument(there.memory()), scalar_argument(std::uint32_t{1})};
  standin_control().hold(true);  // or how much is asked for would depend on how much has ended
  auto const before = calls(nullptr), records = calls("cuEventRecord"), queries = calls("cuEventQuery");
  for (std::size_t i = 0; i < launches; ++i) queue.run(program, Range{100}, arguments);
  auto const counted = calls(nullptr) - before;
  EXPECT_EQ(calls("cuLaunchKernel"), launches);
  EXPECT_EQ(calls("cuStreamIsCapturing"), 0U);
  EXPECT_EQ(calls("cuEventRecord") - records, looks) << "one in sixteen";
  EXPECT_LE(calls("cuEventQuery") - queries, looks * 10);
  RecordProperty("calls", static_cast<int>(counted));
  auto const last = queue.record();
  EXPECT_FALSE(last.ready());
  standin_control().hold(false);
  last.wait();
  std::vector<std::uint32_t> sums(100);
  queue.download(sums.data(), there.memory(), 400).wait();
  EXPECT_THAT(sums, testing::Each(launches));
}

TEST_F(DriverCalls, AStreamThatOthersKnowIsAskedWhetherItIsCaptured) {
  Allocated const there{gpu, 100};
  auto queue = gpu.create_queue();
  auto const filled = queue.fill(there.memory(), repeated(1, 1));
  EXPECT_EQ(calls("cuEventRecord"), 0U);
  static_cast<void>(queue.native<void*>());
  EXPECT_EQ(calls("cuEventRecord"), 1U) << "later the stream may be gone";
  EXPECT_EQ(calls("cuStreamIsCapturing"), 0U);
  queue.fill(there.memory(), repeated(1, 2)).wait();
  EXPECT_EQ(calls("cuEventRecord"), 2U);
  EXPECT_EQ(calls("cuStreamIsCapturing"), 1U);
  EXPECT_TRUE(filled.ready());
}

TEST_F(DriverCalls, AnEventIsRecordedForWhoeverAsks) {
  Allocated const there{gpu, 100};
  auto queue = gpu.create_queue(), other = gpu.create_queue();
  standin_control().hold(true);
  auto const asked = queue.fill(there.memory(), repeated(1, 1));
  EXPECT_FALSE(asked.ready());
  EXPECT_FALSE(asked.ready());
  EXPECT_EQ(calls("cuEventRecord"), 1U);
  other.wait(queue.fill(there.memory(), repeated(1, 3)));
  EXPECT_EQ(calls("cuEventRecord"), 2U);
  EXPECT_EQ(calls("cuStreamWaitEvent"), 1U);
  standin_control().hold(false);
  Bytes back(100);
  other.download(back.data(), there.memory(), 100).wait();
  EXPECT_EQ(calls("cuEventRecord"), 3U);
  EXPECT_EQ(back, repeated(100, 3));
}

TEST_F(DriverCalls, WhatHasEndedIsSeenAtOnce) {
  Allocated const there{gpu, 100};
  auto queue = gpu.create_queue();
  auto const filled = queue.fill(there.memory(), repeated(1, 1));
  while (standin_control().live().pending != 0) std::this_thread::yield();
  EXPECT_TRUE(filled.ready());
  EXPECT_EQ(filled.error(), nullptr);
  EXPECT_EQ(calls("cuEventRecord"), 0U);
}

TEST_F(DriverCalls, AThreadThatWaitsSleepsWhereItIsToldTo) {
  for (auto const& [id, spins] : {std::pair{"cuda:0,blocking=1", 0U}, {"cuda:0,blocking=0", 1U}}) {
    standin_control().reset();
    auto& on = device(id);
    Allocated const there{on, 100};
    auto queue = on.create_queue();
    standin_control().hold(true);
    auto const filled = queue.fill(there.memory(), repeated(1, 1));
    std::jthread const goes_on{[] {
      while (calls("cuEventSynchronize") == 0) std::this_thread::yield();
      standin_control().hold(false);
    }};
    filled.wait();
    EXPECT_EQ(standin_control().spinning_waits(), spins) << id;
    EXPECT_EQ(calls("cuEventSynchronize"), 1U);
  }
}

}  // namespace
}  // namespace unimem
