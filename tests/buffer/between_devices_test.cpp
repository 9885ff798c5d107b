#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "core/sizes.hpp"
#include "device/gate.hpp"

#include <array>
#include <cstring>
#include <optional>
#include <thread>

namespace unimem::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

/// `sim` and `other` reach each other; `island` reaches nobody, and nobody is asked to reach it.
class BetweenDevices : public BufferTest {
 protected:
  /// Nothing cached, and no more than that.
  void host_has(std::size_t pinned, std::size_t pageable) {
    manager.cleanup();
    manager.pool(device("cpu"), Location::pinned).set_max_bytes(pinned);
    manager.pool(device("cpu"), Location::host).set_max_bytes(pageable);
  }
  [[nodiscard]] UnifiedBuffer<std::uint32_t> on(Device& home, std::size_t count) {
    auto options = on_sim();
    options.device = &home;
    return UnifiedBuffer<std::uint32_t>(count, options);
  }

  /// `count` elements from `first` on, current on `home` alone.
  [[nodiscard]] UnifiedBuffer<std::uint32_t> only_on(Device& home, std::size_t count, std::uint32_t first = 0) {
    auto buffer = on(home, count);
    buffer.copy_from(counting(count, first));
    buffer.sync_to_device();
    buffer.release_host();
    return buffer;
  }

  [[nodiscard]] std::string name(Device& device) const { return std::string(device.id()); }

  Device& island = make_sim({.memory_bytes = 64 * MiB, .peer = false});
  Device& islet = make_sim({.memory_bytes = 64 * MiB, .peer = false});
};

TEST_F(BetweenDevices, DevicesThatReachEachOtherCopyDirectly) {
  auto buffer = only_on(sim, 1000);
  auto const before = moved(sim.transfers());
  EXPECT_EQ(device_bytes(buffer, other), counting(1000));
  EXPECT_EQ(buffer.state(), BufferState::device_only);
  EXPECT_TRUE(buffer.valid_on(sim));
  EXPECT_TRUE(buffer.valid_on(other));
  EXPECT_FALSE(buffer.valid_on_host());
  EXPECT_EQ(moved(sim.transfers()), before) << "nothing passed the host";
  EXPECT_EQ(moved(other.transfers()), (Moved{0, 0, 4000, 1})) << "this test's own look at it alone";
  EXPECT_EQ(other.transfers().device_to_device_bytes, 4000U);
  EXPECT_EQ(buffer.statistics().device_to_device_bytes, 4000U);
  EXPECT_EQ(buffer.statistics().device_to_device_copies, 1U);
  EXPECT_EQ(buffer.to_vector(), counting(1000));
}

TEST_F(BetweenDevices, DevicesWithoutPeerAccessCopyThroughHostChunks) {
  // Two and a half staging blocks and a tail.
  auto const count = 10 * MiB / 4 + 3;
  auto buffer = only_on(island, count);
  auto const up = buffer.statistics().host_to_device_bytes;
  EXPECT_EQ(device_bytes(buffer, islet), counting(count));
  EXPECT_EQ(island.transfers().device_to_host_bytes, count * 4);
  EXPECT_EQ(island.transfers().device_to_host_copies, 3U);
  EXPECT_EQ(islet.transfers().host_to_device_bytes, count * 4);
  EXPECT_EQ(islet.transfers().host_to_device_copies, 3U);
  EXPECT_EQ(islet.transfers().device_to_device_bytes, 0U);
  auto const counts = buffer.statistics();
  EXPECT_EQ(counts.device_to_device_bytes, count * 4) << "one migration, whatever way it went";
  EXPECT_EQ(counts.device_to_device_copies, 1U);
  EXPECT_EQ(counts.host_to_device_bytes, up);
  EXPECT_EQ(counts.device_to_host_bytes, 0U);
  EXPECT_FALSE(buffer.valid_on_host()) << "it only passed through";
  EXPECT_EQ(buffer.to_vector(), counting(count));
  auto& host = device("cpu");
  EXPECT_EQ(manager.pool(host, Location::pinned).statistics().active_bytes, 0U) << "the staging blocks went back";
}

