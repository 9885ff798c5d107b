#pragma once

#include <unimem/core/export.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace unimem {

/// What a buffer's elements are, in one byte, for messages: a C++ type means nothing to another program. The numbers
/// are part of the wire form and never change.
enum class ElementTag : std::uint8_t {
  any = 0,  ///< not said: the receiver decides
  byte = 1,
  boolean = 2,
  i8 = 3,
  u8 = 4,
  i16 = 5,
  u16 = 6,
  i32 = 7,
  u32 = 8,
  i64 = 9,
  u64 = 10,
  f32 = 11,
  f64 = 12,
  other = 255,  ///< a type of the program's own
};

/// The enumerator's name; "unknown" for a value that is none.
[[nodiscard]] UNIMEM_API std::string_view to_string(ElementTag tag) noexcept;

/// The tag of `T`. Integers go by size and sign, so that `long` and `long long` have one tag.
template <class T>
[[nodiscard]] constexpr ElementTag element_tag() noexcept {
  if constexpr (std::is_same_v<T, std::byte>) return ElementTag::byte;
  if constexpr (std::is_same_v<T, bool>) return ElementTag::boolean;
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    constexpr bool is_signed = std::is_signed_v<T>;
    if constexpr (sizeof(T) == 1) return is_signed ? ElementTag::i8 : ElementTag::u8;
    if constexpr (sizeof(T) == 2) return is_signed ? ElementTag::i16 : ElementTag::u16;
    if constexpr (sizeof(T) == 4) return is_signed ? ElementTag::i32 : ElementTag::u32;
    if constexpr (sizeof(T) == 8) return is_signed ? ElementTag::i64 : ElementTag::u64;
  }
  if constexpr (std::is_same_v<T, float>) return ElementTag::f32;
  if constexpr (std::is_same_v<T, double>) return ElementTag::f64;
  return ElementTag::other;
}

}  // namespace unimem
