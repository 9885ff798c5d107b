#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/share/buffer_registry.hpp>
#include <unimem/share/detail/sent_buffers.hpp>

#include "buffer/buffer_fixture.hpp"
#include "buffer/shared_memory.hpp"
#include "process/peers.hpp"
#include "process/segment.hpp"
#include "process/shared_ranges.hpp"
#include "processes/device_work.hpp"
#include "processes/peer_commands.hpp"
#include "processes/peer_process.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// One memory that one process opens several times: it is one buffer there.

namespace unimem::testing {
namespace {

using namespace std::chrono_literals;
using detail::Peers;
using detail::Segment;
using detail::SharedMemory;
using detail::SharedRanges;
using Byte = std::uint8_t;
using Bytes = std::vector<Byte>;

class OpenedTwice : public BufferTest {
 protected:
  static constexpr std::size_t size = 4096;

  UnifiedBuffer<Byte> made() {
    auto options = on_sim();
    options.shared = true;
    UnifiedBuffer<Byte> buffer(size, std::move(options));
    buffer.copy_from(pattern_of(size, 1));
    return buffer;
  }
  static Peers::Parcel parcel(BufferId id) { return Peers::fetch({id.registry, id.number}).value(); }
  static std::size_t holders(BufferId id) {
    auto with = parcel(id);
    auto const memory = Segment::adopt(std::move(with.descriptors[1]), SharedRanges::bytes(), "itself");
    return SharedRanges::attach({memory.data(), memory.size()}, size, "itself").participants().size();
  }
  static bool are_one(UnifiedBuffer<Byte> const& one, UnifiedBuffer<Byte> const& other) {
    return one.shared_core() == other.shared_core();
  }
  static BufferId id_from(std::string const& text) {
    auto const dash = text.find('-');
    return {std::stoull(text.substr(0, dash), nullptr, 16), std::stoull(text.substr(dash + 1))};
  }

