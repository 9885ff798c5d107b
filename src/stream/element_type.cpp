#include <unimem/core/error.hpp>
#include <unimem/stream/element_type.hpp>

#include <string>

namespace unimem {

std::size_t element_size(ElementType element) noexcept {
  switch (element) {
    case ElementType::u8:
    case ElementType::i8:
      return 1;
    case ElementType::u16:
    case ElementType::i16:
      return 2;
    case ElementType::u32:
    case ElementType::i32:
    case ElementType::f32:
      return 4;
    case ElementType::u64:
    case ElementType::i64:
    case ElementType::f64:
      return 8;
  }
  return 1;
}

ValueType value_type(ElementType element) noexcept {
  using Number = ValueType::Number;
  switch (element) {
    case ElementType::u8:
    case ElementType::u16:
    case ElementType::u32:
    case ElementType::u64:
      return {Number::unsigned_integer, element_size(element)};
    case ElementType::i8:
    case ElementType::i16:
    case ElementType::i32:
    case ElementType::i64:
      return {Number::signed_integer, element_size(element)};
    case ElementType::f32:
    case ElementType::f64:
      return {Number::floating, element_size(element)};
  }
  return {};
}

std::string_view to_string(ElementType element) noexcept {
  switch (element) {
    case ElementType::u8:
      return "u8";
    case ElementType::i8:
      return "i8";
    case ElementType::u16:
      return "u16";
    case ElementType::i16:
      return "i16";
    case ElementType::u32:
      return "u32";
    case ElementType::i32:
      return "i32";
    case ElementType::u64:
      return "u64";
    case ElementType::i64:
      return "i64";
    case ElementType::f32:
      return "f32";
    case ElementType::f64:
      return "f64";
  }
  return "unknown";
}

ElementType parse_element_type(std::string_view name) {
  std::string names;
  for (auto const element : all_element_types) {
    if (to_string(element) == name) return element;
    if (!names.empty()) names += ", ";
    names += to_string(element);
  }
  throw InvalidArgument("element type", std::string(name), "one of " + names);
}

}  // namespace unimem
