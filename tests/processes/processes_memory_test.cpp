#include <unimem/buffer/double_buffer.hpp>
#include <unimem/buffer/sleep.hpp>
#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/share/buffer_registry.hpp>
#include <unimem/stream/save.hpp>

#include "buffer/spilling_fixture.hpp"
#include "processes/device_work.hpp"
#include "processes/peer_commands.hpp"
#include "processes/peer_process.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

// What gives a buffer's memory back, takes it by turns or keeps its contents elsewhere, while processes share it:
// spilling, eviction, sleep, double buffers and files of named buffers.

namespace unimem::testing {
namespace {

using namespace std::chrono_literals;
using Byte = std::uint8_t;
using Bytes = std::vector<Byte>;

/// With a manager that spills, and a device of its own.
class MemoryOfProcesses : public Spilling {
 protected:
  static constexpr std::size_t size = 4096;
  static constexpr std::size_t large = MiB;

  UnifiedBuffer<Byte> made(std::string name, std::size_t bytes = size) {
    auto options = named(std::move(name));
    options.shared = true;
    UnifiedBuffer<Byte> buffer(bytes, std::move(options));
    buffer.copy_from(pattern_of(bytes, 1));
    return buffer;
  }
  template <class T>
  std::string id_of(UnifiedBuffer<T> const& buffer) {
    return to_string(shared.publish(buffer, {.cross_process = true}));
  }
  void open(PeerProcess& peer, UnifiedBuffer<Byte> const& buffer) {
    ASSERT_EQ(peer.ask("open " + id_of(buffer)), "ok " + std::to_string(buffer.size()));
  }
  /// Its bytes as work on the device finds them.
  Bytes seen_on_device(UnifiedBuffer<Byte>& buffer, std::size_t offset, std::size_t count) {
    UnifiedBuffer<Byte> result(count, named({}));
    copy_on(queue, buffer.slice(offset, count), result.slice(0, count));
    return result.to_vector();
  }
  static std::string seen(Bytes const& bytes) { return "ok " + told(bytes); }
  static Bytes part_of(Bytes const& bytes, std::size_t offset, std::size_t count) {
    auto const first = bytes.begin() + static_cast<std::ptrdiff_t>(offset);
    return {first, first + static_cast<std::ptrdiff_t>(count)};
  }
  [[nodiscard]] std::uint64_t uploaded() { return sim.transfers().host_to_device_bytes; }
  [[nodiscard]] std::uint64_t downloaded() { return sim.transfers().device_to_host_bytes; }

