#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/launch.hpp>

#include "kernel/on_device.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

// Vectors in portable kernels, on every device that compiles them: each operator against the same in C++, lane by lane.

namespace unimem {

class Vectors : public ::testing::TestWithParam<std::string>, protected OnDevice {
 protected:
  Vectors() : OnDevice(GetParam()) {}

  /// What a kernel of `lanes` makes of numbers that differ from lane to lane is what C++ makes of each of them.
  template <class T>
  void expect_operators(std::string const& number, std::size_t lanes) {
    SCOPED_TRACE(fmt::format("{}x{}", number, lanes));
    constexpr bool is_integer = std::is_integral_v<T>;
    auto const source = fmt::format(
        R"text(
      #define vector unimem_{0}x{1}
      #define number unimem_{0}
      UNIMEM_FUNCTION vector twice(vector v) {{ return v + v; }}
      UNIMEM_KERNEL operators(UNIMEM_CONST_BUFFER(vector, a), UNIMEM_CONST_BUFFER(vector, b), UNIMEM_BUFFER(vector, out),
                              number s) {{
        vector x = UNIMEM_DATA(const vector, a)[UNIMEM_ITEM_X], y = UNIMEM_DATA(const vector, b)[UNIMEM_ITEM_X];
        vector r = (x + y) * UNIMEM_VECTOR(vector, 3) - x / y;
        r += x;
        r -= s;
        r *= y + s;
        r /= UNIMEM_VECTOR(vector, {2});
        r = s - twice(r);
        {3}
        r.x += y.y;
        UNIMEM_DATA(vector, out)[UNIMEM_ITEM_X] = -r;
      }})text",
        number, lanes, lanes == 2 ? "2, 3" : "2, 3, 4, 5",
        is_integer ? "r = ((r % y) | (x & (number)5)) ^ s; r |= x; r &= (number)61; r ^= y; r %= (number)7;" : "");
    constexpr std::size_t count = 64;
    std::vector<T> a(count), b(count), expected(count);
    auto const s = static_cast<T>(3);
    for (std::size_t i = 0; i < count; ++i) {
      a[i] = static_cast<T>(i * 5 + 1);
      b[i] = static_cast<T>(i % 9 + 1);
      auto const lane = i % lanes;
      T const x = a[i], y = b[i];
      auto const as = [](auto value) { return static_cast<T>(value); };
      T r = as(as(as(x + y) * as(3)) - as(x / y));
      r = as(r + x);
      r = as(r - s);
      r = as(r * as(y + s));
      r = as(r / as(lane + 2));
      r = as(s - as(r + r));
      if constexpr (is_integer) {
        r = as(as(as(r % y) | as(x & 5)) ^ s);
        r = as(r | x);
        r = as(r & 61);
        r = as(r ^ y);
        r = as(r % 7);
      }
      expected[i] = r;
    }
    for (std::size_t i = 0; i < count; ++i) {
      auto value = expected[i];
      if (i % lanes == 0) value = static_cast<T>(value + b[i + 1]);
      expected[i] = static_cast<T>(-value);
    }
    UnifiedBuffer<T> in(count, here()), also(count, here()), out(count, here());
    in.copy_from(a);
    also.copy_from(b);
    launch(on.default_queue(), Kernel("operators").source(source), Range{count / lanes}, read(in), read(also),
           write(out), s);
    if constexpr (is_integer) {
      EXPECT_EQ(out.to_vector(), expected);
    } else {
      EXPECT_THAT(out.to_vector(), ::testing::Pointwise(::testing::DoubleNear(1e-4), expected))
          << "divisions of f32 are as exact as the driver makes them";
    }
  }

  template <class T>
  void expect_operators_of_both(std::string const& number) {
    expect_operators<T>(number, 2);
    if (sizeof(T) < 8) expect_operators<T>(number, 4);
  }

  template <class... A>
  std::string refusal(Kernel const& kernel, std::size_t items, A const&... arguments) {
    try {
      launch(on.default_queue(), kernel, Range{items}, arguments...).wait();
    } catch (KernelError const& error) {
      return error.reason;
    }
    return "accepted";
  }

  static Kernel axpy() {
    return Kernel("axpy").source(R"(
      UNIMEM_KERNEL axpy(UNIMEM_CONST_BUFFER(unimem_f32x4, x), UNIMEM_BUFFER(unimem_f32x4, y), unimem_f32 a) {
        UNIMEM_DATA(unimem_f32x4, y)[UNIMEM_ITEM_X] += a * UNIMEM_DATA(const unimem_f32x4, x)[UNIMEM_ITEM_X];
      })");
  }
};

