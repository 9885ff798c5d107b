#pragma once

#include <unimem/device/discovery.hpp>

#include "device/conformance_fixture.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace unimem {

/// Takes all memory of `device` in the largest pieces it gives, down to the last byte.
[[nodiscard]] inline std::vector<Allocated> take_everything(Device& device) {
  std::vector<Allocated> pieces;
  for (auto left = device.info().total_bytes; left != 0;) {
    auto const bytes = std::min(left, device.info().max_allocation);
    pieces.emplace_back(device, bytes);
    left -= bytes;
  }
  return pieces;
}

TEST_P(DeviceConformance, TellsWhatItIs) {
  auto const& info = device().info();
  EXPECT_FALSE(info.name.empty());
  EXPECT_GT(info.total_bytes, 0U);
  EXPECT_GT(info.max_allocation, 0U);
  EXPECT_LE(info.max_allocation, info.total_bytes);
  EXPECT_EQ(info.alignment & (info.alignment - 1), 0U);
  EXPECT_GE(info.compute_units, 1U);
  EXPECT_TRUE(info.compiles_source || info.runs_host_form);
  EXPECT_TRUE(device().id().starts_with(to_string(device().backend())));
  EXPECT_EQ(device().memory_info().total_bytes, info.total_bytes);
  EXPECT_GT(device().link_cost().bytes_per_second, 0);
  EXPECT_GE(device().link_cost().latency_seconds, 0);
}

TEST_P(DeviceConformance, AllocationsDoNotShareAByte) {
  std::vector<Allocated> pieces;
  for (auto const bytes : Sizes{1, 2, 63, 64, 65, 4095, 4096, 4097, 65535, 65536, 65537, 1 << 20}) {
    pieces.emplace_back(device(), bytes);
    ASSERT_EQ(pieces.back().memory().bytes, bytes);
  }
  for (unsigned i = 0; i < pieces.size(); ++i) write(pieces[i].memory(), noise(pieces[i].memory().bytes, i));
  for (unsigned i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(read(pieces[i].memory()), noise(pieces[i].memory().bytes, i)) << "allocation " << i;
  }
}

TEST_P(DeviceConformance, AddressesAreAlignedAsPromised) {
  for (auto const bytes : Sizes{1, 100, 4096, 65536, 3 << 20}) {
    Allocated const piece{device(), bytes};
    if (auto* const address = device().address(piece.memory())) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(address) % device().info().alignment, 0U) << bytes << " bytes";
      EXPECT_EQ(device().address(piece.window(1, bytes - 1)), static_cast<std::byte*>(address) + 1);
    } else {
      EXPECT_FALSE(device().shares_storage_with_host());
    }
  }
}

TEST_P(DeviceConformance, NoBytesAreNoAllocation) {
  try {
    static_cast<void>(device().allocate(0, Location::device));
    FAIL() << "zero bytes were handed out";
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.argument, "bytes");
    EXPECT_EQ(error.value, "0");
  }
}

TEST_P(DeviceConformance, CapacityIsExactToTheByte) {
  auto const total = device().info().total_bytes;
  auto pieces = take_everything(device());
  try {
    static_cast<void>(device().allocate(1, Location::device));
    FAIL() << "one byte more than there is was handed out";
  } catch (OutOfMemory const& error) {
    EXPECT_EQ(error.requested(), 1U);
    EXPECT_EQ(error.limit(), total);
    EXPECT_EQ(error.live(), total);
    EXPECT_THAT(error.facts().where, ::testing::HasSubstr(std::string(device().id())));
    EXPECT_FALSE(error.facts().reason.empty());
  }
  EXPECT_EQ(device().memory_info().free_bytes, 0U);

  auto const last = pieces.back().memory().bytes;
  pieces.pop_back();
  {
    Allocated const again{device(), last};
  }  // exactly what was given back is there again
  EXPECT_THROW(static_cast<void>(device().allocate(last + 1, Location::device)), OutOfMemory);
}

TEST_P(DeviceConformance, WhatCannotFitIsRefused) {
  auto const total = device().info().total_bytes;
  for (auto const bytes : {total + 1, SIZE_MAX / 2, SIZE_MAX}) {
    try {
      static_cast<void>(device().allocate(bytes, Location::device));
      FAIL() << bytes << " bytes were handed out";
    } catch (OutOfMemory const& error) {
      EXPECT_EQ(error.requested(), bytes);
      EXPECT_EQ(error.live(), 0U);
      EXPECT_GT(error.limit(), 0U);
    }
  }
  auto const pieces = take_everything(device());  // the refusals took nothing
  EXPECT_FALSE(pieces.empty());
}