  BufferRegistry shared, elsewhere;
  Queue queue = sim.create_queue();
};

TEST_F(OpenedTwice, IsOneBufferByWhateverWayItComes) {
  auto buffer = made();
  auto const id = shared.publish(buffer, {.cross_process = true});
  auto const second = shared.publish(buffer, {.cross_process = true});
  EXPECT_TRUE(are_one(elsewhere.open<Byte>(id), buffer));
  EXPECT_TRUE(are_one(elsewhere.open<Byte>(second), buffer));
  EXPECT_EQ(elsewhere.resolve<Byte>({id, 10, 5}).to_vector().size(), 5U);
  EXPECT_EQ(detail::receive_sent(detail::send_shared(buffer.shared_core()), size, {}), buffer.shared_core());
  EXPECT_EQ(holders(id), 1U);

  // Of another process, by the id and sent by it.
  PeerProcess peer;
  auto const published = peer.ask("publish 4096 1");
  auto const theirs = id_from(published.substr(3));
  auto const one = shared.open<Byte>(theirs), other = elsewhere.open<Byte>(theirs);
  EXPECT_TRUE(are_one(one, other));
  EXPECT_FALSE(are_one(one, buffer));
  EXPECT_EQ(holders(theirs), 2U);
}

TEST_F(OpenedTwice, DoesNotStandInItsOwnWay) {
  auto buffer = made();
  auto const id = shared.publish(buffer, {.cross_process = true});
  auto again = elsewhere.open<Byte>(id);
  PeerProcess peer;
  ASSERT_EQ(peer.ask("open " + to_string(id)), "ok 4096");
  auto mapped = buffer.slice(100, 10).map(MapMode::read_write);
  mapped[0] = 7;
  auto done = std::async(std::launch::async, [&] {
    again.slice(105, 10).fill(9);
    fill_on(queue, again.slice(0, 10), 3).wait();
    return again.slice(100, 1).to_vector();
  });
  ASSERT_EQ(done.wait_for(10s), std::future_status::ready) << "it waits for itself";
  EXPECT_EQ(done.get(), Bytes{7});
  peer.tell("read 100 1");
  EXPECT_FALSE(peer.answers_within(100ms)) << "others wait for it";
  mapped.unmap();
  EXPECT_EQ(peer.answer(), "ok 07");
  EXPECT_EQ(peer.ask("read 108 3"), "ok 090909");
  EXPECT_EQ(peer.ask("read 9 1"), "ok 03");
}

TEST_F(OpenedTwice, SeesOnDevicesWhatEitherWrote) {
  auto buffer = made();
  auto const id = shared.publish(buffer, {.cross_process = true});
  auto again = elsewhere.open<Byte>(id);
  buffer.sync_to_device(sim);
  again.slice(10, 5).fill(4);
  UnifiedBuffer<Byte> result(5, on_sim());
  copy_on(queue, buffer.slice(10, 5), result.slice(0, 5));
  EXPECT_EQ(result.to_vector(), Bytes(5, 4));
  fill_on(queue, buffer.slice(20, 5), 6);
  EXPECT_EQ(again.slice(20, 5).to_vector(), Bytes(5, 6));
}

TEST_F(OpenedTwice, IsAnotherBufferOnceItWasFreed) {
  auto buffer = made();
  auto const id = shared.publish(buffer, {.cross_process = true});
  PeerProcess peer;
  ASSERT_EQ(peer.ask("open " + to_string(id)), "ok 4096");
  buffer.free();
  auto again = elsewhere.open<Byte>(id);  // from the peer
  EXPECT_FALSE(are_one(again, buffer));
  EXPECT_EQ(again.to_vector(), pattern_of(size, 1));
  buffer.fill(0);
  EXPECT_EQ(peer.ask("put 0 10 2"), "ok");
  EXPECT_EQ(again.slice(0, 10).to_vector(), pattern_of(10, 2));
  EXPECT_EQ(buffer.slice(0, 10).to_vector(), Bytes(10, 0));
  EXPECT_EQ(holders(id), 2U);
}

TEST_F(OpenedTwice, IsOneBufferHoweverManyThreadsAndRegistriesOpenIt) {
  PeerProcess peer;
  auto const theirs = id_from(peer.ask("publish 4096 1").substr(3));
  constexpr std::size_t threads = 6;
  for (int round = 0; round < 10; ++round) {
    std::array<BufferRegistry, threads> registries;
    std::array<std::shared_ptr<BufferCore>, threads> opened;
    std::atomic<bool> go{false};
    {
      std::vector<std::jthread> all;
      for (std::size_t i = 0; i < threads; ++i) {
        all.emplace_back([&, i] {
          while (!go) std::this_thread::yield();
          opened[i] = registries[i].open<Byte>(theirs).shared_core();
        });
      }
      go = true;
    }
    for (auto const& one : opened) EXPECT_EQ(one, opened[0]);
    EXPECT_EQ(holders(theirs), 2U);
    opened = {};
    EXPECT_EQ(holders(theirs), 1U);
  }
}

/// As where one is still leased when the memory is opened anew: the end of it withdraws nothing of the other's.
TEST_F(OpenedTwice, WithdrawsItsOwnOffersAlone) {
  auto buffer = made();
  auto const id = shared.publish(buffer, {.cross_process = true});
  Peers::Key const key{id.registry ^ 0x77U, 1};
  auto& peers = Peers::of_this_process();
  auto const attached = [&] { return SharedMemory::attach("it", parcel(id).descriptors, size, "itself"); };
  auto one = attached(), other = attached();
  EXPECT_EQ(one->identity(), other->identity());
  one->offer(key, "first");
  other->offer(key, "second");
  one.reset();
  ASSERT_TRUE(peers.offers(key));
  EXPECT_EQ(Peers::fetch(key)->bytes, "second");
  other.reset();
  EXPECT_FALSE(peers.offers(key));
  EXPECT_EQ(holders(id), 1U);
}

}  // namespace
}  // namespace unimem::testing
