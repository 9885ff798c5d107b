#include "device/scalar_type.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <ranges>

namespace unimem::detail {

std::optional<std::uint64_t> convert_scalar(std::span<const std::byte> given, ScalarType const& wanted) {
  using Number = ScalarType::Number;
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

std::string as_hex(std::span<const std::byte> bytes) {
  std::string text = "0x";
  for (auto const byte : bytes | std::views::reverse) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

}  // namespace unimem::detail
