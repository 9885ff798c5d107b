#include "device/opencl/scalar_type.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

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

ValueType value_type(ScalarType const& type) noexcept {
  using Value = ValueType::Number;
  auto const number = type.number == Number::unsigned_integer ? Value::unsigned_integer
                      : type.number == Number::signed_integer ? Value::signed_integer
                                                              : Value::floating;
  return {number, type.bytes};
}

ValueType find_value_type(std::string_view name) noexcept {
  constexpr std::string_view atomic = "atomic_";
  if (name.starts_with(atomic)) name.remove_prefix(atomic.size());
  if (auto const scalar = find_scalar_type(name)) return value_type(*scalar);
  // A vector of three takes the room of four.
  constexpr std::array<std::pair<std::string_view, std::size_t>, 7> endings{
      {{"x2", 2}, {"x4", 4}, {"16", 16}, {"2", 2}, {"3", 4}, {"4", 4}, {"8", 8}}};
  for (auto const& [ending, lanes] : endings) {
    if (!name.ends_with(ending)) continue;
    auto const scalar = find_scalar_type(name.substr(0, name.size() - ending.size()));
    if (!scalar || scalar->name.starts_with("unimem_") != ending.starts_with('x')) continue;
    auto type = value_type(*scalar);
    type.lanes = lanes;
    return type;
  }
  return {};
}

}  // namespace unimem::detail::opencl
