#pragma once

#include <unimem/stream/element_type.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace unimem::detail {

/// What the elements of a tensor in a file are, with what each format calls it.
struct TensorType {
  /// `small_floating`: of one or two bytes, which C++20 has no numbers for.
  enum class Kind : std::uint8_t { boolean, unsigned_integer, signed_integer, floating, small_floating, complex };

  std::string_view name;         ///< NumPy's, or that of the package ml_dtypes
  std::string_view npy;          ///< in a `.npy`, the byte order left out; empty: not in one
  std::string_view safetensors;  ///< in a `.safetensors`; empty: not in one
  std::size_t bytes = 0;
  Kind kind = Kind::unsigned_integer;
  std::optional<ElementType> element{};  ///< what streams know it as; nothing: not at all
};

/// All there are. The table stays, so that pointers into it do.
[[nodiscard]] std::span<const TensorType> tensor_types() noexcept;

/// By what a format calls it; null: unknown there.
[[nodiscard]] TensorType const* type_of_npy(std::string_view code) noexcept;
[[nodiscard]] TensorType const* type_of_safetensors(std::string_view code) noexcept;
[[nodiscard]] TensorType const& type_of_element(ElementType element) noexcept;

/// The bytes that a tensor takes; nothing where 64 bits do not hold them. No bytes where any extent is 0.
[[nodiscard]] std::optional<std::uint64_t> tensor_bytes(TensorType const& type,
                                                        std::span<const std::uint64_t> shape) noexcept;

}  // namespace unimem::detail