TEST_F(BetweenDevices, AWriteOnOneDeviceIsSeenElsewhere) {
  for (auto* const there : {&other, &island}) {
    SCOPED_TRACE(there->id());
    auto buffer = on(sim, 100);
    buffer.copy_from(counting(100));
    buffer.sync_to_device();
    auto queue = there->create_queue();
    add(queue, buffer.slice(20, 10), 500);
    auto expected = counting(100);
    for (std::size_t i = 20; i < 30; ++i) expected[i] += 500;
    EXPECT_EQ(device_bytes(buffer, sim), expected);
    EXPECT_EQ(buffer.to_vector(), expected);
    EXPECT_EQ(device_bytes(buffer, *there), expected);
    buffer.core().validate();
  }
}

TEST_F(BetweenDevices, AWriteLeavesOneOfSeveralValidCopies) {
  auto buffer = on(sim, 100);
  buffer.copy_from(counting(100));
  for (auto* const device : {&sim, &other, &island}) buffer.sync_to_device(*device);
  for (auto* const device : {&sim, &other, &island}) EXPECT_TRUE(buffer.valid_on(*device));
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  EXPECT_EQ(buffer.statistics().host_to_device_bytes + buffer.statistics().device_to_device_bytes, 1200U);
  add(other.default_queue(), buffer.slice(0), 1);
  EXPECT_EQ(buffer.state(), BufferState::device_dirty);
  EXPECT_FALSE(buffer.valid_on(sim));
  EXPECT_FALSE(buffer.valid_on(island));
  EXPECT_FALSE(buffer.valid_on_host());
  EXPECT_EQ(device_bytes(buffer, island), counting(100, 1));
  EXPECT_EQ(device_bytes(buffer, sim), counting(100, 1));
  EXPECT_EQ(buffer.to_vector(), counting(100, 1));
}

TEST_F(BetweenDevices, ACopyGoesToTheTargetsHomeDevice) {
  struct Way {
    Device& from;
    Device& to;
  };
  for (auto const& [from, to] : {Way{sim, other}, Way{island, islet}, Way{sim, island}, Way{sim, sim}}) {
    SCOPED_TRACE(name(from) + " to " + name(to));
    auto source = only_on(from, 1000, 7);
    auto target = on(to, 1000);
    copy(source, target);
    EXPECT_TRUE(target.valid_on(to));
    EXPECT_FALSE(target.valid_on_host());
    EXPECT_FALSE(source.valid_on_host()) << "the source has not moved";
    EXPECT_EQ(target.statistics().device_to_device_bytes, &from == &to ? 0U : 4000U);
    EXPECT_EQ(moved(target.statistics()), Moved{});
    EXPECT_EQ(target.to_vector(), counting(1000, 7));
    EXPECT_EQ(device_bytes(target, to), counting(1000, 7));
    EXPECT_EQ(device_bytes(source, from), counting(1000, 7));
    target.core().validate();
  }
}

TEST_F(BetweenDevices, WindowsKeepTheirOffsetsOnEitherRoute) {
  for (auto const& [from, to] : {std::pair{&sim, &other}, {&island, &islet}}) {
    SCOPED_TRACE(name(*from));
    auto const count = 3 * MiB;  // 12 MiB: the window spans several chunks
    auto source = only_on(*from, count);
    auto target = only_on(*to, count, 5'000'000);
    copy(source.slice(11, 2 * MiB + 5), target.slice(777, 2 * MiB + 5));
    auto expected = counting(count, 5'000'000);
    std::iota(expected.begin() + 777, expected.begin() + 777 + 2 * MiB + 5, 11U);
    EXPECT_TRUE(device_bytes(target, *to) == expected);
    EXPECT_TRUE(target.to_vector() == expected);
    EXPECT_EQ(target.statistics().device_to_device_bytes, (2 * MiB + 5) * 4);
    EXPECT_TRUE(source.to_vector() == counting(count));
  }
}

TEST_F(BetweenDevices, ACopyPrefersTheSourcesHostCopy) {
  auto source = on(sim, 100);
  source.copy_from(counting(100));
  source.sync_to_device();
  auto target = on(other, 100);
  auto const before = moved(sim.transfers());
  copy(source, target);
  EXPECT_EQ(target.state(), BufferState::host_dirty);
  EXPECT_EQ(moved(sim.transfers()), before);
  EXPECT_EQ(moved(other.transfers()), Moved{});
  EXPECT_EQ(device_bytes(target, other), counting(100));
}

