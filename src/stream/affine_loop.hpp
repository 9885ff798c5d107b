#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace unimem::detail {

/// To the nearest integer, ties to even. Exact for every double, and made of additions, which vectorize where a call of
/// rint does not.
[[nodiscard]] inline double round_to_even(double x) noexcept {
  // From 2^52 on every double is an integer; adding it to a smaller one rounds off what lies behind the point.
  constexpr double integers_from = 4503599627370496.0;
  if (!(x > -integers_from && x < integers_from)) return x;
  return x < 0 ? (x - integers_from) + integers_from : (x + integers_from) - integers_from;
}

/// scale · x + offset in double, two roundings, then one to T: to nearest, integers saturating. A NaN stays NaN;
/// integers cannot make one of finite numbers. The source form (affine.cpp) says the same.
template <class T>
[[nodiscard]] inline T affine_value(T x, double scale, double offset) noexcept {
  double const y = scale * static_cast<double>(x) + offset;
  if constexpr (std::floating_point<T>) {
    return static_cast<T>(y);
  } else {
    // The first double above every T: exact, where the largest T of 64 bits is not.
    constexpr double above =
        static_cast<double>(std::make_unsigned_t<T>{1} << (std::numeric_limits<T>::digits - 1)) * 2;
    constexpr auto lowest = static_cast<double>(std::numeric_limits<T>::min());
    auto const rounded = round_to_even(y);
    if (rounded >= above) return std::numeric_limits<T>::max();
    if (rounded <= lowest) return std::numeric_limits<T>::min();
    return static_cast<T>(rounded);
  }
}

}  // namespace unimem::detail
