#include <unimem/core/error.hpp>
#include <unimem/device/cuda.hpp>

#include "device/at_end.hpp"
#include "device/conformance_fixture.hpp"
#include "device/coroutine_task.hpp"
#include "device/cuda/code.hpp"
#include "device/cuda/driver.hpp"
#include "device/cuda_fixture.hpp"
#include "device/gate.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

// Streams of the user's own.

namespace unimem {
namespace {

using detail::cuda::CaptureMode;
using detail::cuda::Context;
using detail::cuda::Driver;
using detail::cuda::Graph;
using detail::cuda::Result;
using detail::cuda::Stream;

/// The driver as a user's own code reaches it.
Driver const& driver() {
  static auto const loaded = detail::cuda::load_driver();
  return loaded.driver;
}

/// A stream that the test owns, in the context of a device.
class OwnStream {
 public:
  /// `flags`: 1 for one that does not wait for the legacy default stream, 0 for one that does.
  explicit OwnStream(Device& device, unsigned flags = 1) : queue_(device.create_queue()) {
    queue_.run_native([&](void*) { EXPECT_EQ(driver().cuStreamCreate(&stream_, flags), Result::success); }).wait();
  }
  OwnStream(OwnStream const&) = delete;
  OwnStream& operator=(OwnStream const&) = delete;
  ~OwnStream() {
    if (stream_ != nullptr) destroy();
  }

  [[nodiscard]] Stream get() const { return stream_; }
  void destroy() {
    in_context([this] { EXPECT_EQ(driver().cuStreamDestroy(stream_), Result::success); });
    stream_ = nullptr;
  }
  /// Calls of the owner's, with the device's context current.
  void in_context(std::function<void()> const& call) {
    queue_.run_native([&](void*) { call(); }).wait();
  }

 private:
  Queue queue_;
  Stream stream_ = nullptr;
};

class QueuesOfADevice : public OnStandIn {};

TEST_F(QueuesOfADevice, OneEndedByItsKernelFinishes) {
  auto& gpu = device("cuda:0");
  auto& cpu = device("cpu");
  auto ours = cpu.create_queue();
  auto ended = std::make_optional(gpu.create_queue());
  auto const memory = gpu.allocate(1 << 16, Location::device);
  std::promise<void> submitted;
  auto const ends = cpu.compile({"ends", {}, [&](Range, std::size_t, std::size_t, std::span<const HostArgument>) {
                                   submitted.get_future().wait();
                                   ended.reset();
                                 }});
  auto const kernel = ours.run(ends, Range{1}, {});
  ended->wait(kernel);
  std::array const pattern{std::byte{7}};
  auto const filled = ended->fill(memory, pattern);
  submitted.set_value();
  kernel.wait();
  filled.wait();
  std::vector<std::byte> seen(memory.bytes);
  gpu.create_queue().download(seen.data(), memory, seen.size()).wait();
  EXPECT_EQ(seen, std::vector(memory.bytes, std::byte{7}));
  gpu.release(memory, Location::device);
}

/// Goes on when one event has come, and then stands waiting for another.
Task stands_waiting(Event begins, std::promise<void>& begun, Event awaited) {
  co_await begins;
  begun.set_value();
  awaited.wait();
}

TEST_F(QueuesOfADevice, GoOnBehindHostWorkWhileACoroutineStandsWaitingForThem) {
  auto& gpu = device(first_gpu());
  auto& cpu = device("cpu");
  auto ours = cpu.create_queue(), others = cpu.create_queue();
  auto queue = gpu.create_queue();
  auto const memory = gpu.allocate(100, Location::device);
  std::optional<Gate> work{ours}, begins{others};
  queue.wait(ours.record());
  std::array const pattern{std::byte{7}};
  auto const filled = queue.fill(memory, pattern);
  std::promise<void> begun;
  auto const task = stands_waiting(others.record(), begun, filled);
  begins.reset();
  begun.get_future().wait();
  work.reset();  // from here on it is the library's business that the stream goes on
  task.get();
  EXPECT_TRUE(filled.ready());
  gpu.release(memory, Location::device);
}

TEST_F(QueuesOfADevice, EndForOneCoroutineWhileAnotherStandsWaiting) {
  auto& gpu = device(first_gpu());
  auto queue = gpu.create_queue();
  auto ours = gpu.create_queue();
  auto const memory = gpu.allocate(100, Location::device);
  std::optional<Gate> held{queue}, work{ours};
  std::array const pattern{std::byte{7}};
  auto const filled = queue.fill(memory.window(0, 50), pattern), behind = ours.fill(memory.window(50, 50), pattern);
  std::promise<void> begun;
  auto& cpu = device("cpu").default_queue();
  std::optional<Gate> begins{cpu};
  auto const task = stands_waiting(cpu.record(), begun, filled);
  begins.reset();
  begun.get_future().wait();
  std::atomic<bool> noticed = false;
  struct Notices final : detail::AtEnd {
    explicit Notices(std::atomic<bool>& told) : said(told) {}
    void work_has_ended() noexcept override { said = true; }
    std::atomic<bool>& said;
  };
  detail::AtEnd::have(behind, std::make_unique<Notices>(noticed));
  EXPECT_FALSE(noticed);
  work.reset();
  while (!noticed) std::this_thread::yield();  // nobody else asks that driver
  held.reset();
  task.get();
  gpu.release(memory, Location::device);
}

TEST_F(QueuesOfADevice, LaunchOneGraphFromSeveralThreads) {
  auto& gpu = device(first_gpu());
  Allocated const there{gpu, 4 * sizeof(std::uint32_t)};
  auto first = gpu.create_queue();
  first.fill(there.memory(), repeated(1, 0)).wait();
  KernelArgument argument;
  argument.memory = there.memory();
  argument.writes = true;
  auto const program = gpu.compile({"count",
                                    R"(UNIMEM_KERNEL count(UNIMEM_BUFFER(unimem_u32, x)) {
                                         UNIMEM_DATA(unimem_u32, x)[UNIMEM_ITEM_X] += 1;
                                       })",
                                    {}});
  auto const graph = first.capture({{program, Range{4}, {argument}}});
  constexpr int threads = 4, launches = 50;
  {
    std::vector<std::jthread> all;
    for (int i = 0; i < threads; ++i) {
      all.emplace_back([&] {
        auto queue = gpu.create_queue();
        for (int j = 0; j < launches; ++j) queue.run(graph);
        queue.synchronize();
      });
    }
  }
  std::array<std::uint32_t, 4> counts{};
  first.download(counts.data(), there.memory(), sizeof counts).wait();
  EXPECT_THAT(counts, testing::Each(threads * launches));
}

