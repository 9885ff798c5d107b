#include <unimem/buffer/buffer_pool.hpp>
#include <unimem/core/error.hpp>

#include "buffer/spilling_fixture.hpp"

#include <cstdint>
#include <deque>
#include <numeric>
#include <optional>
#include <vector>

// What goes, what stays, and what comes back.

namespace unimem::testing {
namespace {

TEST_F(Spilling, BuffersBeyondTheHostLimitKeepTheirBytes) {
  room_for(4);
  fill(10);
  auto counts = manager.statistics();
  EXPECT_EQ(counts.spills, 6U);
  EXPECT_EQ(counts.spilled_bytes, 6 * MiB);
  EXPECT_EQ(counts.host_reclaims, 6U);
  EXPECT_EQ(counts.host_reclaimed_bytes, 6 * MiB);
  EXPECT_EQ(counts.spill_files, 6U);
  EXPECT_EQ(counts.spill_file_bytes, 6 * MiB);
  EXPECT_EQ(counts.restores, 0U);
  EXPECT_TRUE(directory.empty()) << "files have no names";
  expect_intact();
  counts = manager.statistics();
  EXPECT_GE(counts.restores, 6U);
  EXPECT_EQ(counts.restored_bytes, counts.restores * MiB);
  EXPECT_EQ(counts.spilled_bytes, counts.spills * MiB);
  EXPECT_EQ(counts.spill_files, counts.spills) << "what is clean in a file is not written again";
  EXPECT_EQ(counts.failed_host_reclaims, 0U);
  EXPECT_EQ(counts.refusals, 0U);
  EXPECT_LE(reserved(), 4 * MiB);
  for (auto const& buffer : buffers) EXPECT_EQ(buffer.state(), BufferState::host_dirty);
  buffers.clear();
  EXPECT_EQ(manager.statistics().spill_files, 0U);
  EXPECT_EQ(manager.statistics().spill_file_bytes, 0U);
}

TEST_F(Spilling, WithoutADirectoryHostMemoryStays) {
  MemoryManager plain;
  plain.set_limit(device("cpu"), Location::host, 2 * MiB);
  auto options = named("plain");
  options.manager = &plain;
  Buffer one(words, options), two(words, options), three(words, options);
  one.copy_from(filled(1U));
  two.copy_from(filled(2U));
  EXPECT_THROW(three.copy_from(filled(3U)), OutOfMemory);
  EXPECT_EQ(plain.statistics().host_reclaims, 0U);
}

TEST_F(Spilling, WhatSomebodyHasAnAddressOfStays) {
  room_for(3);
  fill(3);
  auto const exposed = buffers[0].host();
  auto const viewed = buffers[1].host_view();
  auto mapping = std::optional(buffers[2].map(MapMode::read));
  Buffer more(words, named("one more"));
  try {
    more.copy_from(filled(7U));
    FAIL() << "all memory is somebody's";
  } catch (OutOfMemory const& refused) {
    EXPECT_EQ(refused.facts().leased, 3 * MiB);
    EXPECT_EQ(refused.facts().limit, 3 * MiB);
  }
  EXPECT_EQ(manager.statistics().spills, 0U);
  mapping.reset();
  more.copy_from(filled(7U));
  EXPECT_EQ(manager.statistics().spills, 1U);
  exposed[5] = 99;
  EXPECT_EQ(buffers[0].at(5), 99U);
  EXPECT_EQ(viewed.data(), buffers[1].host_view().data());
  EXPECT_EQ(more.to_vector(), filled(7U));
}

TEST_F(Spilling, ACopyAlsoOnADeviceIsDropped) {
  room_for(2);
  fill(2);
  for (auto& buffer : buffers) buffer.sync_to_device();
  Buffer more(words, named("one more"));
  more.copy_from(filled(7U));
  EXPECT_EQ(manager.statistics().spills, 0U);
  EXPECT_EQ(manager.statistics().host_reclaims, 1U);
  EXPECT_EQ(buffers[0].state() == BufferState::device_only, buffers[1].state() == BufferState::synchronized);
  expect_intact();
  EXPECT_EQ(more.to_vector(), filled(7U));
}

TEST_F(Spilling, EvictionToAFullHostSpillsToFiles) {
  constexpr std::uint32_t passes = 3;
  manager.set_limit(sim, 2 * MiB);
  room_for(3);
  fill(8);
  auto& queue = sim.default_queue();
  for (std::uint32_t pass = 0; pass < passes; ++pass) {
    for (auto& buffer : buffers) {
      Operand const operand{&buffer.core(), {0, MiB}, Intent::read_write};
      add_one(queue, operand);
    }
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    ASSERT_EQ(buffers[i].to_vector(), filled(static_cast<std::uint32_t>(i) + passes)) << i;
  }
  EXPECT_GT(manager.statistics().reclaims, 0U);
  EXPECT_GT(manager.statistics().spills, 0U);
  EXPECT_LE(reserved(), 3 * MiB);
  EXPECT_LE(manager.pool(sim, Location::device).statistics().peak_reserved_bytes, 2 * MiB);
}

TEST_F(Spilling, TheCpuDevicesKernelsFindTheirBytes) {
  room_for(3);
  auto& cpu = device("cpu");
  fill(6);
  for (auto& buffer : buffers) {
    Operand const operand{&buffer.core(), {0, MiB}, Intent::read_write};
    add_one(cpu.default_queue(), operand);
  }
  for (std::uint32_t i = 0; i < buffers.size(); ++i) {
    auto const lease = buffers[i].core().lease(cpu, nullptr, {0, MiB}, Intent::read);
    EXPECT_EQ(static_cast<std::uint32_t const*>(lease.address())[words - 1], i + 1) << "by a lease";
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    ASSERT_EQ(buffers[i].to_vector(), filled(static_cast<std::uint32_t>(i) + 1)) << i;
  }
  EXPECT_GT(manager.statistics().restores, 0U);
}

TEST_F(Spilling, PinnedMemoryGoesAndIsPinnedAgain) {
  room_for(2, Location::pinned);
  for (std::uint32_t i = 0; i < 4; ++i) {
    auto options = named("pinned");
    options.location = Location::pinned;
    buffers.emplace_back(words, options).copy_from(filled(i));
    if (!buffers.back().is_pinned()) GTEST_SKIP() << "the system locks no memory for this process";
  }
  EXPECT_EQ(manager.statistics().spills, 2U);
  expect_intact();
  for (auto const& buffer : buffers) EXPECT_TRUE(buffer.is_pinned());
  EXPECT_LE(reserved(Location::pinned), 2 * MiB);
  EXPECT_EQ(manager.statistics().refused_pinnings, 0U);
}

TEST_F(Spilling, SmallBuffersStay) {
  room_for(1);
  constexpr std::size_t small = std::size_t{32} << 10;
  std::deque<UnifiedBuffer<std::byte>> many;
  EXPECT_THROW(
      while (many.size() < 64) many.emplace_back(small, named("small")).copy_from(std::vector(small, std::byte{1})),
      OutOfMemory);
  EXPECT_EQ(manager.statistics().host_reclaims, 0U);
}

TEST_F(Spilling, LowPrioritiesGoFirst) {
  room_for(3);
  fill(3);
  buffers[0].set_priority(2);
  buffers[1].set_priority(1);
  buffers[2].set_priority(2);
  Buffer more(words, named("one more"));
  more.copy_from(filled(7U));
  auto const restores = [&] { return manager.statistics().restores; };
  std::uint32_t first = 0;
  buffers[0].copy_to(std::span(&first, 1), 0);
  buffers[2].copy_to(std::span(&first, 1), 0);
  EXPECT_EQ(restores(), 0U);
  buffers[1].copy_to(std::span(&first, 1), 0);
  EXPECT_EQ(first, 1U);
  EXPECT_EQ(restores(), 1U);
}

TEST_F(Spilling, AWhollyOverwrittenBufferIsNotRestored) {
  room_for(1);
  fill(2);
  EXPECT_EQ(manager.statistics().spills, 1U);
  buffers[0].copy_from(filled(0U));
  EXPECT_EQ(manager.statistics().spills, 2U) << "the other went for it";
  EXPECT_EQ(manager.statistics().restores, 0U);
  expect_intact();
}

TEST_F(Spilling, OnlyMemoryIsOnTheBooks) {
  room_for(4);
  fill(10);
  EXPECT_EQ(manager.usage().total.live_bytes, 4 * MiB);
  EXPECT_EQ(manager.live().size(), 4U);
  EXPECT_EQ(manager.pool(device("cpu"), Location::host).statistics().active_bytes, 4 * MiB);
  EXPECT_TRUE(buffers[0].is_allocated());
  EXPECT_TRUE(buffers[0].valid_on_host());
  buffers[0].free();
  EXPECT_FALSE(buffers[0].is_allocated());
  EXPECT_EQ(manager.statistics().spill_files, 5U) << "the first one went first";
}

TEST_F(Spilling, ResizedReleasedAndClonedBuffersKeepTheirBytes) {
  room_for(4);
  fill(6);
  buffers[0].resize(2 * words);
  EXPECT_THAT(buffers[0].to_vector()[words - 1], 0U);
  buffers[0].resize(words);
  buffers[1].release_host();
  EXPECT_EQ(buffers[1].state(), BufferState::device_only);
  auto const clone = buffers[2].clone();
  EXPECT_EQ(clone.to_vector(), filled(2U));
  expect_intact();
  EXPECT_GT(manager.statistics().spills, 2U);
}

TEST_F(Spilling, ASpilledPoolBufferIsLentAsNew) {
  room_for(1);
  fill(1);
  BufferPool pool(BufferPoolOptions{.manager = &manager});
  auto lent = pool.acquire<std::uint32_t>(words);
  lent.copy_from(filled(5U));
  expect_intact();  // so the other is spilled
  pool.release(lent);
  auto next = pool.acquire<std::uint32_t>(words);
  EXPECT_EQ(next.state(), BufferState::uninitialized);
  next.fill(8);
  EXPECT_EQ(next.to_vector(), filled(8U));
  expect_intact();
}

TEST_F(Spilling, OptimizingLocksNothingThatMayHaveToGo) {
  room_for(4);
  fill(10);
  for (int round = 0; round < 10; ++round) {
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      buffers[i].copy_from(filled(static_cast<std::uint32_t>(i)));
      buffers[i].sync_to_device();
    }
    EXPECT_EQ(manager.optimize().pinned_bytes, 0U) << "what is locked stays where it is";
  }
  expect_intact();
  EXPECT_EQ(manager.statistics().refusals, 0U);
}

/// Two blocks of unequal size, and no room for either: between the places of one buffer, and from one to another.
TEST_F(Spilling, BothBlocksBetweenDevicesGetRoom) {
  auto& island = make_sim({.memory_bytes = 64 * MiB, .peer = false});
  auto& islet = make_sim({.memory_bytes = 64 * MiB, .peer = false});
  auto options = named("between");
  options.device = &island;
  Buffer across(6 * words, options);
  options.device = &islet;
  Buffer other(6 * words, options);
  std::vector<std::uint32_t> data(6 * words);
  std::iota(data.begin(), data.end(), 1U);
  across.copy_from(data);
  across.sync_to_device();
  across.release_host();
  manager.cleanup();
  room_for(0, Location::pinned);
  room_for(7);
  fill(7);
  auto before = manager.statistics();
  copy(across, other);
  EXPECT_GE(manager.statistics().host_reclaims, before.host_reclaims + 6);
  EXPECT_EQ(other.statistics().device_to_device_bytes, 6 * MiB);

  expect_intact();
  manager.cleanup();
  before = manager.statistics();
  across.sync_to_device(islet);
  EXPECT_GE(manager.statistics().host_reclaims, before.host_reclaims + 6);
  EXPECT_EQ(across.statistics().device_to_device_bytes, 6 * MiB);

  expect_intact();
  EXPECT_EQ(manager.statistics().refusals, 0U);
  EXPECT_LE(reserved(), 7 * MiB);
  manager.set_limit(device("cpu"), Location::host, 32 * MiB);
  across.release_device(island);
  EXPECT_TRUE(across.to_vector() == data);
  EXPECT_TRUE(other.to_vector() == data);
}

}  // namespace
}  // namespace unimem::testing