TEST_F(BetweenDevices, AMixedSourceArrivesWhole) {
  auto source = on(sim, 100);
  source.copy_from(counting(100));
  source.sync_to_device();
  set(sim.default_queue(), source.slice(50, 50), 9);
  std::ranges::fill(source.host(0, 10), 3U);
  ASSERT_EQ(source.state(), BufferState::mixed);
  auto target = on(other, 100);
  copy(source, target);
  auto expected = counting(100);
  std::fill_n(expected.begin(), 10, 3U);
  std::fill_n(expected.begin() + 50, 50, 9U);
  EXPECT_EQ(target.to_vector(), expected);
  EXPECT_EQ(device_bytes(target, other), expected);
  EXPECT_EQ(source.to_vector(), expected);
}

TEST_F(BetweenDevices, MigrationsAreListedLinkByLink) {
  auto buffer = on(sim, 100);
  EXPECT_THAT(buffer.migrations(), ElementsAre());
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  add(sim.default_queue(), buffer.slice(0, 50), 1);
  buffer.sync_to_device(other);
  add(other.default_queue(), buffer.slice(0, 25), 1);
  buffer.sync_to_host();
  auto const links = buffer.migrations();
  ASSERT_FALSE(links.empty());
  EXPECT_EQ(links[0], (LinkStatistics{"host", name(sim), 1, 400}));
  std::uint64_t up = 0, down = 0, between = 0;
  for (auto const& link : links) {
    (link.from == "host" ? up : link.to == "host" ? down : between) += link.bytes;
  }
  auto const counts = buffer.statistics();
  EXPECT_EQ(up, counts.host_to_device_bytes);
  EXPECT_EQ(down, counts.device_to_host_bytes);
  EXPECT_EQ(between, counts.device_to_device_bytes);
  EXPECT_EQ(down, 200U) << "what the host lacked";
  EXPECT_EQ(buffer.at(0), 2U);
  EXPECT_EQ(buffer.at(30), 31U);
  EXPECT_EQ(buffer.at(99), 99U);
}

TEST_F(BetweenDevices, LaterWorkOnEitherDeviceAwaitsTheCopy) {
  for (auto const& [from, to] : {std::pair{&sim, &other}, {&island, &islet}}) {
    SCOPED_TRACE(name(*from));
    auto const count = 6 * MiB / 4;
    auto buffer = only_on(*from, count);
    auto queue_there = to->create_queue(), queue_here = from->create_queue();
    std::optional<Gate> gate{from->default_queue()};
    std::optional<Gate> gate_there{to->default_queue()};
    auto const arrived = buffer.prefetch(*to);
    auto const used = add(queue_there, buffer.slice(0), 1);
    auto const overwritten = set(queue_here, buffer.slice(0, 10), 3);
    EXPECT_FALSE(arrived.ready());
    EXPECT_FALSE(used.ready());
    EXPECT_FALSE(overwritten.ready());
    gate.reset();
    gate_there.reset();
    auto expected = counting(count, 1);
    std::fill_n(expected.begin(), 10, 3U);
    EXPECT_TRUE(buffer.to_vector() == expected);
    EXPECT_TRUE(device_bytes(buffer, *to) == expected);
    EXPECT_TRUE(device_bytes(buffer, *from) == expected);
  }
}

