#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/share/buffer_registry.hpp>
#include <unimem/share/detail/sent_buffers.hpp>

#include "buffer/cuda_fixture.hpp"
#include "process/peers.hpp"
#include "process/segment.hpp"
#include "processes/peer_commands.hpp"
#include "processes/peer_process.hpp"
#include "share/peers_key.hpp"
#include "share/sent_note.hpp"
#include "share/sent_on_device.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// Buffers that only a GPU has, sent to another process: they stay on the GPU.

namespace unimem::testing {
namespace {

using detail::SentNote;
using detail::cuda::Result;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Byte = std::uint8_t;
using Bytes = std::vector<Byte>;

std::size_t open_descriptors() {
  std::filesystem::directory_iterator const all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

/// What a thread that serves other processes does once it has answered, it does soon.
template <class Look>
[[nodiscard]] bool soon(Look const& look) {
  auto const until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!look()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

class SentOnDevice : public OnStandIn {
 protected:
  static constexpr std::size_t size = 300'000;

  SentOnDevice() {
    warm_up(gpu);
    static_cast<void>(gpu.exporter());
    static_cast<void>(detail::receive_sent({1, 1}, 1, {}));  // what asks for the first time keeps something
    pattern.resize(size);
    for (std::size_t i = 0; i < size; ++i) pattern[i] = pattern_byte(7, i);
  }
  void SetUp() override {
    OnStandIn::SetUp();
    before_ = InUse::now();
    used_before_ = gpu.memory_info().free_bytes;
  }
  void TearDown() override {
    manager.reset();
    gpu.synchronize();
    EXPECT_EQ(InUse::now(), before_);
    EXPECT_EQ(gpu.memory_info().free_bytes, used_before_);
    EXPECT_TRUE(soon([] { return detail::sent_and_not_received().buffers == 0; }));
    OnStandIn::TearDown();
  }

  [[nodiscard]] BufferOptions options() {
    BufferOptions made;
    made.manager = manager.get();
    made.device = &gpu;
    return made;
  }
  /// Only the GPU has the pattern.
  [[nodiscard]] UnifiedBuffer<Byte> on_gpu() {
    UnifiedBuffer<Byte> buffer(size, options());
    buffer.copy_from(pattern);
    buffer.sync_to_device(gpu);
    buffer.release_host();
    return buffer;
  }
  [[nodiscard]] static BufferId sent(UnifiedBuffer<Byte> const& buffer) {
    return detail::send_copy(*buffer.shared_core(), {0, buffer.size()});
  }
  [[nodiscard]] UnifiedBuffer<Byte> received(BufferId id, std::size_t bytes = size) {
    return {Shape(bytes), detail::receive_sent(id, bytes, options())};
  }
  /// Puts it where whoever is sent that id finds it.
  static void offer(BufferId id, detail::UniqueFd descriptor, SentNote const& note) {
    std::vector<detail::UniqueFd> descriptors;
    descriptors.push_back(std::move(descriptor));
    detail::Peers::of_this_process().offer(detail::key_of(id), std::move(descriptors), note.encode(),
                                           detail::Peers::Times::once);
  }
  /// Why what was received has no data.
  [[nodiscard]] static std::string why_lost(UnifiedBuffer<Byte> const& buffer) {
    try {
      static_cast<void>(buffer.to_vector());
    } catch (DataLost const& error) {
      return error.what();
    }
    return "it is not lost";
  }

  Device& gpu = device(first_gpu("shareable=1"));
  std::unique_ptr<MemoryManager> manager = std::make_unique<MemoryManager>();
  Bytes pattern;

 private:
  InUse before_{};
  std::size_t used_before_ = 0;
};

TEST_F(SentOnDevice, StaysThereAllTheWay) {
  auto const buffer = on_gpu();
  auto const before = gpu.transfers();
  auto const id = sent(buffer);
  EXPECT_EQ(detail::sent_and_not_received().buffers, 1);
  auto const copy = received(id);
  auto const moved = gpu.transfers().since(before);
  EXPECT_EQ(moved.host_to_device_bytes, 0);
  EXPECT_EQ(moved.device_to_host_bytes, 0);
  EXPECT_EQ(moved.device_to_device_bytes, 2 * size);
  EXPECT_EQ(copy.state(), BufferState::device_dirty);
  EXPECT_EQ(copy.to_vector(), pattern);
  EXPECT_EQ(buffer.to_vector(), pattern);
}

TEST_F(SentOnDevice, IsTheReceiversOwn) {
  auto buffer = on_gpu();
  auto const id = sent(buffer);
  buffer.fill(1);  // there, after it was sent
  auto copy = received(id);
  EXPECT_EQ(copy.to_vector(), pattern);
  copy.fill(2);
  EXPECT_EQ(buffer.to_vector(), Bytes(size, 1));
  EXPECT_EQ(copy.to_vector(), Bytes(size, 2));
}

TEST_F(SentOnDevice, ReachesAnotherProcess) {
  std::string id;
  {
    auto const buffer = on_gpu();
    id = to_string(sent(buffer));
  }
  PeerProcess peer;
  EXPECT_EQ(peer.ask("receive " + id + " " + std::to_string(size) + " " + first_gpu("shareable=1")),
            "ok 0 0 " + std::to_string(size));
  EXPECT_EQ(peer.ask("state"), "ok device_dirty");
  EXPECT_EQ(peer.ask("see 0 " + std::to_string(size)), "ok " + told(pattern));
  EXPECT_EQ(peer.ask("moved"), "ok 0 " + std::to_string(size));
  auto const again = received([&] {
    BufferId same;
    same.registry = std::stoull(id.substr(0, id.find('-')), nullptr, 16);
    same.number = std::stoull(id.substr(id.find('-') + 1));
    return same;
  }());
  EXPECT_THAT(why_lost(again), HasSubstr("it has been received before"));
}

TEST_F(SentOnDevice, ReachesAProcessThatWasNotAskedToHandMemoryOver) {
  auto const buffer = on_gpu();
  PeerProcess peer;
  EXPECT_EQ(peer.ask("receive " + to_string(sent(buffer)) + " " + std::to_string(size) + " " + first_gpu()),
            "ok 0 0 " + std::to_string(size));
  EXPECT_EQ(peer.ask("see 0 " + std::to_string(size)), "ok " + told(pattern));
}

TEST_F(SentOnDevice, IsLostWhereThatGpuIsNot) {
  auto const buffer = on_gpu();
  ::setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  PeerProcess peer;
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  ASSERT_THAT(peer.ask("receive " + to_string(sent(buffer)) + " " + std::to_string(size) + " cpu"), StartsWith("ok"));
  auto const said = peer.ask("see 0 1");
  EXPECT_THAT(said, StartsWith("error DataLost"));
  EXPECT_THAT(said, HasSubstr("no device '" + gpu.hardware_id() + "'"));
  EXPECT_THAT(said, HasSubstr("it is the one that the buffer was sent from"));
}

TEST_F(SentOnDevice, IsTheWindowThatWasAskedFor) {
  auto const buffer = on_gpu();
  auto const before = gpu.transfers();
  auto const id = detail::send_copy(*buffer.shared_core(), {1'000, 1'777});
  EXPECT_EQ(gpu.transfers().since(before).device_to_device_bytes, 777);
  EXPECT_EQ(received(id, 777).to_vector(), Bytes(pattern.begin() + 1'000, pattern.begin() + 1'777));
}

TEST_F(SentOnDevice, GoesByTheHostWhereThatHasItToo) {
  auto buffer = on_gpu();
  buffer.sync_to_host();
  auto const before = gpu.transfers();
  auto const copy = received(sent(buffer));
  EXPECT_EQ(gpu.transfers().since(before), TransferCounters{});
  EXPECT_EQ(copy.state(), BufferState::host_dirty);
  EXPECT_EQ(copy.to_vector(), pattern);
}

TEST_F(SentOnDevice, GoesByTheHostUnlessAskedFor) {
  auto& plain = device(first_gpu());
  auto with = options();
  with.device = &plain;
  UnifiedBuffer<Byte> buffer(size, std::move(with));
  buffer.copy_from(pattern);
  buffer.sync_to_device(plain);
  buffer.release_host();
  auto const before = plain.transfers();
  auto const copy = received(sent(buffer));
  EXPECT_EQ(plain.transfers().since(before).device_to_host_bytes, size);
  EXPECT_EQ(plain.transfers().since(before).device_to_device_bytes, 0);
  EXPECT_EQ(copy.to_vector(), pattern);
}

TEST_F(SentOnDevice, GoesByTheHostWhereTheGpuIsFull) {
  auto const buffer = on_gpu();
  gpu.synchronize();
  auto const room = gpu.memory_info();
  standin_control().set_capacity(0, standin_control().used(0) + 1'000);
  auto const id = sent(buffer);
  standin_control().set_capacity(0, std::size_t{2} << 30U);
  ASSERT_GE(gpu.memory_info().free_bytes, room.free_bytes);
  auto const copy = received(id);
  EXPECT_EQ(copy.state(), BufferState::host_dirty);
  EXPECT_EQ(copy.to_vector(), pattern);
}

TEST_F(SentOnDevice, IsWhatWorkUnderWayWillHaveWritten) {
  auto buffer = on_gpu();
  standin_control().set_latency(50'000, 0);
  buffer.fill(3);
  auto const id = sent(buffer);
  standin_control().set_latency(0, 0);
  EXPECT_EQ(received(id).to_vector(), Bytes(size, 3));
}

TEST_F(SentOnDevice, SuitsAStrictBuffer) {
  auto const id = sent(on_gpu());
  auto strict = options();
  strict.strict = true;
  UnifiedBuffer<Byte> const copy(Shape(size), detail::receive_sent(id, size, std::move(strict)));
  EXPECT_EQ(copy.to_vector(), pattern);
}

TEST_F(SentOnDevice, RefusesWhatIsNoMemoryOfTheGpu) {
  auto const segment = detail::Segment::make("no memory of a GPU's", size);
  BufferId const id{77, 1};
  offer(id, detail::UniqueFd{::fcntl(segment.descriptor(), F_DUPFD_CLOEXEC, 0)},
        {SentNote::Kind::on_device, size, gpu.hardware_id()});
  EXPECT_THAT(why_lost(received(id)), HasSubstr("memory or more (cuda: cuMemImportFromShareableHandle"));
}

TEST_F(SentOnDevice, RefusesMemoryThatIsTooShort) {
  auto& exporter = *gpu.exporter();
  auto const memory = exporter.create(1);
  constexpr auto much = std::size_t{16} << 20U;  // more than the GPU's page
  BufferId const id{77, 2};
  offer(id, detail::UniqueFd{exporter.descriptor_of(memory)}, {SentNote::Kind::on_device, much, gpu.hardware_id()});
  EXPECT_THAT(why_lost(received(id, much)), HasSubstr("memory or more (cuda: cuMemMap"));
  exporter.release(memory);
}

TEST_F(SentOnDevice, RefusesAnotherSizeThanWasSent) {
  auto const copy = received(sent(on_gpu()), size - 1);
  EXPECT_THAT(why_lost(copy), HasSubstr("sent 300000 bytes by 1 descriptors instead of 299999 by 1"));
}

TEST_F(SentOnDevice, LeavesNothingWhateverTheDriverRefuses) {
  auto const buffer = on_gpu();
  static_cast<void>(soon([] { return detail::sent_and_not_received().buffers == 0; }));
  auto const files = open_descriptors();
  for (auto const* const call : {"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
                                 "cuMemcpyDtoDAsync", "cuMemExportToShareableHandle"}) {
    auto const before = InUse::now();
    standin_control().fail(call, 1, Result::not_supported, standin::FaultKind::once);
    EXPECT_THROW(static_cast<void>(sent(buffer)), DeviceError) << call;
    EXPECT_EQ(InUse::now(), before) << call;
    EXPECT_TRUE(soon([&] { return open_descriptors() == files; }))
        << call << ": " << open_descriptors() << ", before " << files;
  }
  for (auto const* const call :
       {"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemcpyDtoDAsync"}) {
    auto const id = sent(buffer);
    standin_control().fail(call, 1, Result::not_supported, standin::FaultKind::once);
    EXPECT_THAT(why_lost(received(id)), HasSubstr(std::string(call).substr(0, 8))) << call;
    EXPECT_TRUE(soon([&] { return open_descriptors() == files; }))
        << call << ": " << open_descriptors() << ", before " << files;
  }
  EXPECT_EQ(received(sent(buffer)).to_vector(), pattern);
}

TEST_F(SentOnDevice, ThrowsOutOfMemoryWhereTheReceiverHasNoRoom) {
  auto const id = sent(on_gpu());
  auto small = options();
  small.device = &device(first_gpu("memory=100KB"));
  EXPECT_THROW(static_cast<void>(detail::receive_sent(id, size, std::move(small))), OutOfMemory);
}

TEST(SentNotes, SurviveTheirText) {
  SentNote const note{SentNote::Kind::on_device, 4096, "cuda-1075"};
  EXPECT_EQ(note.encode(), "device 4096 cuda-1075");
  auto const read = SentNote::decode(note.encode());
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->kind, note.kind);
  EXPECT_EQ(read->bytes, note.bytes);
  EXPECT_EQ(read->hardware_id, note.hardware_id);
  for (auto const* const text : {"device 4096", "device 4096 ", "device  cuda", "device x cuda", "copy 4096 cuda",
                                 "copy", "shared 1x", "gpu 1 cuda", ""}) {
    EXPECT_FALSE(SentNote::decode(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace unimem::testing
