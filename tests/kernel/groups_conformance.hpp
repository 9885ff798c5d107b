#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/launch.hpp>

#include "kernel/group_kernels.hpp"
#include "kernel/on_device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace unimem {

/// Kernels that ask for their group, on the device of that id.
class Groups : public ::testing::TestWithParam<std::string>, protected OnDevice {
 protected:
  Groups() : OnDevice(GetParam()) {}

  template <class T>
  UnifiedBuffer<T> filled(std::vector<T> const& values) {
    UnifiedBuffer<T> buffer(values.size(), here());
    buffer.copy_from(values);
    return buffer;
  }
  template <class T>
  std::vector<T> random_numbers(std::size_t count, int below) {
    std::vector<T> values(count);
    std::ranges::generate(values, [&] { return static_cast<T>(random() % static_cast<unsigned>(below)); });
    return values;
  }
  template <class... A>
  std::string refusal(Kernel const& kernel, Range range, A const&... arguments) {
    try {
      launch(on.default_queue(), kernel, range, arguments...).wait();
    } catch (KernelError const& error) {
      return error.reason;
    } catch (InvalidArgument const& error) {
      return error.what();
    }
    return "accepted";
  }
  /// Rusticl (Mesa 22.3) has groups of 32 items on llvmpipe.
  [[nodiscard]] bool has_large_groups() const { return on.info().name.find("llvmpipe") == std::string::npos; }
  [[nodiscard]] bool compiles() const { return on.info().compiles_source; }

  std::mt19937 random{20261128};
};

TEST_P(Groups, ATiledMatrixProductIsThePlainOne) {
  constexpr std::size_t n = 48, m = 64, k = 32;
  auto const a = random_numbers<float>(n * k, 100), b = random_numbers<float>(k * m, 100);
  auto left = filled(a), right = filled(b);
  UnifiedBuffer<float> c(n * m, here());
  launch(testing::matrix_product(has_large_groups() ? 16 : 4), Range{m, n}, read(left), read(right), write(c),
         std::uint32_t{m}, std::uint32_t{k});
  auto const product = c.to_vector();
  for (std::size_t y = 0; y < n; ++y) {
    for (std::size_t x = 0; x < m; ++x) {
      float sum = 0;
      for (std::size_t i = 0; i < k; ++i) sum += a[y * k + i] * b[i * m + x];
      ASSERT_EQ(product[y * m + x], sum) << "at " << x << ", " << y;
    }
  }
}

TEST_P(Groups, SumsOfFloatsAreTheSameOnEveryDevice) {
  for (std::size_t const each : {1U, 2U, 7U, 64U, 100U, 128U}) {
    if (each > testing::small_group && !has_large_groups()) continue;
    SCOPED_TRACE(each);
    auto const count = 3 * each;
    std::vector<float> values(count);
    std::ranges::generate(
        values, [&] { return std::ldexp(static_cast<float>(random() % 1000), -static_cast<int>(random() % 20)); });
    auto x = filled(values);
    UnifiedBuffer<float> sums(3, here()), least(3, here()), most(3, here());
    launch(testing::reductions(), Range{count}.group({each}), read(x), write(sums), write(least), write(most));
    for (std::size_t i = 0; i < 3; ++i) {
      std::vector<float> own(values.begin() + static_cast<std::ptrdiff_t>(i * each),
                             values.begin() + static_cast<std::ptrdiff_t>((i + 1) * each));
      EXPECT_EQ(least.host_view()[i], std::ranges::min(own));
      EXPECT_EQ(most.host_view()[i], std::ranges::max(own));
      EXPECT_EQ(sums.host_view()[i], group_sum(std::span{own})) << "to the last bit";
    }
  }
}