  BufferRegistry shared;
  Queue queue = sim.create_queue();
};

TEST_F(MemoryOfProcesses, TakeTurnsInADoubleBuffer) {
  auto options = named("frames");
  options.shared = true;
  DoubleBuffer<Byte> frames(size, options);
  PeerProcess peer;
  for (auto const* const at : {"@0 ", "@1 "}) {
    auto* const back = frames.back();
    back->fill(0);
    EXPECT_THROW(static_cast<void>(back->host_overwrite()), UnsupportedOperation);
    ASSERT_EQ(peer.ask(at + ("open " + id_of(*back))), "ok 4096");
    frames.publish();
    static_cast<void>(frames.front());
    frames.release();
  }
  for (std::uint32_t round = 2; round < 40; ++round) {
    auto const at = "@" + std::to_string(round % 2) + " ";
    auto* const back = frames.back();
    switch (round % 3) {
      case 0:  // this process produces
        back->copy_from(pattern_of(size, round));
        break;
      case 1:  // the other, on its device
        ASSERT_EQ(peer.ask(at + "put_on sim 0 4096 " + std::to_string(round)), "ok");
        break;
      default: {  // this one's device, whose work goes on
        auto const slice = back->slice(0, size);
        run_on(queue, {operand(slice, Intent::write)},
               [round](OperandBytes const& bytes) { std::ranges::copy(pattern_of(size, round), bytes[0].begin()); });
      }
    }
    frames.publish();
    auto const* const front = frames.front();
    ASSERT_EQ(front, back);
    ASSERT_EQ(peer.ask(at + "see 0 4096"), seen(pattern_of(size, round))) << round;
    ASSERT_EQ(peer.ask(at + "see_on sim 0 4096"), seen(pattern_of(size, round))) << round;
    ASSERT_EQ(seen_on_device(*back, 0, size), pattern_of(size, round)) << round;
    frames.release();
  }
}

TEST_F(MemoryOfProcesses, SleepAndWakeWithWhatOthersWroteMeanwhile) {
  auto buffer = made("model.weights", large);
  buffer.sync_to_device();
  PeerProcess peer;
  open(peer, buffer);
  EXPECT_EQ(sleep(manager, "model"), large);
  EXPECT_FALSE(buffer.valid_on(sim));
  ASSERT_EQ(peer.ask("put 1000 500 7"), "ok");
  auto const before = uploaded();
  EXPECT_EQ(wake(manager, "model"), large);
  EXPECT_EQ(uploaded() - before, large);
  EXPECT_TRUE(buffer.valid_on(sim));
  auto expected = pattern_of(large, 1);
  std::ranges::copy(pattern_of(500, 7), expected.begin() + 1000);
  EXPECT_EQ(seen_on_device(buffer, 0, large), expected);
  EXPECT_EQ(uploaded() - before, large) << "it was there";

  ASSERT_EQ(peer.ask("put 0 64 8"), "ok");
  EXPECT_FALSE(buffer.valid_on(sim)) << "others are asked first";
  EXPECT_EQ(sleep(manager, "model"), large);
  EXPECT_EQ(seen_on_device(buffer, 0, large).size(), large) << "used meanwhile, it comes back by itself";
  ASSERT_EQ(peer.ask("put 100 64 9"), "ok");
  EXPECT_EQ(wake(manager, "model"), 64U) << "and what was written since";
  std::ranges::copy(pattern_of(64, 8), expected.begin());
  std::ranges::copy(pattern_of(64, 9), expected.begin() + 100);
  EXPECT_EQ(seen_on_device(buffer, 0, large), expected);
  EXPECT_EQ(peer.ask("see 0 " + std::to_string(large)), seen(expected));
}

TEST_F(MemoryOfProcesses, SleepWithWhatADeviceHasJustWritten) {
  auto buffer = made("model");
  PeerProcess peer;
  open(peer, buffer);
  fill_on(queue, buffer.slice(100, 50), 5);
  EXPECT_EQ(sleep(manager, "model"), size);
  auto expected = pattern_of(size, 1);
  std::fill_n(expected.begin() + 100, 50, Byte{5});
  EXPECT_EQ(peer.ask("see 0 4096"), seen(expected));
  EXPECT_EQ(buffer.to_vector(), expected);
  wake(manager, "model");
  EXPECT_EQ(seen_on_device(buffer, 0, size), expected);
}

TEST_F(MemoryOfProcesses, WakeOnceWhatADeadWriterLostIsWrittenAgain) {
  auto buffer = made("model");
  buffer.sync_to_device();
  PeerProcess peer;
  open(peer, buffer);
  sleep(manager, "model");
  ASSERT_TRUE(peer.ask("map 10 20").starts_with("ok"));
  peer.kill();
  EXPECT_THROW(static_cast<void>(buffer.slice(29, 1).to_vector()), DataLost);
  EXPECT_THROW(wake(manager, "model"), DataLost);
  buffer.slice(10, 20).fill(3);
  EXPECT_EQ(wake(manager, "model"), size) << "it was still asleep";
  auto expected = pattern_of(size, 1);
  std::fill_n(expected.begin() + 10, 20, Byte{3});
  EXPECT_EQ(seen_on_device(buffer, 0, size), expected);
}

TEST_F(MemoryOfProcesses, AreSavedAndRestoredForAll) {
  auto buffer = made("state", 5 * MiB);  // more than a block
  PeerProcess peer;
  open(peer, buffer);
  ASSERT_EQ(peer.ask("put_on sim 4000000 500000 7"), "ok");
  auto const path = directory.path() + "/state.safetensors";
  save(manager, path);
  auto expected = pattern_of(5 * MiB, 1);
  std::ranges::copy(pattern_of(500'000, 7), expected.begin() + 4'000'000);
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  Bytes tail(expected.size());
  file.seekg(-static_cast<std::streamoff>(tail.size()), std::ios::end);
  file.read(reinterpret_cast<char*>(tail.data()), static_cast<std::streamsize>(tail.size()));
  EXPECT_EQ(tail, expected) << "with what the other process's device wrote";

  ASSERT_EQ(peer.ask("put 0 5242880 8"), "ok");
  buffer.slice(0, 100).fill(0);
  ASSERT_EQ(peer.ask("to_device 0 5242880"), "ok");
  auto const before = peer.ask("moved");
  restore(manager, path);
  EXPECT_EQ(peer.ask("see 0 5242880"), seen(expected));
  EXPECT_EQ(peer.ask("moved"), before);
  EXPECT_EQ(peer.ask("see_on sim 0 5242880"), seen(expected)) << "their devices' copies were stale by it";
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(seen_on_device(buffer, 0, buffer.size()), expected);
}

TEST_F(MemoryOfProcesses, AreSavedAndRestoredBetweenTheTurnsOfOthers) {
  auto buffer = made("state");
  PeerProcess peer;
  open(peer, buffer);
  auto const path = directory.path() + "/state.safetensors";
  ASSERT_EQ(peer.ask("map 10 20"), "ok");
  ASSERT_EQ(peer.ask("poke 9"), "ok");
  auto saving = std::async(std::launch::async, [&] { save(manager, path); });
  EXPECT_EQ(saving.wait_for(200ms), std::future_status::timeout) << "nothing half written is saved";
  EXPECT_EQ(peer.ask("unmap"), "ok");
  saving.get();
  auto expected = pattern_of(size, 1);
  std::fill_n(expected.begin() + 10, 20, Byte{9});

  buffer.fill(0);
  ASSERT_TRUE(peer.ask("map_as read 100 10").starts_with("ok"));
  auto restoring = std::async(std::launch::async, [&] { restore(manager, path); });
  EXPECT_EQ(restoring.wait_for(200ms), std::future_status::timeout);
  EXPECT_EQ(peer.ask("see_held"), seen(Bytes(10, 0))) << "what is read stays";
  EXPECT_EQ(peer.ask("drop"), "ok");
  restoring.get();
  EXPECT_EQ(peer.ask("see 0 4096"), seen(expected));
}

TEST_F(MemoryOfProcesses, AreRestoredWhereADeadWriterLostBytes) {
  auto buffer = made("state");
  PeerProcess peer, other;
  open(peer, buffer);
  open(other, buffer);
  auto const path = directory.path() + "/state.safetensors";
  save(manager, path);
  ASSERT_TRUE(peer.ask("map 10 20").starts_with("ok"));
  peer.kill();
  EXPECT_THROW(save(manager, directory.path() + "/lost.safetensors"), DataLost);
  EXPECT_FALSE(std::filesystem::exists(directory.path() + "/lost.safetensors"));
  EXPECT_TRUE(other.ask("see 0 100").starts_with("error DataLost"));
  restore(manager, path);
  EXPECT_EQ(other.ask("see 0 4096"), seen(pattern_of(size, 1)));
  EXPECT_EQ(buffer.to_vector(), pattern_of(size, 1));
}

TEST_F(MemoryOfProcesses, AreNeverSpilled) {
  room_for(4);
  auto buffer = made("shared", large);
  PeerProcess peer;
  open(peer, buffer);
  auto const* const address = std::as_const(buffer).host_view().data();
  for (std::uint32_t round = 2; round < 6; ++round) {
    fill(round * 4);  // more than there is room for: others give theirs
    EXPECT_EQ(buffer.core().evict({&device("cpu"), Location::host}, {}), 0U);
    ASSERT_EQ(peer.ask("put 1000 100000 " + std::to_string(round)), "ok");
    expect_intact();
    EXPECT_EQ(buffer.slice(1000, 100'000).to_vector(), pattern_of(100'000, round));
    EXPECT_EQ(std::as_const(buffer).host_view().data(), address) << "they are the same pages";
  }
  EXPECT_EQ(peer.ask("see 0 1000"), seen(part_of(pattern_of(large, 1), 0, 1000)));
  EXPECT_GT(manager.statistics().spills, 0U) << "others were";
  EXPECT_LE(reserved(), 4 * MiB);
}

TEST_F(MemoryOfProcesses, AreNamedWhereTheyLeaveNoRoom) {
  room_for(2);
  auto one = made("first", large), other = made("second", large);
  PeerProcess peer;
  open(peer, one);
  auto const expect_refused = [&](auto const& operation) {
    try {
      operation();
      ADD_FAILURE() << "there is no room";
    } catch (OutOfMemory const& error) {
      EXPECT_EQ(error.limit(), 2 * MiB);
      EXPECT_EQ(error.facts().leased, 2 * MiB) << "nobody can take it away";
      std::vector<std::string> names;
      for (auto const& holder : error.facts().holders) names.push_back(holder.name);
      EXPECT_THAT(names, ::testing::UnorderedElementsAre("first", "second")) << error.what();
      EXPECT_NE(std::string(error.what()).find("first"), std::string::npos);
    }
  };
  expect_refused([&] { static_cast<void>(made("third", large)); });
  expect_refused([&] { Buffer(words, named("plain")).copy_from(filled(1)); });
  ASSERT_EQ(peer.ask("put 0 1000 3"), "ok");
  EXPECT_EQ(one.slice(0, 1000).to_vector(), pattern_of(1000, 3));
  EXPECT_EQ(other.to_vector(), pattern_of(large, 1));
  other.free();
  EXPECT_EQ(made("third", large).to_vector(), pattern_of(large, 1)) << "its room is there again";
}

TEST_F(MemoryOfProcesses, ComeFromTheFileTheyWereSpilledTo) {
  room_for(3);
  UnifiedBuffer<Byte> buffer(large, named("spilled"));
  buffer.copy_from(pattern_of(large, 1));
  fill(8);
  ASSERT_EQ(manager.statistics().spills, 6U) << "of these the first";
  auto const before = manager.statistics().spilled_bytes;
  PeerProcess peer;
  open(peer, buffer);
  EXPECT_EQ(peer.ask("see 0 1048576"), seen(pattern_of(large, 1)));
  ASSERT_EQ(peer.ask("put 5 1000 7"), "ok");
  fill(16);
  EXPECT_GT(manager.statistics().spilled_bytes, before);
  auto expected = pattern_of(large, 1);
  std::ranges::copy(pattern_of(1000, 7), expected.begin() + 5);
  EXPECT_EQ(buffer.to_vector(), expected) << "and not what the file has";
  EXPECT_EQ(buffer.core().evict({&device("cpu"), Location::host}, {}), 0U);
  expect_intact();
}

TEST_F(MemoryOfProcesses, GiveDeviceMemoryToOthers) {
  auto buffer = made("shared", large);
  PeerProcess peer;
  open(peer, buffer);
  manager.set_limit(sim, 2 * MiB);
  auto const evict = [&] {  // by those that need the room
    std::vector<Buffer> others;
    for (int i = 0; i < 2; ++i) others.emplace_back(words, named({})).copy_from(filled(5));
    for (auto& other : others) other.sync_to_device();
    EXPECT_FALSE(buffer.valid_on(sim));
  };
  buffer.sync_to_device();
  ASSERT_EQ(peer.ask("put 0 1048576 4"), "ok");
  auto before = downloaded();
  evict();
  EXPECT_EQ(downloaded(), before) << "what was stale there is nothing to be saved";
  EXPECT_EQ(buffer.to_vector(), pattern_of(large, 4));

  fill_on(queue, buffer.slice(0, 1000), 6);
  evict();
  EXPECT_EQ(peer.ask("see 0 1000"), seen(Bytes(1000, 6))) << "what it alone had is the others', too";
  before = downloaded();
  fill_on(queue, buffer.slice(2000, 1000), 7).wait();
  EXPECT_EQ(peer.ask("see 2000 1000"), seen(Bytes(1000, 7)));
  evict();
  EXPECT_EQ(downloaded(), before + 1000) << "once for both";
  ASSERT_EQ(peer.ask("put 500 100 9"), "ok");
  auto expected = pattern_of(large, 4);
  std::fill_n(expected.begin(), 1000, Byte{6});
  std::fill_n(expected.begin() + 2000, 1000, Byte{7});
  std::ranges::copy(pattern_of(100, 9), expected.begin() + 500);
  EXPECT_EQ(seen_on_device(buffer, 0, large), expected);
}

TEST_F(MemoryOfProcesses, KeepDeviceMemoryThatIsLeased) {
  auto buffer = made("shared", large);
  PeerProcess peer;
  open(peer, buffer);
  manager.set_limit(sim, MiB);
  auto part = buffer.slice(0, 100);
  auto lease = part.device(sim);
  Buffer another(words, named({}));
  another.copy_from(filled(1));
  EXPECT_THROW(another.sync_to_device(), OutOfMemory);
  queue.fill(lease.native(), std::vector<std::byte>{std::byte{5}}).wait();
  peer.tell("see 0 100");
  EXPECT_FALSE(peer.answers_within(100ms));
  lease = {};
  EXPECT_EQ(peer.answer(), seen(Bytes(100, 5)));
  another.sync_to_device();
  EXPECT_EQ(buffer.slice(0, 100).to_vector(), Bytes(100, 5));
}

}  // namespace
}  // namespace unimem::testing
