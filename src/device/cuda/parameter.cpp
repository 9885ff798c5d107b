#include "device/cuda/parameter.hpp"

#include <charconv>

namespace unimem::detail::cuda {
namespace {

/// The next number among the arguments of a mangled template: "Lm42E" is 42 of type unsigned long.
std::optional<std::uint64_t> take_number(std::string_view& mangled) {
  if (!mangled.starts_with("Lm")) return std::nullopt;
  mangled.remove_prefix(2);
  std::uint64_t number = 0;
  auto const [end, error] = std::from_chars(mangled.data(), mangled.data() + mangled.size(), number);
  if (error != std::errc{} || end == mangled.data() + mangled.size() || *end != 'E') return std::nullopt;
  mangled.remove_prefix(static_cast<std::size_t>(end - mangled.data()) + 1);
  return number;
}

}  // namespace

std::string_view type_name(Parameter const& parameter) noexcept {
  constexpr std::string_view integers[2][4] = {{"unimem_u8", "unimem_u16", "unimem_u32", "unimem_u64"},
                                               {"unimem_i8", "unimem_i16", "unimem_i32", "unimem_i64"}};
  auto const by_size = [&](std::string_view const(&names)[4]) -> std::string_view {
    switch (parameter.bytes) {
      case 1:
        return names[0];
      case 2:
        return names[1];
      case 4:
        return names[2];
      case 8:
        return names[3];
      default:
        return {};
    }
  };
  switch (parameter.kind) {
    case Parameter::Kind::unsigned_integer:
      return by_size(integers[0]);
    case Parameter::Kind::signed_integer:
      return by_size(integers[1]);
    case Parameter::Kind::floating:
      return parameter.bytes == 4 ? "unimem_f32" : "unimem_f64";
    case Parameter::Kind::buffer:
    case Parameter::Kind::other:
      break;
  }
  return {};
}

namespace {

ValueType::Number number_of(Parameter::Kind kind) noexcept {
  using Number = ValueType::Number;
  switch (kind) {
    case Parameter::Kind::unsigned_integer:
      return Number::unsigned_integer;
    case Parameter::Kind::signed_integer:
      return Number::signed_integer;
    case Parameter::Kind::floating:
      return Number::floating;
    case Parameter::Kind::buffer:
    case Parameter::Kind::other:
      break;
  }
  return Number::none;
}

Parameter::Kind kind_of(ValueType::Number number) noexcept {
  for (auto const kind :
       {Parameter::Kind::unsigned_integer, Parameter::Kind::signed_integer, Parameter::Kind::floating}) {
    if (number_of(kind) == number) return kind;
  }
  return Parameter::Kind::other;
}

}  // namespace

ValueType value_of(Parameter const& parameter) noexcept {
  bool const is_known = parameter.bytes < Parameter::largest;
  return {number_of(parameter.kind), is_known ? parameter.bytes : 0};
}

std::optional<Parameter> parameter_from(std::uint64_t code) noexcept {
  auto const kind = code & 7, element = code >> 20 & 7, lanes = code >> 55;
  if (kind < 1 || kind > 5) return std::nullopt;
  Parameter result{static_cast<Parameter::Kind>(kind), static_cast<std::size_t>(code >> 3 & 0xFFFF), false, {}};
  if (result.kind != Parameter::Kind::buffer) return code >> 19 == 0 ? std::optional{result} : std::nullopt;
  if (element < 1 || element > 5 || lanes < 1 || lanes > 4) return std::nullopt;
  auto const bytes = static_cast<std::size_t>(code >> 23 & 0xFFFF'FFFF);
  result.is_const = (code >> 19 & 1) != 0;
  result.element = {number_of(static_cast<Parameter::Kind>(element)), bytes < Parameter::largest_element ? bytes : 0,
                    lanes};
  return result;
}

std::uint64_t code_of(Parameter const& parameter) noexcept {
  auto code = static_cast<std::uint64_t>(parameter.kind) | std::uint64_t{parameter.bytes} << 3;
  if (parameter.kind == Parameter::Kind::buffer) {
    code |= std::uint64_t{parameter.is_const} << 19 |
            static_cast<std::uint64_t>(kind_of(parameter.element.number)) << 20 |
            std::uint64_t{parameter.element.bytes} << 23 | std::uint64_t{parameter.element.lanes} << 55;
  }
  return code;
}

std::optional<std::vector<Parameter>> parameters_in(std::string_view mangled) {
  constexpr std::string_view name = "unimem_signatureIJ";
  auto const at = mangled.find(name);
  if (at == std::string_view::npos) return std::nullopt;
  mangled.remove_prefix(at + name.size());
  constexpr std::size_t most = 64;
  std::vector<Parameter> result;
  while (!mangled.starts_with('E')) {
    auto const code = take_number(mangled);
    auto const parameter = code ? parameter_from(*code) : std::nullopt;
    if (!parameter || result.size() == most) return std::nullopt;
    result.push_back(*parameter);
  }
  return result;
}

}  // namespace unimem::detail::cuda
