#include <unimem/core/error.hpp>
#include <unimem/device/cuda.hpp>

#include "device/conformance_fixture.hpp"
#include "device/cuda/driver.hpp"
#include "device/cuda_fixture.hpp"
#include "device/gate.hpp"

#include <array>
#include <future>
#include <optional>
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
  explicit OwnStream(Device& device) : queue_(device.create_queue()) {
    queue_.run_native([this](void*) { EXPECT_EQ(driver().cuStreamCreate(&stream_, 1), Result::success); }).wait();
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
  for (auto const name : {std::uintptr_t{0}, detail::cuda::legacy_stream, detail::cuda::per_thread_stream}) {
    auto queue = adopt_stream(gpu, reinterpret_cast<void*>(name));
    queue.fill(there.memory(), repeated(1, static_cast<unsigned char>(name + 1))).wait();
    Bytes back(100);
    queue.download(back.data(), there.memory(), 100).wait();
    EXPECT_EQ(back, repeated(100, static_cast<unsigned char>(name + 1)));
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
