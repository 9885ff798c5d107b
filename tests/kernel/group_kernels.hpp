#pragma once

#include <unimem/kernel/kernel.hpp>

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

// Kernels whose items share memory and wait for each other, each written once for drivers and once for the host.

namespace unimem::testing {

/// As many items as a group may have on every device of the tests.
inline constexpr std::size_t small_group = 32;

/// c = a · b, of n × k and k × m numbers, tile by tile; n, m and k are multiples of the tile. The host form is for
/// tiles of 16: a constant, as in a program that cares for speed.
inline Kernel matrix_product(std::size_t tile) {
  return Kernel("matrix_product")
      .group({tile, tile})
      .source(fmt::format("#define TILE {}\n", tile) + R"(
        #ifndef TILE
        #define TILE 16
        #endif
        UNIMEM_KERNEL matrix_product(UNIMEM_CONST_BUFFER(unimem_f32, a), UNIMEM_CONST_BUFFER(unimem_f32, b),
                                     UNIMEM_BUFFER(unimem_f32, c), unimem_u32 m, unimem_u32 k) {
          UNIMEM_SHARED unimem_f32 left[TILE][TILE];
          UNIMEM_SHARED unimem_f32 right[TILE][TILE];
          UNIMEM_GLOBAL const unimem_f32* rows = UNIMEM_DATA(const unimem_f32, a);
          UNIMEM_GLOBAL const unimem_f32* columns = UNIMEM_DATA(const unimem_f32, b);
          unimem_u64 x = UNIMEM_LOCAL_X, y = UNIMEM_LOCAL_Y, begin, i;
          unimem_f32 sum = 0;
          for (begin = 0; begin < k; begin += TILE) {
            left[y][x] = rows[UNIMEM_ITEM_Y * k + begin + x];
            right[y][x] = columns[(begin + y) * m + UNIMEM_ITEM_X];
            UNIMEM_BARRIER();
            for (i = 0; i < TILE; ++i) sum += left[y][i] * right[i][x];
            UNIMEM_BARRIER();
          }
          UNIMEM_DATA(unimem_f32, c)[UNIMEM_ITEM_Y * m + UNIMEM_ITEM_X] = sum;
        })")
      .host([](WorkGroup const& group, std::span<const float> a, std::span<const float> b, std::span<float> c,
               std::uint32_t m, std::uint32_t k) {
        std::array<std::array<float, 16>, 16> left, right, sum{};
        constexpr std::size_t edge = 16;
        for (std::size_t begin = 0; begin < k; begin += edge) {
          group.each([&](WorkItem item, WorkItem at) {
            left[at.y][at.x] = a[item.y * k + begin + at.x];
            right[at.y][at.x] = b[(begin + at.y) * m + item.x];
          });
          group.each([&](WorkItem, WorkItem at) {
            for (std::size_t i = 0; i < edge; ++i) sum[at.y][at.x] += left[at.y][i] * right[i][at.x];
          });
        }
        group.each([&](WorkItem item, WorkItem at) { c[item.y * m + item.x] = sum[at.y][at.x]; });
      });
}

/// The sum, the least and the greatest of each group's numbers; groups of up to 256.
inline Kernel reductions() {
  return Kernel("reductions")
      .source(R"(
        UNIMEM_KERNEL reductions(UNIMEM_CONST_BUFFER(unimem_f32, x), UNIMEM_BUFFER(unimem_f32, sums),
                                 UNIMEM_BUFFER(unimem_f32, least), UNIMEM_BUFFER(unimem_f32, most)) {
          UNIMEM_SHARED unimem_f32 scratch[256];
          unimem_f32 value = UNIMEM_DATA(const unimem_f32, x)[UNIMEM_ITEM_X];
          unimem_f32 sum = unimem_group_sum(value, scratch);
          unimem_f32 low = unimem_group_min(value, scratch), high = unimem_group_max(value, scratch);
          if (UNIMEM_LOCAL_X == UNIMEM_GROUP_SIZE_X - 1) {
            UNIMEM_DATA(unimem_f32, sums)[UNIMEM_GROUP_X] = sum;
            UNIMEM_DATA(unimem_f32, least)[UNIMEM_GROUP_X] = low;
            UNIMEM_DATA(unimem_f32, most)[UNIMEM_GROUP_X] = high;
          }
        })")
      .host([](WorkGroup const& group, std::span<const float> x, std::span<float> sums, std::span<float> least,
               std::span<float> most) {
        std::array<float, 256> values;
        auto const scratch = std::span{values}.first(group.items());
        auto const load = [&] { group.each([&](WorkItem item, WorkItem at) { scratch[at.x] = x[item.x]; }); };
        load();
        sums[group.index().x] = group_sum(scratch);
        load();
        least[group.index().x] = group_min(scratch);
        load();
        most[group.index().x] = group_max(scratch);
      });
}

/// How often each byte is there, in any groups, counted by each group before it adds what it has.
inline Kernel shared_histogram() {
  return Kernel("shared_histogram")
      .group({small_group})
      .source(R"(
        UNIMEM_KERNEL shared_histogram(UNIMEM_CONST_BUFFER(unimem_u8, bytes), UNIMEM_BUFFER(unimem_u32, counts)) {
          UNIMEM_SHARED unimem_u32 own[256];
          unimem_u32 i;
          for (i = UNIMEM_LOCAL_X; i < 256; i += UNIMEM_GROUP_SIZE_X) own[i] = 0;
          UNIMEM_BARRIER();
          UNIMEM_ATOMIC_ADD_U32(&own[UNIMEM_DATA(const unimem_u8, bytes)[UNIMEM_ITEM_X]], 1);
          UNIMEM_BARRIER();
          for (i = UNIMEM_LOCAL_X; i < 256; i += UNIMEM_GROUP_SIZE_X)
            if (own[i] != 0) UNIMEM_ATOMIC_ADD_U32(&UNIMEM_DATA(unimem_u32, counts)[i], own[i]);
        })")
      .host([](WorkGroup const& group, std::span<const std::uint8_t> bytes, std::span<std::uint32_t> counts) {
        std::array<std::uint32_t, 256> own{};
        group.each([&](WorkItem item, WorkItem) { ++own[bytes[item.x]]; });
        for (std::size_t i = 0; i < own.size(); ++i) {
          if (own[i] != 0) std::atomic_ref{counts[i]}.fetch_add(own[i], std::memory_order_relaxed);
        }
      });
}

/// Each number less its four neighbours, 0 outside: a group loads its part with the edges around it once.
inline Kernel stencil() {
  return Kernel("stencil")
      .group({8, 4})
      .source(R"(
        UNIMEM_FUNCTION unimem_i32 at(UNIMEM_GLOBAL const unimem_i32* all, unimem_i64 x, unimem_i64 y) {
          unimem_i64 width = UNIMEM_RANGE_X, height = UNIMEM_RANGE_Y;
          return x < 0 || y < 0 || x >= width || y >= height ? 0 : all[y * width + x];
        }
        UNIMEM_KERNEL stencil(UNIMEM_CONST_BUFFER(unimem_i32, in), UNIMEM_BUFFER(unimem_i32, out)) {
          UNIMEM_SHARED unimem_i32 part[6][10];
          UNIMEM_GLOBAL const unimem_i32* all = UNIMEM_DATA(const unimem_i32, in);
          unimem_i64 left = UNIMEM_GROUP_X * 8, top = UNIMEM_GROUP_Y * 4;
          unimem_u32 i, x = UNIMEM_LOCAL_X + 1, y = UNIMEM_LOCAL_Y + 1;
          for (i = UNIMEM_LOCAL_NUMBER; i < 60; i += UNIMEM_GROUP_ITEMS)
            part[i / 10][i % 10] = at(all, left + i % 10 - 1, top + i / 10 - 1);
          UNIMEM_BARRIER();
          UNIMEM_DATA(unimem_i32, out)[UNIMEM_ITEM_Y * UNIMEM_RANGE_X + UNIMEM_ITEM_X] =
              4 * part[y][x] - part[y - 1][x] - part[y + 1][x] - part[y][x - 1] - part[y][x + 1];
        })")
      .host([](WorkGroup const& group, std::span<const std::int32_t> in, std::span<std::int32_t> out) {
        auto const width = group.range().x, height = group.range().y;
        auto const at = [&](std::size_t x, std::size_t y) { return x < width && y < height ? in[y * width + x] : 0; };
        std::array<std::array<std::int32_t, 10>, 6> part;
        auto const left = group.index().x * 8, top = group.index().y * 4;
        for (std::size_t y = 0; y < 6; ++y) {
          for (std::size_t x = 0; x < 10; ++x) part[y][x] = at(left + x - 1, top + y - 1);
        }
        group.each([&](WorkItem item, WorkItem here) {
          auto const x = here.x + 1, y = here.y + 1;
          out[item.y * width + item.x] =
              4 * part[y][x] - part[y - 1][x] - part[y + 1][x] - part[y][x - 1] - part[y][x + 1];
        });
      });
}

/// Sums of each group up to each of its numbers, and before it, and those of whole groups; groups of up to 128.
inline Kernel scans() {
  return Kernel("scans")
      .source(R"(
        UNIMEM_KERNEL scans(UNIMEM_CONST_BUFFER(unimem_u64, x), UNIMEM_BUFFER(unimem_u64, upto),
                            UNIMEM_BUFFER(unimem_u64, before), UNIMEM_BUFFER(unimem_u64, sums)) {
          UNIMEM_SHARED unimem_u64 scratch[128];
          unimem_u64 value = UNIMEM_DATA(const unimem_u64, x)[UNIMEM_ITEM_X];
          unimem_u64 sum = unimem_group_inclusive_sum(value, scratch);
          UNIMEM_DATA(unimem_u64, upto)[UNIMEM_ITEM_X] = sum;
          UNIMEM_DATA(unimem_u64, before)[UNIMEM_ITEM_X] = unimem_group_exclusive_sum(value, scratch);
          if (UNIMEM_LOCAL_X == UNIMEM_GROUP_SIZE_X - 1) UNIMEM_DATA(unimem_u64, sums)[UNIMEM_GROUP_X] = sum;
        })")
      .host([](WorkGroup const& group, std::span<const std::uint64_t> x, std::span<std::uint64_t> upto,
               std::span<std::uint64_t> before, std::span<std::uint64_t> sums) {
        std::array<std::uint64_t, 128> values;
        auto const scratch = std::span{values}.first(group.items());
        group.each([&](WorkItem item, WorkItem at) { scratch[at.x] = x[item.x]; });
        group_inclusive_sum(scratch);
        group.each([&](WorkItem item, WorkItem at) { upto[item.x] = scratch[at.x]; });
        sums[group.index().x] = scratch.back();
        group.each([&](WorkItem item, WorkItem at) { scratch[at.x] = x[item.x]; });
        group_exclusive_sum(scratch);
        group.each([&](WorkItem item, WorkItem at) { before[item.x] = scratch[at.x]; });
      });
}

/// Adds to each number what its group has: what makes a prefix sum of all out of those of groups.
inline Kernel add_by_group() {
  return Kernel("add_by_group")
      .source(R"(
        UNIMEM_KERNEL add_by_group(UNIMEM_BUFFER(unimem_u64, x), UNIMEM_CONST_BUFFER(unimem_u64, offsets)) {
          UNIMEM_DATA(unimem_u64, x)[UNIMEM_ITEM_X] += UNIMEM_DATA(const unimem_u64, offsets)[UNIMEM_GROUP_X];
        })")
      .host([](WorkGroup const& group, std::span<std::uint64_t> x, std::span<const std::uint64_t> offsets) {
        group.each([&](WorkItem item, WorkItem) { x[item.x] += offsets[group.index().x]; });
      });
}

}  // namespace unimem::testing
