#pragma once

#include <complex>
#include <cstddef>
#include <string_view>
#include <type_traits>

namespace unimem::detail {

/// NumPy's name of a C++ type; empty where it has none: structures, `char` and `std::byte`, which are bytes.
template <class T>
[[nodiscard]] constexpr std::string_view dtype_of() noexcept {
  if constexpr (std::is_same_v<T, bool>) return "bool";
  if constexpr (std::is_same_v<T, std::complex<float>>) return "complex64";
  if constexpr (std::is_same_v<T, std::complex<double>>) return "complex128";
  if constexpr (std::is_floating_point_v<T>) return sizeof(T) == 4 ? "float32" : sizeof(T) == 8 ? "float64" : "";
  if constexpr (!std::is_integral_v<T> || std::is_same_v<T, char>) return {};
  constexpr bool is_signed = std::is_signed_v<T>;
  switch (sizeof(T)) {
    case 1:
      return is_signed ? "int8" : "uint8";
    case 2:
      return is_signed ? "int16" : "uint16";
    case 4:
      return is_signed ? "int32" : "uint32";
    case 8:
      return is_signed ? "int64" : "uint64";
    default:
      return {};
  }
}

}  // namespace unimem::detail