TEST_P(Groups, CountersThatAGroupSharesMakeAHistogram) {
  auto const bytes = random_numbers<std::uint8_t>(testing::small_group * 1000, 256);
  auto x = filled(bytes);
  UnifiedBuffer<std::uint32_t> counts(256, here());
  counts.fill(0);
  launch(testing::shared_histogram(), Range{bytes.size()}, read(x), readwrite(counts));
  std::vector<std::uint32_t> expected(256);
  for (auto const byte : bytes) ++expected[byte];
  EXPECT_EQ(counts.to_vector(), expected);
}

TEST_P(Groups, AStencilLoadsItsEdgesOnce) {
  constexpr std::size_t width = 48, height = 40;
  auto const in = random_numbers<std::int32_t>(width * height, 1'000'000);
  auto x = filled(in);
  UnifiedBuffer<std::int32_t> out(in.size(), here());
  launch(testing::stencil(), Range{width, height}, read(x), write(out));
  auto const at = [&](std::size_t i, std::size_t k) { return i < width && k < height ? in[k * width + i] : 0; };
  auto const result = out.to_vector();
  for (std::size_t k = 0; k < height; ++k) {
    for (std::size_t i = 0; i < width; ++i) {
      ASSERT_EQ(result[k * width + i], 4 * at(i, k) - at(i, k - 1) - at(i, k + 1) - at(i - 1, k) - at(i + 1, k))
          << i << ", " << k;
    }
  }
}

