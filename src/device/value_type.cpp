#include <unimem/device/detail/value_type.hpp>

#include <fmt/format.h>

namespace unimem {

std::string to_string(ValueType type) {
  using Number = ValueType::Number;
  if (!type.is_known()) return "bytes";
  if (type.number == Number::none) return fmt::format("a structure of {} bytes", type.total_bytes());
  auto const* const letter = type.number == Number::unsigned_integer ? "u"
                             : type.number == Number::signed_integer ? "i"
                                                                     : "f";
  auto const name = fmt::format("{}{}", letter, 8 * type.bytes);
  return type.lanes == 1 ? name : fmt::format("{} × {}", name, type.lanes);
}

}  // namespace unimem
