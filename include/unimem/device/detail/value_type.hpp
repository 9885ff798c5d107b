#pragma once

#include <unimem/core/export.hpp>

#include <complex>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace unimem {

/// What a scalar, or an element of a buffer, is to a kernel language: which kind of number, and how large.
///
/// A vector (`float4`) is so many lanes of one number. A structure is no number, and is known by its size alone.
struct ValueType {
  enum class Number : std::uint8_t { none, unsigned_integer, signed_integer, floating };

  Number number = Number::none;
  std::size_t bytes = 0;  ///< of one lane; 0: not known, or bytes that may mean anything
  std::size_t lanes = 1;  ///< that it takes the room of: four for a vector of three under OpenCL

  [[nodiscard]] constexpr bool is_known() const noexcept { return bytes != 0; }
  [[nodiscard]] constexpr std::size_t total_bytes() const noexcept { return bytes * lanes; }

  friend constexpr bool operator==(ValueType, ValueType) = default;
};

/// "f32", "u8", "f32 × 4", "a structure of 12 bytes", "bytes".
[[nodiscard]] UNIMEM_API std::string to_string(ValueType type);

/// What `T` is. `std::byte` may mean anything; enumerations are the integers beneath them.
template <class T>
[[nodiscard]] constexpr ValueType value_type_of() noexcept {
  using Number = ValueType::Number;
  if constexpr (std::is_same_v<T, std::byte>) {
    return {};
  } else if constexpr (std::is_enum_v<T>) {
    return value_type_of<std::underlying_type_t<T>>();
  } else if constexpr (std::is_integral_v<T>) {
    return {std::is_signed_v<T> ? Number::signed_integer : Number::unsigned_integer, sizeof(T)};
  } else if constexpr (std::is_floating_point_v<T> && sizeof(T) <= 8) {
    return {Number::floating, sizeof(T)};
  } else if constexpr (std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>) {
    return {Number::floating, sizeof(typename T::value_type), 2};
  } else {
    return {Number::none, sizeof(T)};
  }
}

}  // namespace unimem
