#include <unimem/buffer/buffer_pool.hpp>
#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/share/buffer_registry.hpp>

#include "buffer/buffer_fixture.hpp"
#include "processes/peer_process.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// Turns of several processes at one buffer: what comes between them, and what must not.

namespace unimem::testing {
namespace {

using Byte = std::uint8_t;
using Bytes = std::vector<Byte>;

class TurnsOfProcesses : public BufferTest {
 protected:
  static constexpr std::size_t size = 4096;

  UnifiedBuffer<Byte> zeros(Device& on) {
    auto options = on_sim();
    options.device = &on;
    options.shared = true;
    UnifiedBuffer<Byte> buffer(size, std::move(options));
    buffer.fill(0);
    return buffer;
  }
  UnifiedBuffer<Byte> zeros() { return zeros(sim); }
  std::string id_of(UnifiedBuffer<Byte>& buffer) { return to_string(shared.publish(buffer, {.cross_process = true})); }

  BufferRegistry shared;
  Queue queue = sim.create_queue();
};

TEST_F(TurnsOfProcesses, CopyOppositeWays) {
  auto one = zeros(), other = zeros();
  PeerProcess there, back;
  for (auto* const peer : {&there, &back}) {
    ASSERT_EQ(peer->ask("open " + id_of(one)), "ok 4096");
    ASSERT_EQ(peer->ask("@1 open " + id_of(other)), "ok 4096");
  }
  there.tell("copy_often 2000 0 0 100 1 0 100");
  back.tell("copy_often 2000 1 0 100 0 0 100");
  EXPECT_EQ(there.answer(), "ok");
  EXPECT_EQ(back.answer(), "ok");
  there.tell("copy_often 2000 0 0 100 0 100 100");
  back.tell("copy_often 2000 0 100 100 0 0 100");
  EXPECT_EQ(there.answer(), "ok");
  EXPECT_EQ(back.answer(), "ok");
}

TEST_F(TurnsOfProcesses, FindThatAWriterIsDeadWhileOthersAreBusy) {
  auto buffer = zeros();
  auto const id = id_of(buffer);
  PeerProcess dead, busy;
  ASSERT_EQ(dead.ask("open " + id), "ok 4096");
  ASSERT_EQ(busy.ask("open " + id), "ok 4096");
  ASSERT_TRUE(dead.ask("map_as read_write 0 100").starts_with("ok"));
  dead.kill();
  busy.tell("put_often 1000000 2000 10 3");
  while (buffer.slice(2000, 1).to_vector() == Bytes{0}) std::this_thread::yield();
  EXPECT_THROW(static_cast<void>(buffer.slice(0, 100).to_vector()), DataLost);
  EXPECT_FALSE(busy.answers_within(std::chrono::milliseconds(0))) << "that was to go on all the time";
  busy.kill();
}

/// Between what is written here and has not come to the host, others write so much that the book tells of neighbours as
/// one.
TEST_F(TurnsOfProcesses, KeepWhatIsJustWrittenWhereNeighboursAreToldAsOne) {
  constexpr std::size_t own = 100;
  auto buffer = zeros();
  PeerProcess peer;
  ASSERT_EQ(peer.ask("open " + id_of(buffer)), "ok 4096");
  std::promise<void> gate;
  auto const slice = buffer.slice(own, 1);
  Operand const operand{&slice.core(), slice.range(), Intent::write};
  auto const written = run(queue, {&operand, 1}, [&](std::span<const HostArgument> arguments) {
    gate.get_future().wait();
    *static_cast<Byte*>(arguments[0].data) = 7;
  });
  for (std::size_t at = 1; at < 1000; at += 2) {  // both neighbours, too
    ASSERT_EQ(peer.ask("write " + std::to_string(at) + " 1 9"), "ok");
  }
  EXPECT_EQ(buffer.slice(4000, 1).to_vector(), Bytes{0}) << "here it is seen what others have written";
  gate.set_value();
  written.wait();
  EXPECT_EQ(peer.ask("read 99 3"), "ok 090709");
  EXPECT_EQ(buffer.slice(98, 3).to_vector(), (Bytes{0, 9, 7}));
}

/// A copy that is cheaper as one, with what lies between, may take nothing along to memory where others write.
TEST_F(TurnsOfProcesses, LeaveToOthersWhatLiesBetween) {
  auto& slow = make_sim({.latency = std::chrono::milliseconds(5)});
  auto buffer = zeros(slow);
  buffer.sync_to_device(slow);
  PeerProcess peer;
  ASSERT_EQ(peer.ask("open " + id_of(buffer)), "ok 4096");
  auto on = slow.create_queue();
  {
    std::vector<Event> written;
    auto const write = [&](std::size_t begin, std::size_t count) {
      auto part = buffer.slice(begin, count);
      auto lease = part.device_overwrite(slow);
      on.fill(lease.native(), std::vector<std::byte>{std::byte{5}}).wait();
      return lease;
    };
    auto const first = write(0, 100), second = write(110, 90);
    ASSERT_TRUE(peer.ask("map 100 10").starts_with("ok"));
    ASSERT_EQ(peer.ask("poke 1"), "ok");
    buffer.slice(0, 200).sync_to_host_async().wait();
  }
  ASSERT_EQ(peer.ask("unmap"), "ok");
  EXPECT_EQ(peer.ask("read 98 4"), "ok 05050101");
  EXPECT_EQ(buffer.slice(108, 4).to_vector(), (Bytes{1, 1, 5, 5}));
}

TEST_F(TurnsOfProcesses, OverwriteNothingOfOthersWhenAPoolGetsABufferBack) {
  BufferPoolOptions options;
  options.manager = &manager;
  options.device = &sim;
  options.settings.zero_on_release = true;
  BufferPool pool(std::move(options));
  auto buffer = pool.acquire<Byte>(size);
  buffer.fill(6);
  auto const id = shared.publish(buffer, {.cross_process = true});
  PeerProcess peer;
  ASSERT_EQ(peer.ask("open " + to_string(id)), "ok 4096");
  shared.release(id);
  pool.release(buffer);
  EXPECT_EQ(peer.ask("read 0 4"), "ok 06060606");
}

/// Pages tell of writes, and not whose they are.
TEST_F(TurnsOfProcesses, AreToldAndNotLookedFor) {
  constexpr std::size_t large = std::size_t{256} << 10;
  auto options = on_sim();
  options.shared = true;
  options.tracking = Tracking::pages;
  UnifiedBuffer<Byte> buffer(large, std::move(options));
  buffer.fill(0);
  EXPECT_EQ(buffer.tracking(), Tracking::access);
  buffer.sync_to_device();
  PeerProcess peer;
  ASSERT_EQ(peer.ask("open " + id_of(buffer)), "ok " + std::to_string(large));
  ASSERT_EQ(peer.ask("write 5000 10 7"), "ok");
  auto const before = buffer.statistics().host_to_device_bytes;
  buffer.sync_to_device();
  EXPECT_EQ(buffer.statistics().host_to_device_bytes, before + 10);
}

}  // namespace
}  // namespace unimem::testing