TEST_F(QueuesOfADevice, AreLostWithWhatTheDriverSaysIsForGood) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  for (auto const code : {Result::contained, Result::tensor_memory_leak, Result::mps_client_terminated}) {
    EXPECT_TRUE(detail::cuda::is_fatal(code)) << static_cast<int>(code);
  }
  EXPECT_FALSE(detail::cuda::is_fatal(Result::too_many_peers));
}

TEST_F(QueuesOfADevice, CopyFromAPeerThoughThereAreTooMany) {
  if (on_hardware || !has_two_gpus()) GTEST_SKIP() << scripts_standin;
  auto& fresh = device("cuda:0,profile=1,memory=100MiB");  // nobody else has told it of its peers
  auto& peer = device(second_gpu());
  Allocated const here{fresh, 1000}, there{peer, 1000};
  peer.default_queue().fill(there.memory(), repeated(1, 9)).wait();
  standin_control().fail("cuCtxEnablePeerAccess", 1, Result::too_many_peers, standin::FaultKind::once);
  auto queue = fresh.create_queue();
  queue.copy(here.memory(), peer, there.memory(), 1000).wait();
  Bytes back(1000);
  queue.download(back.data(), here.memory(), 1000).wait();
  EXPECT_EQ(back, repeated(1000, 9));
}

class AdoptedStreams : public OnStandIn {
 protected:
  Device& gpu = device("cuda:0");
};

TEST_F(QueuesOfADevice, AreMadeAfterARefusal) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  auto& fresh = device("cuda:0,memory=64MiB");  // nobody has used its queues
  static_cast<void>(fresh.memory_info());
  for (int tries = 0; tries < 2; ++tries) {
    standin_control().fail("cuStreamCreate", 1, Result::not_permitted, standin::FaultKind::once);
    EXPECT_THROW(static_cast<void>(fresh.default_queue()), DeviceError);
  }
  auto& queue = fresh.default_queue();
  EXPECT_EQ(&fresh.default_queue(), &queue);
  standin_control().fail("cuStreamCreate", 1, Result::not_permitted, standin::FaultKind::once);
  EXPECT_THROW(static_cast<void>(fresh.waiting_queue()), DeviceError);
  EXPECT_EQ(&fresh.waiting_queue(), &fresh.waiting_queue());
}

