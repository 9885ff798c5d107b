#pragma once

#include <unimem/core/export.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace unimem {

/// "Everything from the offset on", wherever a count is optional.
inline constexpr std::size_t all = std::numeric_limits<std::size_t>::max();

namespace detail {
UNIMEM_API void throw_negative_extent(std::intmax_t value);
/// Throws InvalidArgument unless `dimension` is one of `rank`.
UNIMEM_API void check_dimension(std::size_t dimension, std::size_t rank);
}  // namespace detail

/// The extents of a buffer, outermost first, row-major. `{}` is a scalar: no extents, one element. An extent may be
/// zero.
class UNIMEM_API Shape {
 public:
  /// A scalar.
  Shape() = default;

  /// One dimension. Throws InvalidArgument for a negative count.
  template <std::integral N>
  Shape(N count) : extents_{checked(count)} {}  // NOLINT(google-explicit-constructor): a count is a shape

  /// Throws InvalidArgument for a negative extent.
  template <std::integral N>
  Shape(std::initializer_list<N> extents) {  // NOLINT(google-explicit-constructor)
    extents_.reserve(extents.size());
    for (auto const extent : extents) extents_.push_back(checked(extent));
  }

  explicit Shape(std::vector<std::size_t> extents) : extents_(std::move(extents)) {}

  [[nodiscard]] std::span<const std::size_t> extents() const noexcept { return extents_; }
  [[nodiscard]] std::size_t rank() const noexcept { return extents_.size(); }

  /// The length of one dimension, 0 being the outermost. Throws InvalidArgument for one the shape has not, as any is of
  /// a scalar.
  [[nodiscard]] std::size_t extent(std::size_t dimension) const {
    detail::check_dimension(dimension, extents_.size());
    return extents_[dimension];
  }

  /// The number of elements; throws InvalidArgument if it does not fit 64 bits.
  [[nodiscard]] std::size_t count() const;

  friend bool operator==(Shape const&, Shape const&) = default;

 private:
  template <std::integral N>
  static std::size_t checked(N value) {
    if constexpr (std::is_signed_v<N>) {
      if (value < 0) detail::throw_negative_extent(value);
    }
    return static_cast<std::size_t>(value);
  }

  std::vector<std::size_t> extents_;
};

}  // namespace unimem
