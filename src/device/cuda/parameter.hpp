#pragma once

#include <unimem/device/detail/value_type.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace unimem::detail::cuda {

/// What an argument must be like for one parameter of a kernel.
struct Parameter {
  /// The numbers are the prelude's `unimem_kind`.
  enum class Kind : std::uint8_t { buffer = 1, unsigned_integer = 2, signed_integer = 3, floating = 4, other = 5 };

  Kind kind = Kind::other;
  std::size_t bytes = 0;  ///< at most `largest`, which stands for all that is larger
  bool is_const = false;  ///< of a buffer
  ValueType element{};    ///< of a buffer

  static constexpr std::size_t largest = 0xFFFF;
  static constexpr std::size_t largest_element = 0xFFFF'FFFF;  ///< stands for all that is larger, likewise

  friend bool operator==(Parameter const&, Parameter const&) = default;
};

/// What a number's type is called, e.g. "unimem_u32"; empty for what is no number.
[[nodiscard]] std::string_view type_name(Parameter const& parameter) noexcept;

/// A parameter as the prelude's `unimem_code` has it, in one number; nothing if the number is none of these.
[[nodiscard]] std::optional<Parameter> parameter_from(std::uint64_t code) noexcept;
[[nodiscard]] std::uint64_t code_of(Parameter const& parameter) noexcept;

/// What a scalar of such a parameter is.
[[nodiscard]] ValueType value_of(Parameter const& parameter) noexcept;

/// The parameters of a kernel from the name the compiler gave its `unimem_signature`: they are numbers among that
/// template's arguments, and so in the name. (The driver tells sizes only, and a pointer has that of a 64-bit number.)
/// Nothing if the name is no such name.
[[nodiscard]] std::optional<std::vector<Parameter>> parameters_in(std::string_view mangled);

}  // namespace unimem::detail::cuda