TEST_F(AdoptedStreams, WorkGoesInOrderWithTheOwners) {
  OwnStream own{gpu};
  auto queue = adopt_stream(gpu, own.get());
  EXPECT_EQ(queue.native<Stream>(), own.get());
  Allocated const there{gpu, 1000};
  auto const at = there.memory().object;
  auto const news = noise(500, 1);
  Bytes back(1000);
  own.in_context([&] { EXPECT_EQ(driver().cuMemsetD8Async(at, 7, 1000, own.get()), Result::success); });
  queue.upload(there.window(0, 500), news.data(), 500);
  own.in_context([&] { EXPECT_EQ(driver().cuMemsetD8Async(at + 250, 9, 250, own.get()), Result::success); });
  queue.download(back.data(), there.memory(), 1000).wait();
  auto expected = repeated(1000, 7);
  std::copy_n(news.begin(), 250, expected.begin());
  std::fill_n(expected.begin() + 250, 250, std::byte{9});
  EXPECT_EQ(back, expected);
}

TEST_F(AdoptedStreams, EventsOutliveTheStreamThatItsOwnerDestroys) {
  OwnStream own{gpu};
  Allocated const there{gpu, 100};
  Event event;
  {
    auto queue = adopt_stream(gpu, own.get());
    event = queue.fill(there.memory(), repeated(1, 3));
  }  // a queue waits for its work
  auto const streams = on_hardware ? 0 : standin_control().live().streams;
  own.destroy();
  if (!on_hardware) {
    EXPECT_EQ(standin_control().live().streams, streams - 1) << "nobody else destroyed it";
  }
  EXPECT_TRUE(event.ready());
  EXPECT_EQ(event.error(), nullptr);
}

TEST_F(AdoptedStreams, OtherQueuesWaitForThem) {
  OwnStream own{gpu};
  auto adopted = adopt_stream(gpu, own.get());
  auto queue = gpu.create_queue();
  Allocated const there{gpu, 100};
  std::optional<Gate> gate{adopted};
  auto const first = adopted.fill(there.memory(), repeated(1, 1));
  queue.wait(first);
  auto const second = queue.fill(there.memory(), repeated(1, 2));
  EXPECT_FALSE(second.ready());
  gate.reset();
  second.wait();
  Bytes back(100);
  queue.download(back.data(), there.memory(), 100).wait();
  EXPECT_EQ(back, repeated(100, 2));
}

TEST_F(AdoptedStreams, DefaultStreamsAreTakenByTheirNames) {
  Allocated const there{gpu, 100};
  for (auto const name : {std::uintptr_t{0}, detail::cuda::legacy_stream}) {
    auto queue = adopt_stream(gpu, reinterpret_cast<void*>(name));
    queue.fill(there.memory(), repeated(1, static_cast<unsigned char>(name + 1))).wait();
    Bytes back(100);
    queue.download(back.data(), there.memory(), 100).wait();
    EXPECT_EQ(back, repeated(100, static_cast<unsigned char>(name + 1)));
  }
}

TEST_F(AdoptedStreams, AThreadsOwnDefaultStreamIsRefused) {
  try {
    static_cast<void>(adopt_stream(gpu, reinterpret_cast<void*>(detail::cuda::per_thread_stream)));
    ADD_FAILURE() << "a queue was made of as many streams as there are threads";
  } catch (InvalidArgument const& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("cudaStreamPerThread"));
  }
}

TEST_F(AdoptedStreams, AForeignStreamIsRefused) {
  EXPECT_THROW(static_cast<void>(adopt_stream(device("cpu"), nullptr)), UnsupportedOperation);
}

TEST_F(AdoptedStreams, AStreamOfAnotherGpuIsRefused) {
  if (!has_two_gpus()) GTEST_SKIP() << "it takes two GPUs";
  OwnStream elsewhere{device(second_gpu())};
  EXPECT_THROW(static_cast<void>(adopt_stream(gpu, elsewhere.get())), InvalidArgument);
}

TEST_F(AdoptedStreams, AStreamThatIsNoMoreIsRefused) {
  if (on_hardware) GTEST_SKIP() << "its handle may be anything's there: only the stand-in remembers the dead";
  OwnStream gone{gpu};
  auto* const stale = gone.get();
  gone.destroy();
  try {
    static_cast<void>(adopt_stream(gpu, stale));
    ADD_FAILURE() << "a stream that does not exist was taken";
  } catch (DeviceError const& error) {
    EXPECT_EQ(error.call, "cuStreamGetCtx");
  }
}

/// What uses all kinds of calls that a capture in the driver's default mode forbids.
void use_everything(Device& gpu) {
  auto queue = gpu.create_queue();
  Allocated const there{gpu, 1000}, pinned{device("cpu"), 1000, Location::pinned};
  Bytes back(1000);
  queue.fill(there.memory(), repeated(1, 5));
  auto const event = queue.download(back.data(), there.memory(), back.size());
  while (!event.ready()) std::this_thread::yield();
  EXPECT_EQ(event.error(), nullptr);
  EXPECT_EQ(back, repeated(1000, 5));
  queue.synchronize();
  static_cast<void>(gpu.memory_info());
  static_cast<void>(gpu.compile({"nothing", "UNIMEM_KERNEL nothing(UNIMEM_BUFFER(unimem_u32, x)) {}", {}}));
}