TEST_P(DeviceConformance, ADeviceServesOrRefusesALocation) {
  for (auto const location : {Location::device, Location::host, Location::pinned, Location::unified}) {
    SCOPED_TRACE(to_string(location));
    try {
      Allocated const piece{device(), 5000, location};
      write(piece.memory(), noise(5000, 7));
      EXPECT_EQ(read(piece.memory()), noise(5000, 7));
    } catch (UnsupportedOperation const& error) {
      EXPECT_NE(location, Location::device);
      EXPECT_EQ(error.where, device().id());
      EXPECT_FALSE(error.reason.empty());
    }
  }
}

TEST_P(DeviceConformance, CopiesInAndOutAreExact) {
  constexpr std::size_t size = (std::size_t{1} << 20) + 4096;
  Allocated const piece{device(), size};
  auto queue = device().create_queue();
  auto expected = noise(size, 1);
  write(piece.memory(), expected);

  unsigned seed = 2;
  for (auto const bytes : Sizes{1, 3, 64, 127, 4095, 4097, 65536, 100'003, 1 << 20}) {
    for (auto const offset : Sizes{0, 1, 63, 2049}) {
      SCOPED_TRACE(::testing::Message() << bytes << " bytes at offset " << offset);
      auto const news = noise(bytes, seed++);
      queue.upload(piece.window(offset, bytes), news.data(), bytes);
      std::copy(news.begin(), news.end(), expected.begin() + static_cast<std::ptrdiff_t>(offset));

      auto landed = repeated(bytes + 32, 0x5A);  // 16 bytes of canary on each side of the host's copy
      queue.download(landed.data() + 16, piece.window(offset, bytes), bytes).wait();
      ASSERT_TRUE(std::equal(news.begin(), news.end(), landed.begin() + 16));
      auto const canary = repeated(16, 0x5A);
      ASSERT_TRUE(std::equal(canary.begin(), canary.end(), landed.begin()));
      ASSERT_TRUE(std::equal(canary.begin(), canary.end(), landed.end() - 16));
    }
  }
  EXPECT_EQ(read(piece.memory()), expected);
}

TEST_P(DeviceConformance, CopiesWithinTheDeviceAreExact) {
  constexpr std::size_t size = 300'000;
  Allocated const from{device(), size}, to{device(), size};
  auto const source = noise(size, 1);
  auto expected = noise(size, 2);
  write(from.memory(), source);
  write(to.memory(), expected);
  auto queue = device().create_queue();

  for (auto const& [source_offset, offset, bytes] : {std::array<std::size_t, 3>{0, 0, 1},
                                                     {5, 1001, 255},
                                                     {77, 2000, 65'537},
                                                     {65'536, 131'072, 65'536},
                                                     {12'345, 200'001, 99'999}}) {
    queue.copy(to.window(offset, bytes), from.window(source_offset, bytes), bytes);
    std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(source_offset), bytes,
                expected.begin() + static_cast<std::ptrdiff_t>(offset));
  }
  // Within one allocation, apart.
  queue.copy(to.window(10, 400), to.window(5000, 400), 400);
  std::copy_n(expected.begin() + 5000, 400, expected.begin() + 10);
  queue.synchronize();
  EXPECT_EQ(read(to.memory()), expected);
  EXPECT_EQ(read(from.memory()), source);
}

TEST_P(DeviceConformance, AFillRepeatsItsPattern) {
  constexpr std::size_t size = 200'000;
  Allocated const piece{device(), size};
  auto queue = device().create_queue();
  for (auto const pattern_bytes : Sizes{1, 2, 4, 8, 16}) {
    for (auto const repeats : Sizes{1, 2, 3, 1000, 9000}) {
      SCOPED_TRACE(::testing::Message() << repeats << " times " << pattern_bytes << " bytes");
      auto const pattern = noise(pattern_bytes, static_cast<unsigned>(repeats));
      auto expected = repeated(size, 0x11);
      auto const offset = 3 * pattern_bytes;
      for (std::size_t i = 0; i < repeats * pattern_bytes; ++i) expected[offset + i] = pattern[i % pattern_bytes];

      write(piece.memory(), repeated(size, 0x11));
      queue.fill(piece.window(offset, repeats * pattern_bytes), pattern).wait();
      ASSERT_EQ(read(piece.memory()), expected);
    }
  }
}

TEST_P(DeviceConformance, EveryByteThatMovesIsCountedOnce) {
  Allocated const piece{device(), 10'000};
  auto queue = device().create_queue();
  Bytes host(5000);
  auto const before = device().transfers();
  queue.upload(piece.memory(), host.data(), 5000);
  queue.upload(piece.window(1, 1), host.data(), 1);
  queue.download(host.data(), piece.window(7, 123), 123);
  queue.copy(piece.window(5000, 400), piece.window(0, 400), 400);
  queue.fill(piece.memory(), repeated(4, 0));
  queue.upload(piece.memory(), host.data(), 0);
  queue.synchronize();

  auto const after = device().transfers();
  EXPECT_EQ(after.host_to_device_bytes - before.host_to_device_bytes, 5001U);
  EXPECT_EQ(after.host_to_device_copies - before.host_to_device_copies, 2U);
  EXPECT_EQ(after.device_to_host_bytes - before.device_to_host_bytes, 123U);
  EXPECT_EQ(after.device_to_host_copies - before.device_to_host_copies, 1U);
  EXPECT_EQ(after.device_to_device_bytes - before.device_to_device_bytes, 400U);
  EXPECT_EQ(after.device_to_device_copies - before.device_to_device_copies, 1U);
}

TEST_P(DeviceConformance, EveryCopyIsTimedOrCountedUntimed) {
  constexpr std::size_t bytes = 1 << 20;
  constexpr std::uint64_t rounds = 8;
  Allocated const piece{device(), 2 * bytes};
  auto queue = device().create_queue();
  Bytes const up(bytes);
  Bytes down(bytes);
  auto const before = device().transfers();
  auto const begin = std::chrono::steady_clock::now();
  for (std::uint64_t round = 0; round < rounds; ++round) {
    queue.upload(piece.window(0, bytes), up.data(), bytes);
    queue.copy(piece.window(bytes, bytes), piece.window(0, bytes), bytes);
    queue.download(down.data(), piece.window(bytes, bytes), bytes);
  }
  queue.synchronize();
  std::chrono::nanoseconds const whole = std::chrono::steady_clock::now() - begin;

  auto const moved = device().transfers().since(before);
  EXPECT_EQ(moved.host_to_device_bytes, rounds * bytes);
  EXPECT_EQ(moved.device_to_host_copies, rounds);
  auto const all =
      moved.host_to_device_nanoseconds + moved.device_to_host_nanoseconds + moved.device_to_device_nanoseconds;
  if (moved.untimed_copies != 0) {
    EXPECT_EQ(moved.untimed_copies, 3 * rounds);
    EXPECT_EQ(all, 0U) << "what nobody measured is in no sum";
    return;
  }
  EXPECT_GT(moved.host_to_device_nanoseconds, 0U);
  EXPECT_GT(moved.device_to_host_nanoseconds, 0U);
  EXPECT_GT(moved.device_to_device_nanoseconds, 0U);
  EXPECT_LE(all, static_cast<std::uint64_t>(whole.count())) << "one after the other: time in line would count twice";
}

TEST_P(DeviceConformance, ThreadsAllocateWithinTheCapacityTogether) {
  constexpr std::size_t threads = 4, rounds = 200;
  auto const before = device().memory_info().free_bytes;
  std::vector<std::thread> crowd;
  for (unsigned t = 0; t < threads; ++t) {
    crowd.emplace_back([&, t] {
      std::minstd_rand random{t + 1};
      std::vector<Allocated> mine;
      for (std::size_t round = 0; round < rounds; ++round) {
        mine.emplace_back(device(), 1 + random() % 100'000);
        if (random() % 2 == 0) mine.pop_back();
      }
    });
  }
  for (auto& thread : crowd) thread.join();
  if (!device().shares_storage_with_host()) {
    EXPECT_EQ(device().memory_info().free_bytes, before);
  }
  auto const everything = take_everything(device());
  EXPECT_FALSE(everything.empty());
}

TEST_P(DeviceConformance, UnifiedMemoryIsShared) {
  if (!device().has_unified_memory()) {
    EXPECT_FALSE(device().shares_storage_with_host());
    EXPECT_FALSE(device().reaches_host_memory());
    EXPECT_THROW(static_cast<void>(device().allocate(100, Location::unified)), UnsupportedOperation);
    return;
  }
  auto const memory = device().allocate(1000, Location::unified);
  auto* const bytes = static_cast<std::byte*>(device().address(memory));
  ASSERT_NE(bytes, nullptr);
  auto const data = noise(1000, 5);
  std::copy(data.begin(), data.end(), bytes);
  Bytes landed(100);
  auto& queue = device().default_queue();
  queue.download(landed.data(), memory.window(300, 100), 100).wait();
  EXPECT_EQ(landed, Bytes(data.begin() + 300, data.begin() + 400));
  queue.fill(memory.window(500, 100), repeated(1, 7)).wait();
  EXPECT_EQ(Bytes(bytes + 500, bytes + 600), repeated(100, 7));
  EXPECT_EQ(Bytes(bytes, bytes + 500), Bytes(data.begin(), data.begin() + 500));
  // A hint is taken of every kind, for every place, and nothing comes of it that could be seen.
  for (auto const advice : {Advice::read_mostly, Advice::preferred_location, Advice::accessed_by}) {
    for (bool const holds : {true, false}) {
      device().advise(memory.window(0, 500), Location::unified, advice, &device(), holds);
      device().advise(memory, Location::unified, advice,
                      advice == Advice::read_mostly ? nullptr : &unimem::device("cpu"), holds);
    }
  }
  EXPECT_EQ(Bytes(bytes, bytes + 500), Bytes(data.begin(), data.begin() + 500));
  device().release(memory, Location::unified);
}

}  // namespace unimem