TEST_P(Vectors, HaveTheOperatorsOfTheirNumbers) {
  expect_operators_of_both<std::uint8_t>("u8");
  expect_operators_of_both<std::int8_t>("i8");
  expect_operators_of_both<std::uint16_t>("u16");
  expect_operators_of_both<std::int16_t>("i16");
  expect_operators_of_both<std::uint32_t>("u32");
  expect_operators_of_both<std::int32_t>("i32");
  expect_operators_of_both<std::uint64_t>("u64");
  expect_operators_of_both<std::int64_t>("i64");
  expect_operators_of_both<float>("f32");
  if (on.info().doubles) expect_operators_of_both<double>("f64");
}

TEST_P(Vectors, TakeBuffersOfNumbersThatAreWholeVectors) {
  std::vector<float> x(64), y(64), expected(64);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(i);
    y[i] = static_cast<float>(100 * i);
    expected[i] = 2 * x[i] + y[i];
  }
  UnifiedBuffer<float> from(64, here()), to(64, here());
  from.copy_from(x);
  to.copy_from(y);
  launch(on.default_queue(), axpy(), Range{16}, read(from), readwrite(to), 2.0F);
  EXPECT_EQ(to.to_vector(), expected);
  launch(on.default_queue(), axpy(), Range{1}, read(from.slice(4, 4)), readwrite(to.slice(8, 4)), -1.0F);
  for (std::size_t i = 0; i < 4; ++i) expected[8 + i] -= x[4 + i];
  EXPECT_EQ(to.to_vector(), expected);

  auto const before = to.statistics();
  EXPECT_THAT(refusal(axpy(), 1, read(from.slice(1, 4)), readwrite(to), 1.0F),
              ::testing::HasSubstr("starts at byte 4, its elements need alignment 16"));
  EXPECT_THAT(refusal(axpy(), 1, read(from), readwrite(to.slice(0, 5)), 1.0F),
              ::testing::HasSubstr("has 20 bytes, no multiple of the element's 16"));
  UnifiedBuffer<std::int32_t> integers(64, here());
  integers.fill(1);
  EXPECT_THAT(refusal(axpy(), 1, read(integers), readwrite(to), 1.0F),
              ::testing::HasSubstr("the kernel takes f32 × 4"));
  UnifiedBuffer<std::complex<double>> wide(16, here());
  wide.fill({1, 2});
  EXPECT_THAT(refusal(axpy(), 1, read(wide), readwrite(to), 1.0F), ::testing::HasSubstr("the kernel takes f32 × 4"));
  EXPECT_EQ(to.statistics().device_to_host_copies, before.device_to_host_copies);
  EXPECT_EQ(to.to_vector(), expected);

  UnifiedBuffer<std::complex<float>> pairs(32, here());
  pairs.fill({1, 2});
  launch(on.default_queue(), axpy(), Range{16}, read(pairs), readwrite(to), 10.0F);
  for (std::size_t i = 0; i < 64; ++i) expected[i] += i % 2 == 0 ? 10.0F : 20.0F;
  EXPECT_EQ(to.to_vector(), expected);
}

TEST_P(Vectors, AreScalarsThatStructuresFit) {
  struct Four {
    float x, y, z, w;
  };
  struct Two {
    std::uint32_t x, y;
  };
  auto const kernel = Kernel("shift").source(R"(
    UNIMEM_KERNEL shift(UNIMEM_BUFFER(unimem_f32x4, x), unimem_f32x4 by, unimem_u32x2 at) {
      UNIMEM_DATA(unimem_f32x4, x)[UNIMEM_ITEM_X] = by + UNIMEM_VECTOR(unimem_f32x4, at.x, at.y, 0, 1);
    })");
  UnifiedBuffer<float> x(8, here());
  launch(on.default_queue(), kernel, Range{2}, write(x), Four{1, 2, 3, 4}, Two{10, 20});
  EXPECT_THAT(x.to_vector(), ::testing::ElementsAre(11, 22, 3, 5, 11, 22, 3, 5));
  EXPECT_THAT(refusal(kernel, 2, write(x), Two{1, 2}, Two{1, 2}),
              ::testing::HasSubstr("argument 2 for parameter 'by'"));
  EXPECT_THAT(refusal(kernel, 2, write(x), 1.0F, Two{1, 2}), ::testing::HasSubstr("argument 2 for parameter 'by'"));
}

}  // namespace unimem