TEST_F(AdoptedStreams, ACaptureOfTheUsersAndTheLibrarysWorkLeaveEachOtherAlone) {
  auto& pooled = device(first_gpu("allocator=async"));
  use_everything(gpu);
  use_everything(pooled);
  for (auto const mode : {CaptureMode::global, CaptureMode::thread_local_only, CaptureMode::relaxed}) {
    OwnStream own{gpu, mode == CaptureMode::thread_local_only ? 1U : 0U};
    Allocated const there{gpu, 100};
    auto held = gpu.create_queue();
    std::optional<Gate> gate{held};
    auto const pending = held.fill(there.memory(), repeated(1, 1));
    own.in_context([&] { EXPECT_EQ(driver().cuStreamBeginCapture(own.get(), mode), Result::success); });
    EXPECT_FALSE(pending.ready()) << "a refusal to say is no end";
    own.in_context(
        [&] { EXPECT_EQ(driver().cuMemsetD8Async(there.memory().object, 7, 100, own.get()), Result::success); });
    use_everything(gpu);
    std::jthread([&] {
      use_everything(gpu);
      use_everything(pooled);
    }).join();
    gate.reset();
    pending.wait();
    Graph graph = nullptr;
    own.in_context([&] {
      EXPECT_EQ(driver().cuStreamEndCapture(own.get(), &graph), Result::success) << static_cast<int>(mode);
      if (graph != nullptr) {
        EXPECT_EQ(driver().cuGraphDestroy(graph), Result::success);
      }
    });
  }
}

TEST_F(AdoptedStreams, CodeOfTheUsersRunsInTheModeThatItsThreadHad) {
  auto const mode_now = [] {
    auto mode = CaptureMode::relaxed;
    EXPECT_EQ(driver().cuThreadExchangeStreamCaptureMode(&mode), Result::success);
    auto const found = mode;
    EXPECT_EQ(driver().cuThreadExchangeStreamCaptureMode(&mode), Result::success);
    return found;
  };
  auto queue = gpu.create_queue();
  for (auto const mode : {CaptureMode::thread_local_only, CaptureMode::global}) {
    auto before = mode;
    EXPECT_EQ(driver().cuThreadExchangeStreamCaptureMode(&before), Result::success);
    queue.run_native([&](void*) { EXPECT_EQ(mode_now(), mode); }).wait();
    EXPECT_EQ(mode_now(), mode);
  }
}

TEST_F(AdoptedStreams, ARefusalToSayIsNoEndOfWork) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  auto queue = gpu.create_queue();
  Allocated const there{gpu, 100};
  std::optional<Gate> gate{queue};
  auto const event = queue.fill(there.memory(), repeated(1, 1));
  for (auto const code : {Result::stream_capture_unsupported, Result::stream_capture_invalidated}) {
    for (std::size_t nth = 1; nth <= 4; ++nth) {
      standin_control().fail("cuEventQuery", nth, code, standin::FaultKind::once);
    }
    for (int looks = 0; looks < 4; ++looks) EXPECT_FALSE(event.ready()) << static_cast<int>(code);
  }
  gate.reset();
  event.wait();
  Bytes back(100);
  queue.download(back.data(), there.memory(), 100).wait();
  EXPECT_EQ(back, repeated(100, 1));
}

TEST_F(AdoptedStreams, ACapturingStreamTakesNoWork) {
  OwnStream own{gpu};
  auto queue = adopt_stream(gpu, own.get());
  Allocated const there{gpu, 100};
  queue.fill(there.memory(), repeated(1, 1)).wait();
  Graph graph = nullptr;
  own.in_context([&] { EXPECT_EQ(driver().cuStreamBeginCapture(own.get(), CaptureMode::relaxed), Result::success); });
  try {
    queue.fill(there.memory(), repeated(1, 2));
    ADD_FAILURE() << "work went into somebody's graph";
  } catch (UnsupportedOperation const& error) {
    EXPECT_NE(error.reason.find("captured"), std::string::npos);
  }
  own.in_context([&] {
    EXPECT_EQ(driver().cuStreamEndCapture(own.get(), &graph), Result::success) << "the refusal did not spoil it";
    EXPECT_EQ(driver().cuGraphDestroy(graph), Result::success);
  });
  Bytes back(100);
  queue.download(back.data(), there.memory(), 100).wait();
  EXPECT_EQ(back, repeated(100, 1));
}

}  // namespace
}  // namespace unimem
