#pragma once

#include <unimem/core/export.hpp>

#include <array>
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
  Shape(N count) : few_{checked(count)}, rank_(1) {}  // NOLINT(google-explicit-constructor): a count is a shape

  /// Throws InvalidArgument for a negative extent.
  template <std::integral N>
  Shape(std::initializer_list<N> extents) {  // NOLINT(google-explicit-constructor)
    auto to = make_room(extents.size()).begin();
    for (auto const extent : extents) *to++ = checked(extent);
  }

  explicit Shape(std::vector<std::size_t> const& extents);

  [[nodiscard]] std::span<const std::size_t> extents() const noexcept {
    return many_.empty() ? std::span(few_).first(rank_) : std::span(many_);
  }
  [[nodiscard]] std::size_t rank() const noexcept { return extents().size(); }

  /// The length of one dimension, 0 being the outermost. Throws InvalidArgument for one the shape has not, as any is of
  /// a scalar.
  [[nodiscard]] std::size_t extent(std::size_t dimension) const {
    detail::check_dimension(dimension, rank());
    return extents()[dimension];
  }

  /// The number of elements; throws InvalidArgument if it does not fit 64 bits.
  [[nodiscard]] std::size_t count() const;

  UNIMEM_API friend bool operator==(Shape const& a, Shape const& b) noexcept;

 private:
  template <std::integral N>
  static std::size_t checked(N value) {
    if constexpr (std::is_signed_v<N>) {
      if (value < 0) detail::throw_negative_extent(value);
    }
    return static_cast<std::size_t>(value);
  }

  /// Where `rank` extents are to be written.
  std::span<std::size_t> make_room(std::size_t rank) {
    if (rank > few_.size()) {
      many_.resize(rank);
      return many_;
    }
    rank_ = rank;
    return std::span(few_).first(rank);
  }

  std::array<std::size_t, 3> few_{};  ///< nearly all shapes have no more, and take no memory
  std::size_t rank_ = 0;              ///< of those
  std::vector<std::size_t> many_;     ///< all of them where there are more
};

}  // namespace unimem
