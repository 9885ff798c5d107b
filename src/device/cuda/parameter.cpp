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

std::string_view type_name(Parameter parameter) noexcept {
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

std::optional<std::vector<Parameter>> parameters_in(std::string_view mangled) {
  constexpr std::string_view name = "unimem_signatureIJ";
  auto const at = mangled.find(name);
  if (at == std::string_view::npos) return std::nullopt;
  mangled.remove_prefix(at + name.size());
  constexpr std::size_t in_a_word = 8, most = 64;
  auto const count = take_number(mangled);
  if (!count || *count > most) return std::nullopt;
  std::vector<Parameter> result;
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < *count; ++i, word >>= 8) {
    if (i % in_a_word == 0) {
      auto const next = take_number(mangled);
      if (!next) return std::nullopt;
      word = *next;
    }
    auto const kind = word >> 5 & 7;
    if (kind < 1 || kind > 5) return std::nullopt;
    result.push_back({static_cast<Parameter::Kind>(kind), static_cast<std::uint8_t>(word & 31)});
  }
  return result;
}

}  // namespace unimem::detail::cuda
