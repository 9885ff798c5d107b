#pragma once

#include <unimem/device/discovery.hpp>

#include "device/conformance_fixture.hpp"
#include "device/conformance_queues.hpp"
#include "device/pieces.hpp"

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

// Copies of many pieces as one piece of work: rows of rectangles, and pieces that are nothing of the kind.

namespace unimem {

TEST_P(DeviceConformance, ManyPiecesAreOnePieceOfWork) {
  constexpr std::size_t room = 70'000;
  Allocated const a{device(), room + 100}, b{device(), room};
  auto const there = a.window(100, room);  // an offset of the memory's own
  auto queue = device().create_queue();
  Allocated const pinned{unimem::device("cpu"), room, Location::pinned};
  auto const pinned_bytes = std::span{reinterpret_cast<std::byte*>(pinned.memory().object), room};
  unsigned seed = 0;
  for (auto const& [what, pieces] : piece_lists(room)) {
    for (bool const in_pinned : {false, true}) {
      SCOPED_TRACE(::testing::Message() << what << (in_pinned ? ", pinned" : ", pageable"));
      auto const [copies, bytes] = sums(pieces);
      auto const source = noise(room, ++seed), before = noise(room, ++seed);
      auto host = source;
      auto const memory = in_pinned ? pinned_bytes : std::span{host};
      std::ranges::copy(source, memory.begin());
      write(there, before);
      auto counted = device().transfers();
      queue.upload(there, memory.data(), pieces).wait();
      EXPECT_TRUE(read(there) == after(before, source, pieces)) << "up";
      auto moved = device().transfers().since(counted);
      EXPECT_EQ(std::tuple(moved.host_to_device_copies, moved.host_to_device_bytes), std::tuple(copies, bytes));

      write(there, source);
      std::ranges::copy(before, memory.begin());
      counted = device().transfers();
      queue.download(memory.data(), there, pieces).wait();
      EXPECT_TRUE(std::ranges::equal(memory, after(before, source, pieces))) << "down";
      moved = device().transfers().since(counted);
      EXPECT_EQ(std::tuple(moved.device_to_host_copies, moved.device_to_host_bytes), std::tuple(copies, bytes));
    }
    auto const source = noise(room, ++seed), before = noise(room, ++seed);
    write(there, source);
    write(b.memory(), before);
    auto const counted = device().transfers();
    queue.copy(b.memory(), there, pieces).wait();
    EXPECT_TRUE(read(b.memory()) == after(before, source, pieces)) << what << ", within";
    auto const moved = device().transfers().since(counted);
    EXPECT_EQ(std::pair(moved.device_to_device_copies, moved.device_to_device_bytes), sums(pieces)) << what;
  }
}

TEST_P(DeviceConformance, PiecesMayBeInterleaved) {
  Allocated const memory{device(), 64'000};
  auto const before = noise(64'000, 1);
  write(memory.memory(), before);
  auto const columns = rows(100, 40, {300, 100, 0}, 600, 600);
  auto queue = device().create_queue();
  queue.copy(memory.memory(), memory.memory(), columns).wait();
  EXPECT_TRUE(read(memory.memory()) == after(before, before, columns));
  auto const last = queue.record();
  std::vector<CopyPiece> const overlap{{0, 500, 100}, {599, 1000, 100}};
  EXPECT_EQ(refused_argument([&] { queue.copy(memory.memory(), memory.memory(), overlap); }), "to");
  EXPECT_EQ(queue.record(), last) << "nothing was submitted";
}

TEST_P(DeviceConformance, PiecesOutsideTheMemoryAreRefused) {
  Allocated const memory{device(), 100}, other{device(), 200};
  auto const before = noise(100, 3);
  write(memory.memory(), before);
  Bytes host(1000);
  auto queue = device().create_queue();
  auto const last = queue.record();
  constexpr auto most = static_cast<std::size_t>(-1);
  for (auto const bad : {CopyPiece{91, 0, 10}, CopyPiece{101, 0, 0}, CopyPiece{most, 0, 2}, CopyPiece{2, 0, most}}) {
    std::vector<CopyPiece> const up{{0, 0, 10}, bad}, down{{0, 0, 10}, {bad.from, bad.to, bad.bytes}};
    EXPECT_EQ(refused_argument([&] { queue.upload(memory.memory(), host.data(), up); }), "pieces");
    EXPECT_EQ(refused_argument([&] { queue.download(host.data(), memory.memory(), down); }), "pieces");
    EXPECT_EQ(refused_argument([&] { queue.copy(memory.memory(), other.memory(), up); }), "pieces");
    EXPECT_EQ(refused_argument([&] { queue.copy(other.memory(), memory.memory(), down); }), "pieces");
  }
  EXPECT_EQ(queue.record(), last);
  EXPECT_EQ(queue.upload(memory.memory(), host.data(), std::span<const CopyPiece>{}), last) << "nothing to do";
  EXPECT_EQ(read(memory.memory()), before);
}

TEST_P(DeviceConformance, PiecesWaitForWhatTheyNeed) {
  constexpr std::size_t room = 300'000;
  Allocated const a{device(), room};
  auto writer = device().create_queue(), queue = device().create_queue();
  auto const pieces = scattered(300, 800, room, 5);
  auto const first = noise(room, 1), second = noise(room, 2);
  Bytes back(room);
  for (int round = 0; round < 20; ++round) {
    auto const written = writer.upload(a.memory(), first.data(), room);
    auto const over = queue.upload(a.memory(), second.data(), pieces, {{written}});
    writer.wait(over);
    std::vector<CopyPiece> const halves{{0, 0, room / 2}, {room / 2, room / 2, room / 2}};
    writer.download(back.data(), a.memory(), halves, {{over}}).wait();
    ASSERT_TRUE(back == after(first, second, pieces)) << round;
  }
}

TEST_P(DeviceConformance, PiecesThatNeedFailedWorkFailWithIt) {
  if (!GetParam().fail) GTEST_SKIP() << "this device does not fail on purpose";
  Allocated const a{device(), 10'000};
  write(a.memory(), repeated(10'000, 1));
  auto queue = device().create_queue(), other = device().create_queue();
  auto const failed = GetParam().fail(other);
  Bytes host(10'000, std::byte{2});
  auto const pieces = scattered(100, 50, 10'000, 6);
  auto const sent = queue.upload(a.memory(), host.data(), pieces, {{failed}});
  EXPECT_NE(sent.wait_for_error(), nullptr);
  auto const fetched = queue.download(host.data(), a.memory(), pieces, {{failed}});
  EXPECT_NE(fetched.wait_for_error(), nullptr);
}

}  // namespace unimem
