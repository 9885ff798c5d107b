#include <unimem/core/error.hpp>
#include <unimem/kernel/kernel_source.hpp>

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

namespace unimem {
namespace {

/// Negative numbers are in parentheses: they may stand behind a sign.
std::string in_parentheses(std::string const& text) {
  return text.starts_with('-') ? "(" + text + ")" : text;
}

template <class T>
std::string floating_literal(T value, std::string_view ending) {
  auto text = fmt::format("{}", value);
  if (!std::isfinite(value)) throw InvalidArgument("constant", text, "finite");
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return in_parentheses(text.append(ending));
}

}  // namespace

std::string KernelConstant::text_of(float value) {
  return floating_literal(value, "F");
}

std::string KernelConstant::text_of(double value) {
  return floating_literal(value, "");
}

std::string KernelConstant::text_of(std::int64_t value, bool is_long) {
  auto const* const ending = is_long ? "L" : "";
  // The least number is not the negative of one that its type has.
  auto const least = is_long ? std::numeric_limits<std::int64_t>::min() : std::numeric_limits<std::int32_t>::min();
  if (value == least) return fmt::format("({}{} - 1)", value + 1, ending);
  return in_parentheses(fmt::format("{}{}", value, ending));
}

std::string KernelConstant::text_of(std::uint64_t value, bool is_long, bool is_boolean) {
  return fmt::format("{}{}", value, is_boolean ? "" : is_long ? "UL" : "U");
}

}  // namespace unimem
