#include "stream/tensor_type.hpp"

#include <algorithm>
#include <array>

namespace unimem::detail {
namespace {

using Kind = TensorType::Kind;

// Those of the ten element types first, in their order.
constexpr std::array types{
    TensorType{"uint8", "u1", "U8", 1, Kind::unsigned_integer, ElementType::u8},
    TensorType{"int8", "i1", "I8", 1, Kind::signed_integer, ElementType::i8},
    TensorType{"uint16", "u2", "U16", 2, Kind::unsigned_integer, ElementType::u16},
    TensorType{"int16", "i2", "I16", 2, Kind::signed_integer, ElementType::i16},
    TensorType{"uint32", "u4", "U32", 4, Kind::unsigned_integer, ElementType::u32},
    TensorType{"int32", "i4", "I32", 4, Kind::signed_integer, ElementType::i32},
    TensorType{"uint64", "u8", "U64", 8, Kind::unsigned_integer, ElementType::u64},
    TensorType{"int64", "i8", "I64", 8, Kind::signed_integer, ElementType::i64},
    TensorType{"float32", "f4", "F32", 4, Kind::floating, ElementType::f32},
    TensorType{"float64", "f8", "F64", 8, Kind::floating, ElementType::f64},
    TensorType{"bool", "b1", "BOOL", 1, Kind::boolean},
    TensorType{"float16", "f2", "F16", 2, Kind::small_floating},
    TensorType{"complex64", "c8", "C64", 8, Kind::complex},
    TensorType{"complex128", "c16", "", 16, Kind::complex},
    TensorType{"bfloat16", "", "BF16", 2, Kind::small_floating},
    TensorType{"float8_e4m3fn", "", "F8_E4M3", 1, Kind::small_floating},
    TensorType{"float8_e5m2", "", "F8_E5M2", 1, Kind::small_floating},
    TensorType{"float8_e8m0fnu", "", "F8_E8M0", 1, Kind::small_floating},
    TensorType{"float8_e4m3fnuz", "", "F8_E4M3FNUZ", 1, Kind::small_floating},
    TensorType{"float8_e5m2fnuz", "", "F8_E5M2FNUZ", 1, Kind::small_floating},
};

constexpr bool begin_with_the_elements() {
  for (std::size_t i = 0; i < all_element_types.size(); ++i) {
    if (types.at(i).element != all_element_types.at(i)) return false;
  }
  return true;
}
static_assert(begin_with_the_elements(), "type_of_element indexes the table");

TensorType const* called(std::string_view TensorType::* spelling, std::string_view code) noexcept {
  auto const* const found =
      std::ranges::find_if(types, [&](TensorType const& one) { return !code.empty() && one.*spelling == code; });
  return found == types.end() ? nullptr : &*found;
}

}  // namespace

std::span<const TensorType> tensor_types() noexcept {
  return types;
}

TensorType const* type_of_npy(std::string_view code) noexcept {
  return called(&TensorType::npy, code);
}

TensorType const* type_of_safetensors(std::string_view code) noexcept {
  return called(&TensorType::safetensors, code);
}

TensorType const& type_of_element(ElementType element) noexcept {
  return types.at(static_cast<std::size_t>(element));
}

std::optional<std::uint64_t> tensor_bytes(TensorType const& type, std::span<const std::uint64_t> shape) noexcept {
  if (std::ranges::find(shape, 0U) != shape.end()) return 0;
  std::uint64_t bytes = type.bytes;
  for (auto const extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

}  // namespace unimem::detail
