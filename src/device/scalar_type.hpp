#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace unimem::detail {

/// A scalar type of a kernel language as far as passing one needs to know.
struct ScalarType {
  enum class Number : std::uint8_t { unsigned_integer, signed_integer, floating };

  std::string_view name;
  std::size_t bytes;
  Number number;
};

/// The integer given, as one of type `wanted`: its first `wanted.bytes` bytes are the value. Nothing if it does not
/// fit, or is no integer's size, or `wanted` is none.
///
/// Whether the value given is signed is not known. Made wider, a set top bit is refused where it would have to be
/// guessed, for a signed type; made narrower, it is a sign only if all that is cut off are copies of it.
[[nodiscard]] std::optional<std::uint64_t> convert_scalar(std::span<const std::byte> given, ScalarType const& wanted);

/// A scalar's bytes as errors show them: "0x4000", the highest first.
[[nodiscard]] std::string as_hex(std::span<const std::byte> bytes);

}  // namespace unimem::detail
