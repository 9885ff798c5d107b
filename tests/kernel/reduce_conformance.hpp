#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/graph.hpp>
#include <unimem/kernel/reduce.hpp>

#include "kernel/on_device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace unimem {

/// Reductions on the device of that id.
class Reductions : public ::testing::TestWithParam<std::string>, protected OnDevice {
 protected:
  Reductions() : OnDevice(GetParam()) {}

  template <class T>
  UnifiedBuffer<T> filled(std::vector<T> const& values) {
    UnifiedBuffer<T> buffer(values.size(), here());
    buffer.copy_from(values);
    buffer.sync_to_device();
    return buffer;
  }
  template <class T>
  std::vector<T> random_numbers(std::size_t count) {
    std::vector<T> values(count);
    std::ranges::generate(values, [&] {
      if constexpr (std::is_floating_point_v<T>) {
        return static_cast<T>(
            std::ldexp(static_cast<double>(random() % 2'000'001) - 1e6, -static_cast<int>(random() % 30)));
      } else {
        return static_cast<T>(std::uint64_t{random()} << 32U | random());
      }
    });
    return values;
  }

  /// The order that is promised (docs/kernels.md), written down once more.
  template <class A, class Join>
  static A in_order(std::vector<A> values, Join const& join) {
    while (values.size() > 1) {
      std::vector<A> results;
      for (std::size_t begin = 0; begin < values.size(); begin += 4096) {
        std::vector<A> block(values.begin() + static_cast<std::ptrdiff_t>(begin),
                             values.begin() + static_cast<std::ptrdiff_t>(std::min(begin + 4096, values.size())));
        for (std::size_t i = 32; i < block.size(); ++i) block[i % 32] = join(block[i % 32], block[i]);
        block.resize(std::min<std::size_t>(block.size(), 32));
        for (std::size_t half = 16; half > 0; half /= 2) {
          for (std::size_t i = 0; i < half && i + half < block.size(); ++i) block[i] = join(block[i], block[i + half]);
        }
        results.push_back(block.front());
      }
      values = std::move(results);
    }
    return values.front();
  }

