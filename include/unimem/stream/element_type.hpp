#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/detail/value_type.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace unimem {

/// What the bytes of a file are, element by element: unsigned, signed and floating point, in the machine's byte order.
enum class ElementType : std::uint8_t { u8, i8, u16, i16, u32, i32, u64, i64, f32, f64 };

/// Every element type, in the order of the enumerators.
inline constexpr std::array all_element_types{ElementType::u8,  ElementType::i8,  ElementType::u16, ElementType::i16,
                                              ElementType::u32, ElementType::i32, ElementType::u64, ElementType::i64,
                                              ElementType::f32, ElementType::f64};

/// Bytes of one element: 1, 2, 4 or 8.
[[nodiscard]] UNIMEM_API std::size_t element_size(ElementType element) noexcept;

/// What such an element is to a kernel.
[[nodiscard]] UNIMEM_API ValueType value_type(ElementType element) noexcept;

/// The enumerator's own name: "u8", "f32", …
[[nodiscard]] UNIMEM_API std::string_view to_string(ElementType element) noexcept;

/// The element type with this name. Throws InvalidArgument listing the names for anything else, other cases included.
[[nodiscard]] UNIMEM_API ElementType parse_element_type(std::string_view name);

}  // namespace unimem