/// Two threads copy between the same two buffers, in opposite directions and always on bytes of their own.
TEST_F(BetweenDevices, OppositeCopiesFromTwoThreadsDoNotDeadlock) {
  struct Homes {
    Device& a;
    Device& b;
    bool on_devices;
  };
  for (auto const& [a_home, b_home, on_devices] :
       {Homes{sim, sim, false}, Homes{sim, sim, true}, Homes{sim, other, true}, Homes{island, islet, true}}) {
    SCOPED_TRACE(name(a_home) + " and " + name(b_home) + (on_devices ? "" : ", on the host"));
    auto a = only_on(a_home, 1000), b = only_on(b_home, 1000, 5000);
    if (!on_devices) {
      a.sync_to_host();
      b.sync_to_host();
    }
    constexpr int rounds = 200;
    auto const a_front = a.slice(0, 500), a_back = a.slice(500), b_front = b.slice(0, 500), b_back = b.slice(500);
    std::jthread forwards([&] {
      for (int i = 0; i < rounds; ++i) copy(a_front, b_front);
    });
    std::jthread backwards([&] {
      for (int i = 0; i < rounds; ++i) copy(b_back, a_back);
    });
    forwards.join();
    backwards.join();
    auto expected_a = counting(1000), expected_b = counting(1000, 5000);
    std::copy_n(expected_a.begin(), 500, expected_b.begin());
    std::copy_n(expected_b.begin() + 500, 500, expected_a.begin() + 500);
    EXPECT_EQ(a.to_vector(), expected_a);
    EXPECT_EQ(b.to_vector(), expected_b);
    EXPECT_EQ(device_bytes(a, a_home), expected_a);
    EXPECT_EQ(device_bytes(b, b_home), expected_b);
    a.core().validate();
    b.core().validate();
  }
}

TEST_F(BetweenDevices, WithoutRoomForTheTargetNothingChanges) {
  auto& small = make_sim({.memory_bytes = 1000});
  auto source = only_on(sim, 1000, 3);
  auto target = on(small, 1000);
  EXPECT_THROW(copy(source, target), OutOfMemory);
  EXPECT_EQ(target.state(), BufferState::uninitialized);
  EXPECT_EQ(device_bytes(source, sim), counting(1000, 3));
  EXPECT_EQ(target.statistics().device_to_device_bytes, 0U);
}

TEST_F(BetweenDevices, WithoutHostMemoryForChunksNothingMoves) {
  auto const count = 10 * MiB / 4;
  auto source = only_on(island, count), target = only_on(islet, count, 99);
  // Room for one of the smallest staging blocks, which is pinned, and no second, be it pageable.
  host_has(96 * KiB, 48 * KiB);
  auto const before = moved(island.transfers());
  EXPECT_THROW(copy(source, target), OutOfMemory);
  EXPECT_EQ(moved(island.transfers()), before);
  EXPECT_EQ(target.statistics().device_to_device_bytes, 0U);
  manager.pool(device("cpu"), Location::host).set_max_bytes(64 * MiB);
  EXPECT_TRUE(target.to_vector() == counting(count, 99)) << "the target is as it was";
  copy(source, target);
  EXPECT_TRUE(target.to_vector() == counting(count));
  EXPECT_TRUE(device_bytes(target, islet) == counting(count));
}

TEST_F(BetweenDevices, LittleHostMemoryMakesSmallerChunks) {
  auto const count = 10 * MiB / 4;
  auto source = only_on(island, count), target = only_on(islet, count, 99);
  host_has(200 * KiB, 48 * KiB);
  copy(source, target);
  EXPECT_TRUE(device_bytes(target, islet) == counting(count));
  EXPECT_LE(manager.pool(device("cpu"), Location::pinned).statistics().peak_reserved_bytes, 200 * KiB);
}

TEST_F(BetweenDevices, AFailedCopyLeavesTheTargetUnchanged) {
  for (auto const& [from, to] : {std::pair{&sim, &other}, {&island, &islet}}) {
    SCOPED_TRACE(name(*from));
    auto source = only_on(*from, 1000, 7);
    auto target = on(*to, 1000);
    target.copy_from(counting(1000));
    target.sync_to_device();
    set_sim_faults(*to, {.fail_call = 1});
    auto const copied = copy_async(source, target);
    EXPECT_NE(copied.wait_for_error(), nullptr);
    EXPECT_THROW(std::ignore = target.host_view(), DeviceError);
    EXPECT_EQ(target.to_vector(), counting(1000)) << "its last good copy, on the host";
    EXPECT_EQ(device_bytes(target, *to), counting(1000));
    copy(source, target);
    EXPECT_EQ(target.to_vector(), counting(1000, 7));
    EXPECT_EQ(device_bytes(source, *from), counting(1000, 7));
    target.core().validate();
  }
}

}  // namespace
}  // namespace unimem::testing
