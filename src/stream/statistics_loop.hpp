#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace unimem::detail {

/// The mean of some elements and the sum of the squares of their distances from it: what two strips need to know to be
/// merged.
struct Moments {
  double mean = 0;
  double squares = 0;
};

/// The smallest and the largest of some elements; both NaN if one of them is.
template <class T>
struct Extremes {
  T min{};
  T max{};
};

/// Elements whose sums and sums of squares over a strip fit 64-bit integers: one pass, exact, and in any order.
template <class T>
inline constexpr bool sums_exactly = std::integral<T> && sizeof(T) <= 2;

/// Partial sums that are kept apart, and added at the end in one fixed order. Eight fill two vector registers of
/// doubles, and fixing their number fixes the order of every addition: the source form (statistics_source.hpp) makes
/// the same ones.
inline constexpr std::size_t lanes = 8;

[[nodiscard]] inline double add_lanes(std::array<double, lanes> const& lane) noexcept {
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

template <class T>
[[nodiscard]] Extremes<T> extremes_of(std::span<const T> strip) noexcept {
  // `x != x` lets a NaN in, and no comparison ever lets it out again.
  std::array<T, lanes> least{};
  std::array<T, lanes> most{};
  least.fill(strip.front());
  most.fill(strip.front());
  auto const take = [&](std::size_t lane, T x) {
    least[lane] = x < least[lane] || x != x ? x : least[lane];
    most[lane] = x > most[lane] || x != x ? x : most[lane];
  };
  std::size_t i = 0;
  for (; i + lanes <= strip.size(); i += lanes) {
    for (std::size_t lane = 0; lane < lanes; ++lane) take(lane, strip[i + lane]);
  }
  for (; i < strip.size(); ++i) take(i % lanes, strip[i]);
  for (std::size_t lane = 1; lane < lanes; ++lane) {
    take(0, least[lane]);
    take(0, most[lane]);
  }
  return {least[0], most[0]};
}

/// Mean and squares of a strip that is not empty, at most 2^17 elements.
template <class T>
[[nodiscard]] Moments moments_of(std::span<const T> strip) noexcept {
  auto const count = static_cast<double>(strip.size());
  if constexpr (sums_exactly<T>) {
    std::int64_t sum = 0;
    std::uint64_t squares = 0;
    for (auto const x : strip) {
      sum += x;
      squares += static_cast<std::uint64_t>(std::int64_t{x} * x);
    }
    // n · Σx² − (Σx)² in numbers that wrap: what is left fits, though the products need not.
    auto const spread = strip.size() * squares - static_cast<std::uint64_t>(sum) * static_cast<std::uint64_t>(sum);
    return {static_cast<double>(sum) / count, static_cast<double>(spread) / count};
  } else {
    std::array<double, lanes> sum{};
    std::size_t i = 0;
    for (; i + lanes <= strip.size(); i += lanes) {
      for (std::size_t lane = 0; lane < lanes; ++lane) sum[lane] += static_cast<double>(strip[i + lane]);
    }
    for (; i < strip.size(); ++i) sum[i % lanes] += static_cast<double>(strip[i]);
    auto const mean = add_lanes(sum) / count;

    std::array<double, lanes> rest{};
    std::array<double, lanes> squares{};
    auto const take = [&](std::size_t lane, T x) {
      auto const distance = static_cast<double>(x) - mean;
      rest[lane] += distance;
      squares[lane] += distance * distance;
    };
    for (i = 0; i + lanes <= strip.size(); i += lanes) {
      for (std::size_t lane = 0; lane < lanes; ++lane) take(lane, strip[i + lane]);
    }
    for (; i < strip.size(); ++i) take(i % lanes, strip[i]);
    // The distances add up to the error that rounding left in the mean. With infinities there is nothing to correct.
    auto const missed = add_lanes(rest) / count;
    if (!(missed - missed == 0)) return {mean, add_lanes(squares)};
    return {mean + missed, add_lanes(squares) - missed * missed * count};
  }
}

}  // namespace unimem::detail
