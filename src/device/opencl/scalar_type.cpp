#include "device/opencl/scalar_type.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace unimem::detail::opencl {
namespace {

using Number = ScalarType::Number;

/// Typedefs, ours among them, are looked through by some compilers and not by others.
constexpr ScalarType scalar_types[] = {
    {"uchar", 1, Number::unsigned_integer},
    {"unsigned char", 1, Number::unsigned_integer},
    {"unimem_u8", 1, Number::unsigned_integer},
    {"ushort", 2, Number::unsigned_integer},
    {"unsigned short", 2, Number::unsigned_integer},
    {"unimem_u16", 2, Number::unsigned_integer},
    {"uint", 4, Number::unsigned_integer},
    {"unsigned int", 4, Number::unsigned_integer},
    {"unimem_u32", 4, Number::unsigned_integer},
    {"ulong", 8, Number::unsigned_integer},
    {"unsigned long", 8, Number::unsigned_integer},
    {"unimem_u64", 8, Number::unsigned_integer},
    {"char", 1, Number::signed_integer},
    {"unimem_i8", 1, Number::signed_integer},
    {"short", 2, Number::signed_integer},
    {"unimem_i16", 2, Number::signed_integer},
    {"int", 4, Number::signed_integer},
    {"unimem_i32", 4, Number::signed_integer},
    {"long", 8, Number::signed_integer},
    {"unimem_i64", 8, Number::signed_integer},
    {"half", 2, Number::floating},
    {"float", 4, Number::floating},
    {"unimem_f32", 4, Number::floating},
    {"double", 8, Number::floating},
    {"unimem_f64", 8, Number::floating},
};

}  // namespace

std::optional<ScalarType> find_scalar_type(std::string_view name) noexcept {
  auto const* const found = std::ranges::find(scalar_types, name, &ScalarType::name);
  return found == std::end(scalar_types) ? std::nullopt : std::optional{*found};
}

std::optional<std::uint64_t> convert_scalar(std::span<const std::byte> given, ScalarType const& wanted) {
  static_assert(std::endian::native == std::endian::little, "the value's first bytes are its lowest");
  if (wanted.number == Number::floating || !std::has_single_bit(given.size()) || given.size() > 8) return std::nullopt;
  std::uint64_t value = 0;
  std::memcpy(&value, given.data(), given.size());
  bool const is_signed = wanted.number == Number::signed_integer;
  bool const narrows = wanted.bytes < given.size();
  if (!narrows && !is_signed) return value;
  auto const magnitude_bits = 8 * std::min(wanted.bytes, given.size()) - (is_signed ? 1 : 0);
  auto const rest = value >> magnitude_bits;
  if (rest == 0) return value;
  auto const all_ones = (std::numeric_limits<std::uint64_t>::max() >> (64 - 8 * given.size())) >> magnitude_bits;
  return narrows && is_signed && rest == all_ones ? std::optional{value} : std::nullopt;
}

}  // namespace unimem::detail::opencl