TEST_P(Groups, APrefixSumIsMadeOfThoseOfGroups) {
  auto const each = has_large_groups() ? std::size_t{100} : testing::small_group, groups = each, count = each * groups;
  auto const values = random_numbers<std::uint64_t>(count, 1'000'000'000);
  auto x = filled(values);
  UnifiedBuffer<std::uint64_t> upto(count, here()), before(count, here()), sums(groups, here());
  UnifiedBuffer<std::uint64_t> none(groups, here()), offsets(groups, here()), all(1, here());
  launch(testing::scans(), Range{count}.group({each}), read(x), write(upto), write(before), write(sums));
  launch(testing::scans(), Range{groups}.group({groups}), read(sums), write(none), write(offsets), write(all));
  launch(testing::add_by_group(), Range{count}.group({each}), readwrite(upto), read(offsets));
  launch(testing::add_by_group(), Range{count}.group({each}), readwrite(before), read(offsets));
  std::vector<std::uint64_t> inclusive(count), exclusive(count);
  std::inclusive_scan(values.begin(), values.end(), inclusive.begin());
  std::exclusive_scan(values.begin(), values.end(), exclusive.begin(), std::uint64_t{0});
  EXPECT_EQ(upto.to_vector(), inclusive);
  EXPECT_EQ(before.to_vector(), exclusive);
  EXPECT_EQ(all.host_view()[0], inclusive.back());
}

TEST_P(Groups, AnItemKnowsItsPlace) {
  if (!compiles()) GTEST_SKIP() << "of the source form";
  auto const kernel = Kernel("places").source(R"(
    UNIMEM_FUNCTION void put(UNIMEM_GLOBAL unimem_u32* to, unimem_u64 a, unimem_u64 b, unimem_u64 c) {
      to[0] = a;
      to[1] = b;
      to[2] = c;
    }
    UNIMEM_KERNEL places(UNIMEM_BUFFER(unimem_u32, out)) {
      UNIMEM_GLOBAL unimem_u32* to = UNIMEM_DATA(unimem_u32, out) +
          20 * ((UNIMEM_ITEM_Z * UNIMEM_RANGE_Y + UNIMEM_ITEM_Y) * UNIMEM_RANGE_X + UNIMEM_ITEM_X);
      put(to, UNIMEM_ITEM_X, UNIMEM_ITEM_Y, UNIMEM_ITEM_Z);
      put(to + 3, UNIMEM_LOCAL_X, UNIMEM_LOCAL_Y, UNIMEM_LOCAL_Z);
      put(to + 6, UNIMEM_GROUP_X, UNIMEM_GROUP_Y, UNIMEM_GROUP_Z);
      put(to + 9, UNIMEM_GROUP_SIZE_X, UNIMEM_GROUP_SIZE_Y, UNIMEM_GROUP_SIZE_Z);
      put(to + 12, UNIMEM_GROUPS_X, UNIMEM_GROUPS_Y, UNIMEM_GROUPS_Z);
      put(to + 15, UNIMEM_RANGE_X, UNIMEM_RANGE_Y, UNIMEM_RANGE_Z);
      to[18] = UNIMEM_LOCAL_NUMBER;
      to[19] = UNIMEM_GROUP_ITEMS;
    })");
  for (auto const& [range, group] : {std::pair{Range{12}, GroupSize{4}},
                                     {Range{12}, GroupSize{12}},
                                     {Range{6, 4}, GroupSize{3, 2}},
                                     {Range{6, 4}, GroupSize{1, 4}},
                                     {Range{3, 4, 6}, GroupSize{1, 2, 3}},
                                     {Range{2, 2, 4}, GroupSize{2, 1, 2}}}) {
    SCOPED_TRACE(::testing::Message() << range.x << " × " << range.y << " × " << range.z << " by " << group.x << " × "
                                      << group.y << " × " << group.z);
    UnifiedBuffer<std::uint32_t> out(20 * range.items(), here());
    launch(kernel, range.group(group), write(out));
    std::vector<std::uint32_t> expected;
    auto const put = [&](auto... numbers) { (expected.push_back(static_cast<std::uint32_t>(numbers)), ...); };
    for (std::size_t z = 0; z < range.z; ++z) {
      for (std::size_t y = 0; y < range.y; ++y) {
        for (std::size_t x = 0; x < range.x; ++x) {
          auto const lx = x % group.x, ly = y % group.y, lz = z % group.z;
          put(x, y, z, lx, ly, lz, x / group.x, y / group.y, z / group.z, group.x, group.y, group.z);
          put(range.x / group.x, range.y / group.y, range.z / group.z, range.x, range.y, range.z);
          put((lz * group.y + ly) * group.x + lx, group.items());
        }
      }
    }
    EXPECT_EQ(out.to_vector(), expected);
  }
}

TEST_P(Groups, ARangeIsKnownWithoutGroups) {
  if (!compiles()) GTEST_SKIP() << "of the source form";
  auto const kernel = Kernel("reversed").source(R"(
    UNIMEM_KERNEL reversed(UNIMEM_BUFFER(unimem_u64, out)) {
      unimem_u64 i = (UNIMEM_ITEM_Z * UNIMEM_RANGE_Y + UNIMEM_ITEM_Y) * UNIMEM_RANGE_X + UNIMEM_ITEM_X;
      UNIMEM_DATA(unimem_u64, out)[UNIMEM_RANGE_X * UNIMEM_RANGE_Y * UNIMEM_RANGE_Z - 1 - i] = i;
    })");
  for (auto const range : {Range{1}, Range{1009}, Range{70, 3}, Range{5, 3, 7}, Range{1, 40}}) {
    SCOPED_TRACE(::testing::Message() << range.x << " × " << range.y << " × " << range.z);
    UnifiedBuffer<std::uint64_t> out(range.items(), here());
    launch(kernel, range, write(out));
    std::vector<std::uint64_t> expected(range.items());
    std::iota(expected.rbegin(), expected.rend(), std::uint64_t{0});
    EXPECT_EQ(out.to_vector(), expected);
  }
}

TEST_P(Groups, FunctionsOfASourceMayWaitForTheGroup) {
  if (!compiles()) GTEST_SKIP() << "of the source form";
  // PoCL loses barriers in functions that it does not inline: those that are called twice, from a function.
  auto const kernel = Kernel("turned").group({8}).source(R"(
    UNIMEM_FUNCTION void turn(UNIMEM_SHARED_POINTER(unimem_u64) all, unimem_u64 by) {
      unimem_u64 next;
      UNIMEM_BARRIER();
      next = all[(UNIMEM_LOCAL_X + by) % UNIMEM_GROUP_SIZE_X];
      UNIMEM_BARRIER();
      all[UNIMEM_LOCAL_X] = next;
      UNIMEM_BARRIER();
    }
    UNIMEM_FUNCTION unimem_u64 turned_once(UNIMEM_SHARED_POINTER(unimem_u64) all) {
      turn(all, 1);
      return all[0];
    }
    UNIMEM_FUNCTION unimem_u64 turned_more(UNIMEM_SHARED_POINTER(unimem_u64) all) {
      turn(all, 2);
      turn(all, 1);
      return all[0];
    }
    UNIMEM_KERNEL turned(UNIMEM_BUFFER(unimem_u64, x)) {
      UNIMEM_SHARED unimem_u64 all[8];
      UNIMEM_GLOBAL unimem_u64* own = UNIMEM_DATA(unimem_u64, x) + UNIMEM_ITEM_X;
      all[UNIMEM_LOCAL_X] = *own;
      *own = 100 * turned_once(all) + 10 * turned_more(all) + all[UNIMEM_LOCAL_X];
    })");
  auto x = filled<std::uint64_t>({1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1});
  launch(kernel, Range{16}, readwrite(x));
  EXPECT_THAT(x.to_vector(), ::testing::ElementsAre(255U, 256U, 257U, 258U, 251U, 252U, 253U, 254U, 744U, 743U, 742U,
                                                    741U, 748U, 747U, 746U, 745U));
}

TEST_P(Groups, AtomicFunctionsLoseNothing) {
  if (!compiles()) GTEST_SKIP() << "of the source form";
  auto const kernel = Kernel("atomics").group({25}).source(R"(
    UNIMEM_KERNEL atomics(UNIMEM_BUFFER(unimem_u32, u), UNIMEM_BUFFER(unimem_i32, s), UNIMEM_BUFFER(unimem_f32, f)) {
      UNIMEM_SHARED unimem_u32 own_u[5];
      UNIMEM_SHARED unimem_i32 own_s[4];
      UNIMEM_SHARED unimem_f32 own_f[1];
      UNIMEM_GLOBAL unimem_u32* all_u = UNIMEM_DATA(unimem_u32, u);
      UNIMEM_GLOBAL unimem_i32* all_s = UNIMEM_DATA(unimem_i32, s);
      UNIMEM_GLOBAL unimem_f32* all_f = UNIMEM_DATA(unimem_f32, f);
      unimem_u32 i = UNIMEM_ITEM_X, seen, was;
      unimem_i32 j = (unimem_i32)i - 500;
      if (UNIMEM_LOCAL_X == 0) {
        own_u[0] = own_u[2] = own_u[3] = own_u[4] = 0;
        own_u[1] = 4294967295u;
        own_s[0] = own_s[1] = own_s[2] = own_s[3] = 0;
        own_f[0] = 0;
      }
      UNIMEM_BARRIER();
      UNIMEM_ATOMIC_ADD_U32(&own_u[0], i);
      UNIMEM_ATOMIC_MIN_U32(&own_u[1], i + 7);
      UNIMEM_ATOMIC_MAX_U32(&own_u[2], i + 4000000000u);
      seen = UNIMEM_ATOMIC_EXCHANGE_U32(&own_u[3], i + 1);
      UNIMEM_ATOMIC_ADD_U32(&all_u[3], seen);
      for (was = 0; (seen = UNIMEM_ATOMIC_COMPARE_EXCHANGE_U32(&own_u[4], was, was + 3)) != was; was = seen) {}
      UNIMEM_ATOMIC_ADD_I32(&own_s[0], j);
      UNIMEM_ATOMIC_MIN_I32(&own_s[1], j);
      UNIMEM_ATOMIC_MAX_I32(&own_s[2], j);
      UNIMEM_ATOMIC_ADD_F32(&own_f[0], 0.5f);
      UNIMEM_BARRIER();
      if (UNIMEM_LOCAL_X != 0) return;
      UNIMEM_ATOMIC_ADD_U32(&all_u[0], own_u[0]);
      UNIMEM_ATOMIC_MIN_U32(&all_u[1], own_u[1]);
      UNIMEM_ATOMIC_MAX_U32(&all_u[2], own_u[2]);
      UNIMEM_ATOMIC_ADD_U32(&all_u[3], own_u[3]);
      UNIMEM_ATOMIC_ADD_U32(&all_u[4], own_u[4]);
      UNIMEM_ATOMIC_ADD_I32(&all_s[0], own_s[0]);
      UNIMEM_ATOMIC_MIN_I32(&all_s[1], own_s[1]);
      UNIMEM_ATOMIC_MAX_I32(&all_s[2], own_s[2]);
      UNIMEM_ATOMIC_EXCHANGE_I32(&all_s[3], -9);
      UNIMEM_ATOMIC_COMPARE_EXCHANGE_I32(&all_s[4], 5, -5);
      UNIMEM_ATOMIC_ADD_F32(&all_f[0], own_f[0]);
    })");
  auto u = filled<std::uint32_t>({0, 0xFFFFFFFF, 0, 0, 0});
  auto s = filled<std::int32_t>({0, 0, 0, 1, 5});
  auto f = filled<float>({1});
  launch(kernel, Range{1000}, readwrite(u), readwrite(s), readwrite(f));
  constexpr std::uint32_t sum = 999 * 1000 / 2;
  EXPECT_THAT(u.to_vector(), ::testing::ElementsAre(sum, 7U, 4'000'000'999U, sum + 1000, 3000U));
  EXPECT_THAT(s.to_vector(), ::testing::ElementsAre(-500, -500, 499, -9, -5));
  EXPECT_THAT(f.to_vector(), ::testing::ElementsAre(501.0F));
}

TEST_P(Groups, AtomicFunctionsOf64BitsAreThereWhereTheDeviceSaysSo) {
  if (!compiles()) GTEST_SKIP() << "of the source form";
  auto const kernel = Kernel("wide").source(R"(
    #ifdef UNIMEM_ATOMICS_64
    UNIMEM_KERNEL wide(UNIMEM_BUFFER(unimem_u64, x)) {
      UNIMEM_GLOBAL unimem_u64* all = UNIMEM_DATA(unimem_u64, x);
      unimem_u64 i = UNIMEM_ITEM_X + 5000000000ul, was, seen;
      UNIMEM_ATOMIC_ADD_U64(&all[0], i);
      UNIMEM_ATOMIC_MIN_U64(&all[1], i);
      UNIMEM_ATOMIC_MAX_U64(&all[2], i);
      UNIMEM_ATOMIC_ADD_U64(&all[3], UNIMEM_ATOMIC_EXCHANGE_U64(&all[4], i));
      for (was = 0; (seen = UNIMEM_ATOMIC_COMPARE_EXCHANGE_U64(&all[5], was, was + 5000000000ul)) != was; was = seen) {}
    }
    #else
    UNIMEM_KERNEL wide(UNIMEM_BUFFER(unimem_u64, x)) { UNIMEM_DATA(unimem_u64, x)[0] = 12345; }
    #endif
  )");
  auto x = filled<std::uint64_t>({0, UINT64_MAX, 0, 0, 0, 0});
  launch(kernel, Range{100}, readwrite(x));
  auto const result = x.to_vector();
  if (!on.info().atomics64) {
    EXPECT_EQ(result[0], 12'345U) << "the source is told";
    return;
  }
  constexpr std::uint64_t first = 5'000'000'000, sum = 100 * first + 4950;
  EXPECT_EQ(result[0], sum);
  EXPECT_EQ(result[1], first);
  EXPECT_EQ(result[2], first + 99);
  EXPECT_EQ(result[3] + result[4], sum);
  EXPECT_EQ(result[5], 100 * first);
}

TEST_P(Groups, WhatCannotBeIsRefusedBeforeAnythingMoves) {
  auto x = filled(std::vector<float>(1024, 1.0F));
  UnifiedBuffer<float> y(1024, here());
  auto const run = [&](Range range) {
    return refusal(testing::reductions(), range, read(x), write(y), write(y), write(y));
  };
  EXPECT_THAT(run(Range{1024}), ::testing::HasSubstr("groups is given: Range{…}.group({…})"))
      << "or of its groups, by the form";
  EXPECT_THAT(run({1000, 1, 1, {64, 1, 1}}), ::testing::AllOf(::testing::HasSubstr("1000 × 1 × 1"),
                                                              ::testing::HasSubstr("whole groups of 64 × 1 × 1")));
  EXPECT_THAT(run({1024, 1, 1, {64, 0, 1}}), ::testing::HasSubstr("64 × 0 × 1"));
  if (compiles()) {
    EXPECT_THAT(run(Range{std::size_t{1} << 20}.group({std::size_t{1} << 20})),
                ::testing::HasSubstr("groups of 1048576 × 1 × 1 are larger than"));
  }
  EXPECT_EQ(x.statistics().host_to_device_copies, 0U);
  EXPECT_THROW(static_cast<void>(Range{6}.group({4})), InvalidArgument);
  EXPECT_THROW(Kernel("k").group({0}), InvalidArgument);
}

TEST_P(Groups, NoMacroHidesThatAKernelAsksForItsGroup) {
  if (!compiles()) GTEST_SKIP() << "of the source form";
  constexpr auto text = R"text(
    #define LOCAL(axis) UNIMEM_LOCAL_##axis
    #define COUNT(name)                                                       \
      UNIMEM_KERNEL name(UNIMEM_BUFFER(unimem_u32, x)) {                      \
        UNIMEM_SHARED unimem_u32 all[4];                                      \
        all[LOCAL(X)] = LOCAL(X);                                             \
        UNIMEM_BARRIER();                                                     \
        UNIMEM_DATA(unimem_u32, x)[UNIMEM_ITEM_X] = all[3 - LOCAL(X)];        \
      }
    COUNT(made)
    UNIMEM_KERNEL pasted(UNIMEM_BUFFER(unimem_u32, x)) { UNIMEM_DATA(unimem_u32, x)[UNIMEM_ITEM_X] = 3 - LOCAL(X); })text";
  UnifiedBuffer<std::uint32_t> x(12, here());
  for (auto const* const name : {"made", "pasted"}) {
    SCOPED_TRACE(name);
    auto const kernel = Kernel(name).source(text);
    EXPECT_THAT(refusal(kernel, Range{12}, write(x)), ::testing::HasSubstr("no size of its groups is given"));
    launch(kernel, Range{12}.group({4}), write(x));
    EXPECT_THAT(x.to_vector(), ::testing::ElementsAre(3U, 2U, 1U, 0U, 3U, 2U, 1U, 0U, 3U, 2U, 1U, 0U));
  }
}

TEST_P(Groups, ARangeIsKnownWhateverStandsBesideIt) {
  if (!compiles()) GTEST_SKIP() << "of the source form";
  // Of a column of items, which the library deals out as it likes.
  auto const kernel = Kernel("folded").source(R"(
    #define EXTENT(axis) UNIMEM_RANGE_##axis
    UNIMEM_FUNCTION unimem_u32 twice(unimem_u32 v) { return 2 * v; }
    UNIMEM_KERNEL folded(UNIMEM_CONST_BUFFER(unimem_u32, kernel), UNIMEM_BUFFER(unimem_u32, out)) {
      UNIMEM_DATA(unimem_u32, out)[UNIMEM_ITEM_Y] = UNIMEM_DATA(const unimem_u32, kernel)[UNIMEM_RANGE_X] * twice(UNIMEM_RANGE_Y);
    }
    UNIMEM_KERNEL pasted(UNIMEM_CONST_BUFFER(unimem_u32, x), UNIMEM_BUFFER(unimem_u32, out)) {
      UNIMEM_DATA(unimem_u32, out)[UNIMEM_ITEM_Y] = UNIMEM_DATA(const unimem_u32, x)[EXTENT(X)] * twice(EXTENT(Y));
    })");
  auto x = filled<std::uint32_t>({1, 3});
  for (auto const* const name : {"folded", "pasted"}) {
    UnifiedBuffer<std::uint32_t> out(50, here());
    launch(Kernel(name).source(kernel.forms().source), Range{1, 50}, read(x), write(out));
    EXPECT_THAT(out.to_vector(), ::testing::Each(300U)) << name;
  }
}

TEST_P(Groups, MemoryOfAnotherTypeIsNoneForTheFunctionsOfAGroup) {
  if (!compiles()) GTEST_SKIP() << "of the source form";
  UnifiedBuffer<std::uint8_t> x(32, here());
  for (std::string const type : {"unimem_u8", "unimem_i16", "unimem_u16", "unimem_i8"}) {
    auto const kernel = Kernel("narrow").group({8}).source(
        "UNIMEM_KERNEL narrow(UNIMEM_BUFFER(unimem_u8, x)) {\n"
        "  UNIMEM_SHARED " +
        type + " scratch[8];\n  " + type + R"( value = 1;
          UNIMEM_DATA(unimem_u8, x)[UNIMEM_ITEM_X] = unimem_group_sum(value, scratch);
        })");
    EXPECT_THAT(refusal(kernel, Range{32}, write(x)), ::testing::HasSubstr("does not build")) << type;
  }
}

TEST_P(Groups, ABarrierThatItemsPassByIsRefusedWhereItCanBeSeen) {
  if (!compiles()) GTEST_SKIP() << "runs the host form";
  UnifiedBuffer<float> x{32, here()};
  x.fill(0);
  auto const kernel = Kernel("halves").group({testing::small_group}).source(R"(
    UNIMEM_KERNEL halves(UNIMEM_BUFFER(unimem_f32, x)) {
      UNIMEM_SHARED unimem_f32 part[32];
      unimem_u32 reach;
      part[UNIMEM_LOCAL_X] = UNIMEM_DATA(unimem_f32, x)[UNIMEM_ITEM_X];
      UNIMEM_BARRIER();
      for (reach = 16; reach > 0; reach /= 2) {
        if (UNIMEM_LOCAL_X < reach) {
          part[UNIMEM_LOCAL_X] += part[UNIMEM_LOCAL_X + reach];
          UNIMEM_BARRIER();
        }
      }
      UNIMEM_DATA(unimem_f32, x)[UNIMEM_ITEM_X] = part[0];
    })");
  EXPECT_THAT(refusal(kernel, Range{32}, readwrite(x)),
              ::testing::HasSubstr("uses UNIMEM_BARRIER under if (UNIMEM_LOCAL_X < reach)"));
  EXPECT_EQ(x.statistics().host_to_device_copies, 0U);
}

TEST_P(Groups, ARunThatIsNotOfWholeGroupsIsRefusedByItsQueue) {
  auto x = filled(std::vector<float>(64, 1.0F));
  auto const program = testing::reductions().program(on);
  auto& queue = on.default_queue();
  for (auto const range : {Range{10, 1, 1, {4, 1, 1}}, Range{8, 1, 1, {4, 0, 1}}, Range{0, 1, 1, {0, 1, 1}}}) {
    EXPECT_THROW(queue.run(program, range, {}).wait(), InvalidArgument);
    EXPECT_THROW(static_cast<void>(queue.capture({{program, range, {}}})), InvalidArgument);
  }
}

TEST_P(Groups, NoGroupsAreNoWork) {
  auto x = filled(std::vector<float>(64, 1.0F));
  auto y = filled(std::vector<float>(64, 5.0F));
  launch(testing::reductions(), Range{0}.group({32}), read(x), readwrite(y), readwrite(y), readwrite(y)).wait();
  launch(testing::reductions(), Range{32, 0}.group({32, 1}), read(x), readwrite(y), readwrite(y), readwrite(y)).wait();
  EXPECT_THAT(y.to_vector(), ::testing::Each(5.0F));
}

/// Each item writes one of so many words of 32 bits that its group shares, the last first.
inline Kernel sharing(std::size_t words) {
  return Kernel("sharing").source(
      "UNIMEM_KERNEL sharing(UNIMEM_BUFFER(unimem_u32, x)) {\n"
      "  UNIMEM_SHARED unimem_u32 all[" +
      std::to_string(words) +
      "];\n"
      "  for (unimem_u32 i = UNIMEM_LOCAL_X; i < sizeof(all) / 4; i += UNIMEM_GROUP_SIZE_X) all[i] = i + 1;\n"
      "  UNIMEM_BARRIER();\n"
      "  UNIMEM_DATA(unimem_u32, x)[UNIMEM_ITEM_X] = all[sizeof(all) / 4 - 1 - UNIMEM_ITEM_X];\n"
      "}");
}

TEST_P(Groups, ShareMostOfWhatThereIs) {
  if (!compiles()) GTEST_SKIP() << "of the source form";
  auto const words = on.info().group_memory_bytes / 16 * 3;  // three quarters
  auto x = filled(std::vector<std::uint32_t>(2 * testing::small_group, 0));
  launch(on.default_queue(), sharing(words), Range{x.size()}.group({testing::small_group}), write(x));
  auto const found = x.to_vector();
  for (std::size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], words - i) << i;
}

TEST_P(Groups, MemoryThatAGroupSharesHasALimit) {
  if (!compiles()) GTEST_SKIP() << "of the source form";
  if (on.info().name.starts_with("Stand-in")) GTEST_SKIP() << "the stand-in's compiler does not count it";
  auto const most = on.info().group_memory_bytes;
  ASSERT_GT(most, 0U);
  auto x = filled(std::vector<std::uint32_t>(64, 1));
  EXPECT_THAT(refusal(sharing(most / 4 + 1024), Range{64}.group({testing::small_group}), readwrite(x)),
              ::testing::AnyOf(::testing::HasSubstr("bytes of memory shared by a group"),
                               ::testing::HasSubstr("does not build")));
  EXPECT_EQ(x.statistics().host_to_device_copies, 0U);
}

TEST_P(Groups, AKernelThatAsksForNoneMayBeGivenSome) {
  auto const scale = Kernel("scale")
                         .source(R"(UNIMEM_KERNEL scale(UNIMEM_BUFFER(unimem_f32, x)) {
                           UNIMEM_DATA(unimem_f32, x)[UNIMEM_ITEM_Y * 24 + UNIMEM_ITEM_X] *= 2;
                         })")
                         .host([](WorkItem i, std::span<float> x) { x[i.y * 24 + i.x] *= 2; });
  std::vector<float> values(24 * 30);
  std::iota(values.begin(), values.end(), 1.0F);
  for (auto const group : {GroupSize{8, 3}, GroupSize{1, 30}, GroupSize{24, 1}, GroupSize{1, 1}}) {
    SCOPED_TRACE(::testing::Message() << group.x << " × " << group.y);
    auto x = filled(values);
    launch(scale, Range{24, 30}.group(group), readwrite(x));
    auto const result = x.to_vector();
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(result[i], 2 * values[i]);
  }
}

}  // namespace unimem