  template <class T>
  void expect_reductions() {
    using A = std::conditional_t<std::is_floating_point_v<T>, double, std::uint64_t>;
    for (std::size_t const count : {1U, 2U, 31U, 32U, 33U, 127U, 4095U, 4096U, 4097U, 9973U, 100'003U}) {
      SCOPED_TRACE(count);
      auto const values = random_numbers<T>(count);
      auto const x = filled(values);
      std::vector<A> wide(count);
      std::ranges::transform(values, wide.begin(), [](T value) { return static_cast<A>(value); });
      auto const sum = reduce(on.default_queue(), x);
      EXPECT_EQ(static_cast<A>(sum), in_order(wide, std::plus<>{})) << "to the last bit";
      if constexpr (!std::is_floating_point_v<T>) {
        EXPECT_EQ(static_cast<A>(sum), std::accumulate(wide.begin(), wide.end(), A{0}));
      }
      EXPECT_EQ(reduce(on.default_queue(), x, Minimum{}), std::ranges::min(values));
      EXPECT_EQ(reduce(on.default_queue(), x, Maximum{}), std::ranges::max(values));
    }
  }

  std::mt19937 random{20261129};
};

TEST_P(Reductions, OfUnsignedIntegers) {
  expect_reductions<std::uint8_t>();
  expect_reductions<std::uint16_t>();
  expect_reductions<std::uint32_t>();
  expect_reductions<std::uint64_t>();
}
TEST_P(Reductions, OfSignedIntegers) {
  expect_reductions<std::int8_t>();
  expect_reductions<std::int16_t>();
  expect_reductions<std::int32_t>();
  expect_reductions<std::int64_t>();
}
TEST_P(Reductions, OfFloatingPoint) {
  if (!on.info().doubles) {
    auto const x = filled(std::vector<float>{1, 2});
    EXPECT_THROW(static_cast<void>(reduce(on.default_queue(), x)), UnsupportedOperation);
    EXPECT_EQ(reduce(on.default_queue(), x, Maximum{}), 2.0F);
    EXPECT_EQ(reduce(on.default_queue(), x, Formula{"x + y", [](float x, float y) { return x + y; }}), 3.0F);
    return;
  }
  expect_reductions<float>();
  expect_reductions<double>();
}
TEST_P(Reductions, OfOtherNamesOfIntegers) {
  auto const longs = filled(std::vector<long long>{-5, 3});
  EXPECT_EQ(reduce(on.default_queue(), longs), -2);
  EXPECT_EQ(reduce(on.default_queue(), longs, Minimum{}), -5);
  auto const letters = filled(std::vector<char>{'b', 'a'});
  EXPECT_EQ(reduce(on.default_queue(), letters, Minimum{}), 'a');
}

TEST_P(Reductions, OfSlicesBeginWhereTheyDo) {
  auto const values = random_numbers<std::int16_t>(20'000);
  auto const x = filled(values);
  for (int i = 0; i < 10; ++i) {
    auto const offset = random() % 10'000, count = 1 + random() % 10'000;
    auto const own = std::span{values}.subspan(offset, count);
    EXPECT_EQ(reduce(on.default_queue(), x.slice(offset, count)),
              std::accumulate(own.begin(), own.end(), std::int64_t{0}));
    EXPECT_EQ(reduce(on.default_queue(), x.slice(offset, count), Maximum{}), std::ranges::max(own));
  }
}

TEST_P(Reductions, OfShapesTakeAllElements) {
  UnifiedBuffer<std::int16_t> x({7, 11, 131}, here());
  auto const values = random_numbers<std::int16_t>(x.size());
  x.copy_from(values);
  EXPECT_EQ(reduce(on.default_queue(), x), std::accumulate(values.begin(), values.end(), std::int64_t{0}));
  EXPECT_EQ(reduce(on.default_queue(), x, Minimum{}), std::ranges::min(values));
}

TEST_P(Reductions, OneNanIsTheExtreme) {
  for (std::size_t const at : {0U, 31U, 32U, 4096U, 9999U}) {
    std::vector<float> values(10'000, 1.0F);
    values[at] = std::numeric_limits<float>::quiet_NaN();
    auto const x = filled(values);
    EXPECT_TRUE(std::isnan(reduce(on.default_queue(), x, Minimum{}))) << at;
    EXPECT_TRUE(std::isnan(reduce(on.default_queue(), x, Maximum{}))) << at;
    if (on.info().doubles) {
      EXPECT_TRUE(std::isnan(reduce(on.default_queue(), x))) << at;
    }
  }
  constexpr auto infinite = std::numeric_limits<float>::infinity();
  auto const x = filled(std::vector<float>{infinite, infinite});
  EXPECT_EQ(reduce(on.default_queue(), x, Minimum{}), infinite);
}

TEST_P(Reductions, OfNothing) {
  auto& queue = on.default_queue();
  UnifiedBuffer<float> const none(0, here());
  EXPECT_EQ(reduce(queue, none), 0.0);
  EXPECT_THROW(static_cast<void>(reduce(queue, none, Minimum{})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(reduce(queue, none, Formula{"x * y", [](float x, float y) { return x * y; }})),
               InvalidArgument);
  auto total = filled(std::vector<double>{7});
  reduce_into(queue, total, none);
  EXPECT_EQ(total.at(0), 0.0);
}

TEST_P(Reductions, ByAFormula) {
  auto& queue = on.default_queue();
  auto const x = filled(std::vector<float>{1, 2, 3, 4, 5});
  EXPECT_EQ(reduce(queue, x, Formula{"x * y", [](float x, float y) { return x * y; }}), 120.0F);
  Formula const bits{"x | y  // of all", [](std::uint32_t x, std::uint32_t y) { return x | y; }};
  auto const y = filled(std::vector<std::uint16_t>{1, 2, 8});
  EXPECT_EQ(reduce(queue, y, bits), 11U);
}

TEST_P(Reductions, OfWhatAFormulaMakes) {
  auto& queue = on.default_queue();
  auto const values = random_numbers<std::int32_t>(30'011);
  auto const x = filled(values);
  auto const y = filled(std::vector<std::int32_t>(values.rbegin(), values.rend()));
  std::int64_t squares = 0, products = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    squares += std::int64_t{values[i] % 1000} * (values[i] % 1000);
    products += std::int64_t{values[i] % 1000} * (values[values.size() - 1 - i] % 1000);
  }
  Formula const square{"(unimem_i64)(x % 1000) * (x % 1000)",
                       [](std::int32_t x) { return std::int64_t{x % 1000} * (x % 1000); }};
  Formula const product{"(unimem_i64)(x % 1000) * (y % 1000)",
                        [](std::int32_t x, std::int32_t y) { return std::int64_t{x % 1000} * (y % 1000); }};
  EXPECT_EQ(transform_reduce(queue, x, Sum{}, square), squares);
  EXPECT_EQ(transform_reduce(queue, x, y, Sum{}, product), products);
  EXPECT_THROW(static_cast<void>(transform_reduce(queue, x, y.slice(0, 5), Sum{}, product)), SizeMismatch);
}

TEST_P(Reductions, AFormulasTextBecomesWhatTheCallableGives) {
  auto const x = filled(std::vector<std::uint8_t>{200, 100, 7});
  Formula const doubled{"2 * x", [](std::uint8_t v) { return static_cast<std::uint8_t>(2 * v); }};
  EXPECT_EQ(transform_reduce(on.default_queue(), x, Sum{}, doubled), 144U + 200U + 14U);
  EXPECT_EQ(transform_reduce(on.default_queue(), x, Maximum{}, doubled), 200U);
  Formula const is_large{"x > 50", [](std::uint8_t v) { return v > 50; }};
  EXPECT_EQ(transform_reduce(on.default_queue(), x, Sum{}, is_large), 2U);
  EXPECT_EQ(transform_reduce(on.default_queue(), x, Minimum{}, is_large), false);
  auto const halves = filled(std::vector<float>{0.5F, 0.0F, -0.25F});
  Formula const is_there{"x", [](float v) -> bool { return v != 0; }};
  EXPECT_EQ(transform_reduce(on.default_queue(), halves, Sum{}, is_there), 2U);
  auto const words = filled(std::vector<std::uint32_t>(1000, 0x104));
  Formula const has_4{"x & 4  // of eight", [](std::uint32_t v) { return (v & 4) != 0; }};
  Formula const has_256{"x & 256", [](std::uint32_t v) { return (v & 256) != 0; }};
  EXPECT_EQ(transform_reduce(on.default_queue(), words, Sum{}, has_4), 1000U);
  EXPECT_EQ(transform_reduce(on.default_queue(), words, Sum{}, has_256), 1000U);
}

TEST_P(Reductions, OfBuffersAtHomeOnTwoDevices) {
  auto const values = random_numbers<std::uint32_t>(9973);
  auto const x = filled(values);
  auto elsewhere = here();
  elsewhere.device = &device("cpu");
  UnifiedBuffer<std::uint32_t> y(values.size(), elsewhere);
  y.copy_from(values);
  Formula const difference{"x - y", [](std::uint32_t a, std::uint32_t b) { return a - b; }};
  EXPECT_EQ(transform_reduce(x, y, Maximum{}, difference), 0U);
  EXPECT_EQ(transform_reduce(on.default_queue(), y, x, Maximum{}, difference), 0U);
}

TEST_P(Reductions, OfOneBufferOnManyThreads) {
  auto const values = random_numbers<std::uint32_t>(20'000);
  auto const x = filled(values);
  auto const expected = std::accumulate(values.begin(), values.end(), std::uint64_t{0});
  std::array<std::uint64_t, 4> sums{};
  std::vector<std::thread> threads;
  for (auto& own : sums) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) own += reduce(x) - expected;
      own += reduce(on.default_queue(), x);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_THAT(sums, ::testing::Each(expected));
}

TEST_P(Reductions, BringBackTheResultAlone) {
  auto const x = filled(random_numbers<std::int32_t>(1 << 20));
  auto const before = on.transfers();
  auto const own = x.statistics();
  static_cast<void>(reduce(x));
  EXPECT_EQ(x.statistics().host_to_device_bytes, own.host_to_device_bytes);
  EXPECT_EQ(x.statistics().device_to_host_bytes, own.device_to_host_bytes);
  auto const after = on.transfers();
  EXPECT_EQ(after.host_to_device_bytes, before.host_to_device_bytes);
  EXPECT_LE(after.device_to_host_bytes - before.device_to_host_bytes, sizeof(std::int64_t));
}

TEST_P(Reductions, WhatTheHostHasIsReducedThere) {
  UnifiedBuffer<float> x(100'000, here());
  x.copy_from(std::vector<float>(x.size(), 0.5F));
  auto const before = on.transfers();
  EXPECT_EQ(reduce(x), 50'000.0);
  EXPECT_EQ(x.statistics().host_to_device_bytes, 0U);
  EXPECT_EQ(on.transfers().host_to_device_bytes, before.host_to_device_bytes);
}

TEST_P(Reductions, MayStayOnTheDevice) {
  auto const values = random_numbers<std::int32_t>(50'000);
  auto const x = filled(values);
  UnifiedBuffer<std::int64_t> sums(3, here());
  sums.fill(-1);
  auto middle = sums.slice(1, 1);
  reduce_into(on.default_queue(), middle, x);
  EXPECT_EQ(sums.to_vector(),
            (std::vector<std::int64_t>{-1, std::accumulate(values.begin(), values.end(), std::int64_t{0}), -1}));
  EXPECT_THROW(reduce_into(on.default_queue(), sums, x), SizeMismatch);
}

TEST_P(Reductions, AreNoPartOfAGraph) {
  auto const x = filled(std::vector<std::uint8_t>(10'000, 1));
  auto& queue = on.default_queue();
  EXPECT_THROW(static_cast<void>(capture(queue, [&] { static_cast<void>(reduce(queue, x)); })), UnsupportedOperation);
  UnifiedBuffer<std::uint8_t> const none(0, here());
  EXPECT_THROW(static_cast<void>(capture(queue, [&] { static_cast<void>(reduce(none)); })), UnsupportedOperation);
  EXPECT_EQ(reduce(queue, x), 10'000U);
}

}  // namespace unimem
