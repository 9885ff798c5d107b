#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/share/buffer_registry.hpp>

#include "buffer/buffer_fixture.hpp"
#include "processes/device_work.hpp"
#include "processes/peer_process.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

// One buffer in several processes: what each sees of the others' writes, and what of it moves.

namespace unimem::testing {
namespace {

using Byte = std::uint8_t;
using Bytes = std::vector<Byte>;

class SharedByProcesses : public BufferTest {
 protected:
  static constexpr std::size_t size = 4096;

  static Bytes numbers() {
    Bytes data(size);
    for (std::size_t i = 0; i < size; ++i) data[i] = static_cast<Byte>(i % 251);
    return data;
  }
  static Bytes part_of_numbers(std::size_t offset, std::size_t count) {
    auto const all = numbers();
    auto const some = std::span(all).subspan(offset, count);
    return {some.begin(), some.end()};
  }
  UnifiedBuffer<Byte> made(bool shared = true) {
    auto options = on_sim();
    options.shared = shared;
    UnifiedBuffer<Byte> buffer(size, std::move(options));
    buffer.copy_from(numbers());
    return buffer;
  }
  static std::string hex(std::size_t count, Byte value) {
    std::string text;
    for (std::size_t i = 0; i < count; ++i) text += fmt::format("{:02x}", value);
    return "ok " + text;
  }
  static std::string hex(Bytes const& bytes) {
    std::string text;
    for (auto const byte : bytes) text += fmt::format("{:02x}", byte);
    return "ok " + text;
  }
  /// Its elements from `offset` on, by way of a device.
  Bytes seen_on_device(UnifiedBuffer<Byte>& buffer, std::size_t offset, std::size_t count) {
    UnifiedBuffer<Byte> result(count, on_sim());
    auto from = buffer.slice(offset, count);
    copy_on(queue, from, result.slice(0, count));
    return result.to_vector();
  }
  BufferRegistry shared;
  Queue queue = sim.create_queue();
};

TEST_F(SharedByProcesses, SeeWhatEachWrites) {
  auto buffer = made();
  auto const id = shared.publish(buffer, {.cross_process = true});
  PeerProcess peer;
  ASSERT_EQ(peer.ask("open " + to_string(id)), "ok 4096");
  EXPECT_EQ(peer.ask("read 0 4096"), hex(numbers()));

  EXPECT_EQ(peer.ask("write 100 50 7"), "ok");
  auto expected = numbers();
  for (std::size_t i = 100; i < 150; ++i) expected[i] = 7;
  EXPECT_EQ(buffer.to_vector(), expected);

  buffer.slice(200, 10).copy_from(Bytes(10, 9));
  EXPECT_EQ(peer.ask("read 198 14"), "ok c6c7" + hex(10, 9).substr(3) + "d2d3");
  EXPECT_EQ(peer.ask("look 200 10"), hex(10, 9));
}

TEST_F(SharedByProcesses, CopyNothingToOpen) {
  auto buffer = made();
  auto const before = buffer.statistics();
  auto const id = shared.publish(buffer, {.cross_process = true});
  EXPECT_EQ(moved(buffer.statistics()), moved(before));
  PeerProcess peer;
  ASSERT_EQ(peer.ask("open " + to_string(id)), "ok 4096");
  EXPECT_EQ(peer.ask("moved"), "ok 0 0");
  EXPECT_EQ(peer.ask("open_again " + to_string(id)), "ok same");
}

TEST_F(SharedByProcesses, CopyOnceToPublishWhatWasNotMadeShared) {
  auto buffer = made(false);
  fill_on(queue, buffer.slice(0, 100), 5);
  auto const id = shared.publish(buffer, {.cross_process = true});
  auto const copied = [&] {
    std::size_t bytes = 0;
    for (auto const& link : buffer.migrations()) bytes += link.to == "shared memory" ? link.bytes : 0;
    return bytes;
  };
  EXPECT_EQ(copied(), size);
  auto expected = numbers();
  for (std::size_t i = 0; i < 100; ++i) expected[i] = 5;
  EXPECT_EQ(buffer.to_vector(), expected);
  PeerProcess peer;
  ASSERT_EQ(peer.ask("open " + to_string(id)), "ok 4096");
  EXPECT_EQ(peer.ask("read 0 4096"), hex(expected));
  auto const again = shared.publish(buffer, {.cross_process = true});
  EXPECT_EQ(copied(), size) << "it was there already";
  ASSERT_EQ(peer.ask("open " + to_string(again)), "ok 4096");
}

TEST_F(SharedByProcesses, BringToDevicesWhatOthersWroteAndNoMore) {
  auto buffer = made();
  auto const id = shared.publish(buffer, {.cross_process = true});
  buffer.sync_to_device();
  PeerProcess peer;
  ASSERT_EQ(peer.ask("open " + to_string(id)), "ok 4096");
  auto const before = buffer.statistics().host_to_device_bytes;
  EXPECT_EQ(seen_on_device(buffer, 0, size), numbers());
  EXPECT_EQ(buffer.statistics().host_to_device_bytes, before) << "nobody wrote";

  EXPECT_EQ(peer.ask("write 1000 24 77"), "ok");
  EXPECT_EQ(buffer.state(), BufferState::host_dirty);
  EXPECT_EQ(seen_on_device(buffer, 1000, 24), Bytes(24, 77));
  EXPECT_EQ(buffer.statistics().host_to_device_bytes, before + 24) << "the range that was written";
  EXPECT_EQ(seen_on_device(buffer, 0, 1000), part_of_numbers(0, 1000));
  EXPECT_EQ(buffer.statistics().host_to_device_bytes, before + 24);
}

TEST_F(SharedByProcesses, SeeWhatDevicesWrite) {
  auto buffer = made();
  auto const id = shared.publish(buffer, {.cross_process = true});
  PeerProcess peer;
  ASSERT_EQ(peer.ask("open " + to_string(id)), "ok 4096");
  EXPECT_EQ(peer.ask("write_on_device 10 20 33"), "ok");
  EXPECT_EQ(seen_on_device(buffer, 10, 20), Bytes(20, 33));
  EXPECT_EQ(peer.ask("write_on_cpu 20 20 34"), "ok");
  EXPECT_EQ(seen_on_device(buffer, 15, 10), (Bytes{33, 33, 33, 33, 33, 34, 34, 34, 34, 34}));
  fill_on(queue, buffer.slice(0, 5), 88);
  EXPECT_EQ(peer.ask("read_on_device 0 6"), "ok 585858585805");
  EXPECT_EQ(peer.ask("read 0 6"), "ok 585858585805");
}

TEST_F(SharedByProcesses, SeeAMappingsWritesWhenItEnds) {
  auto buffer = made();
  auto const id = shared.publish(buffer, {.cross_process = true});
  PeerProcess peer;
  ASSERT_EQ(peer.ask("open " + to_string(id)), "ok 4096");
  EXPECT_EQ(peer.ask("map 0 100"), "ok");
  EXPECT_EQ(peer.ask("poke 1"), "ok");
  PeerProcess other;
  ASSERT_EQ(other.ask("open " + to_string(id)), "ok 4096");
  other.tell("read 50 2");
  EXPECT_FALSE(other.answers_within(std::chrono::milliseconds(200))) << "it waits for the mapping's end";
  EXPECT_EQ(buffer.slice(200, 2).to_vector(), (Bytes{200, 201})) << "beside it nothing waits";
  EXPECT_EQ(peer.ask("unmap"), "ok");
  EXPECT_EQ(other.answer(), "ok 0101");
}

TEST_F(SharedByProcesses, WaitForReadersBeforeTheyWrite) {
  auto buffer = made();
  auto const id = shared.publish(buffer, {.cross_process = true});
  PeerProcess peer;
  ASSERT_EQ(peer.ask("open " + to_string(id)), "ok 4096");
  auto reading = buffer.slice(0, 100).map(MapMode::read);
  peer.tell("write 50 100 3");
  EXPECT_FALSE(peer.answers_within(std::chrono::milliseconds(200)));
  EXPECT_EQ(reading[60], 60) << "what it reads stays";
  reading.unmap();
  EXPECT_EQ(peer.answer(), "ok");
  EXPECT_EQ(buffer.slice(50, 100).to_vector(), Bytes(100, 3));
}

TEST_F(SharedByProcesses, RefuseWhatHasNoEnd) {
  auto buffer = made();
  auto const id = shared.publish(buffer, {.cross_process = true});
  EXPECT_THROW(static_cast<void>(buffer.host()), UnsupportedOperation);
  EXPECT_EQ(std::as_const(buffer).host_view()[3], 3);
  EXPECT_THROW(buffer.resize(10), UnsupportedOperation);
  EXPECT_THROW(buffer.discard(), UnsupportedOperation);
  EXPECT_THROW(buffer.release_host(), UnsupportedOperation);
  EXPECT_EQ(buffer.to_vector(), numbers());
  shared.release(id);
}

TEST_F(SharedByProcesses, AreFreedInOneOfThem) {
  auto buffer = made();
  auto const id = shared.publish(buffer, {.cross_process = true});
  PeerProcess peer, other;
  ASSERT_EQ(peer.ask("open " + to_string(id)), "ok 4096");
  buffer.free();
  EXPECT_EQ(buffer.state(), BufferState::uninitialized);
  EXPECT_EQ(peer.ask("write 0 4 9"), "ok");
  EXPECT_EQ(peer.ask("read 2 4"), "ok 09090405");
  EXPECT_EQ(other.ask("open " + to_string(id)), "ok 4096") << "the other holder serves it";
  buffer.copy_from(numbers());
  EXPECT_EQ(other.ask("read 2 4"), "ok 09090405") << "what is made anew is another";
}

TEST_F(SharedByProcesses, RefuseToPublishWhatIsHeld) {
  auto buffer = made(false);
  auto const publish = [&] { static_cast<void>(shared.publish(buffer, {.cross_process = true})); };
  {
    auto const mapped = buffer.map(MapMode::read);
    EXPECT_THROW(publish(), UnsupportedOperation);
  }
  Bytes own(size, 4);
  auto wrapped = manager.wrap(own.data(), own.size(), Location::host, Ownership::borrow());
  EXPECT_THROW(static_cast<void>(shared.publish(wrapped, {.cross_process = true})), UnsupportedOperation);
  auto exported = made(false);
  auto const* const address = exported.host().data();
  EXPECT_THROW(static_cast<void>(shared.publish(exported, {.cross_process = true})), UnsupportedOperation);
  EXPECT_EQ(exported.host().data(), address);
  EXPECT_EQ(shared.size(), 0U);
  EXPECT_NO_THROW(publish());
  EXPECT_EQ(buffer.to_vector(), numbers());
}

TEST_F(SharedByProcesses, ServeFromAnyHolder) {
  PeerProcess second;
  std::string id;
  {
    PeerProcess first;
    auto const published = first.ask("publish 300 1");
    ASSERT_TRUE(published.starts_with("ok ")) << published;
    id = published.substr(3);
    ASSERT_EQ(second.ask("open " + id), "ok 300");
    first.kill();
  }
  PeerProcess third;
  EXPECT_EQ(third.ask("open " + id), "ok 300");
  EXPECT_EQ(third.ask("read 0 3"), "ok 010203");
  EXPECT_EQ(third.ask("write 0 3 9"), "ok");
  EXPECT_EQ(second.ask("read 0 4"), "ok 09090904");
  EXPECT_EQ(second.ask("close"), "ok");
  EXPECT_EQ(third.ask("close"), "ok");
  EXPECT_TRUE(third.ask("open " + id).starts_with("error NotFound")) << "the last holder has gone";
}

TEST_F(SharedByProcesses, RefuseOtherElementsAndUnknownIds) {
  auto buffer = made();
  auto const id = shared.publish(buffer, {.cross_process = true});
  PeerProcess peer;
  auto const refused = peer.ask("open_as_floats " + to_string(id));
  EXPECT_TRUE(refused.starts_with("error InvalidArgument")) << refused;
  EXPECT_TRUE(peer.ask("open 0123456789abcdef-1").starts_with("error NotFound"));
  shared.release(id);
  EXPECT_TRUE(peer.ask("open " + to_string(id)).starts_with("error NotFound"));
  auto const not_for_others = shared.publish(buffer);
  EXPECT_TRUE(peer.ask("open " + to_string(not_for_others)).starts_with("error NotFound"));
}

TEST_F(SharedByProcesses, LoseWhatADeadWriterWasWriting) {
  auto buffer = made();
  auto const id = shared.publish(buffer, {.cross_process = true});
  buffer.sync_to_device();
  PeerProcess peer, other;
  ASSERT_EQ(peer.ask("open " + to_string(id)), "ok 4096");
  ASSERT_EQ(other.ask("open " + to_string(id)), "ok 4096");
  ASSERT_EQ(peer.ask("map 1000 100"), "ok");
  ASSERT_EQ(peer.ask("poke 1"), "ok");
  peer.kill();
  EXPECT_THROW(static_cast<void>(buffer.to_vector()), DataLost);
  EXPECT_TRUE(other.ask("read 1050 2").starts_with("error DataLost"));
  EXPECT_TRUE(other.ask("read_on_device 1050 2").starts_with("error DataLost"));
  EXPECT_THROW(static_cast<void>(seen_on_device(buffer, 1000, 10)), DataLost) << "nor has the device's copy it";
  EXPECT_EQ(buffer.slice(900, 100).to_vector(), part_of_numbers(900, 100));
  EXPECT_EQ(other.ask("write 1000 60 5"), "ok");
  EXPECT_EQ(buffer.slice(1000, 60).to_vector(), Bytes(60, 5)) << "until somebody writes it";
  EXPECT_THROW(static_cast<void>(buffer.slice(1059, 2).to_vector()), DataLost);
  buffer.slice(1060, 40).copy_from(Bytes(40, 6));
  EXPECT_EQ(other.ask("read 1059 2"), "ok 0506");
}

TEST_F(SharedByProcesses, OpenWhatHasLostBytes) {
  auto buffer = made();
  auto const id = shared.publish(buffer, {.cross_process = true});
  PeerProcess peer, other;
  ASSERT_EQ(peer.ask("open " + to_string(id)), "ok 4096");
  ASSERT_EQ(peer.ask("map 1000 100"), "ok");
  peer.kill();
  EXPECT_THROW(static_cast<void>(buffer.to_vector()), DataLost);
  EXPECT_EQ(other.ask("open " + to_string(id)), "ok 4096");
  EXPECT_EQ(other.ask("read 999 1"), "ok f6");
  EXPECT_TRUE(other.ask("read 1099 1").starts_with("error DataLost"));
  static_cast<void>(shared.publish(buffer, {.cross_process = true}));
}

TEST_F(SharedByProcesses, ReadsOfADeadReaderStopNoWriter) {
  auto buffer = made();
  auto const id = shared.publish(buffer, {.cross_process = true});
  PeerProcess peer;
  ASSERT_EQ(peer.ask("open " + to_string(id)), "ok 4096");
  ASSERT_EQ(peer.ask("hold 0 4096"), "ok");
  peer.kill();
  buffer.fill(3);
  EXPECT_EQ(buffer.to_vector(), Bytes(size, 3));
}

TEST_F(SharedByProcesses, CountTowardsTheHostsLimitWhereTheyAreMade) {
  auto const before = manager.pool(device("cpu"), Location::host).statistics().active_bytes;
  auto buffer = made();
  EXPECT_GE(manager.pool(device("cpu"), Location::host).statistics().active_bytes, before + size);
}

}  // namespace
}  // namespace unimem::testing
