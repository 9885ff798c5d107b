#include <unimem/core/error.hpp>

#include "core/type_name.hpp"
#include "kernel/argument_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <typeinfo>

namespace unimem::detail {
namespace {

using Kind = ProgramParameter::Kind;
using Number = ValueType::Number;

bool is_integer(ValueType type) {
  return type.number == Number::unsigned_integer || type.number == Number::signed_integer;
}

/// Numbers of one kind and size agree, in vectors too, complex numbers where pairs of them fit; structures by their
/// size. A type that C++ has no name for, a half or a vector, is a structure of that size there.
bool agree(ValueType given, ValueType wanted) {
  if (!given.is_known() || !wanted.is_known()) return true;
  if (given.lanes > 1 && wanted.number == Number::none) return given.total_bytes() == wanted.total_bytes();
  if (given.number != Number::none) {
    return given.number == wanted.number && given.bytes == wanted.bytes && wanted.lanes % given.lanes == 0;
  }
  bool const has_no_name = wanted.lanes > 1 || (wanted.number == Number::floating && wanted.bytes == 2);
  return (wanted.number == Number::none || has_no_name) && given.total_bytes() == wanted.total_bytes();
}

/// The integer in `bytes`, as 64 bits: its sign goes on in the upper ones.
std::uint64_t widened(LaunchArgument const& scalar) {
  std::uint64_t value = 0;
  auto const bytes = std::min(scalar.scalar_bytes, sizeof value);
  std::memcpy(&value, scalar.scalar.data(), bytes);
  bool const is_negative =
      scalar.scalar_value.number == Number::signed_integer && bytes != 0 && (value >> (8 * bytes - 1) & 1) != 0;
  if (is_negative && bytes < sizeof value) value |= ~std::uint64_t{0} << 8 * bytes;
  return value;
}

/// Whether an integer of `wanted` has that value.
bool has_value(ValueType wanted, std::uint64_t value, bool from_signed) {
  bool const is_negative = from_signed && (value >> 63) != 0;
  if (wanted.number == Number::unsigned_integer) {
    return !is_negative && (wanted.bytes >= 8 || value >> 8 * wanted.bytes == 0);
  }
  auto const magnitude_bits = 8 * wanted.bytes - 1;
  return is_negative ? ~value >> magnitude_bits == 0 : value >> magnitude_bits == 0;
}

/// "'x' (float*)", or the number of a parameter that has no name.
std::string described(ProgramParameter const& parameter, std::size_t index) {
  auto const name = parameter.name.empty() ? std::to_string(index + 1) : fmt::format("'{}'", parameter.name);
  return parameter.type.empty() ? name : fmt::format("{} ({})", name, parameter.type);
}

std::string described(ValueType type, std::type_info const& name) {
  return name == typeid(std::byte) ? to_string(type) : type_name(name.name());
}

std::string value_of(LaunchArgument const& scalar) {
  if (is_integer(scalar.scalar_value)) {
    auto const value = widened(scalar);
    return scalar.scalar_value.number == Number::signed_integer ? std::to_string(static_cast<std::int64_t>(value))
                                                                : std::to_string(value);
  }
  if (scalar.scalar_value == value_type_of<float>()) {
    float value = 0;
    std::memcpy(&value, scalar.scalar.data(), sizeof value);
    return fmt::format("{}", value);
  }
  if (scalar.scalar_value == value_type_of<double>()) {
    double value = 0;
    std::memcpy(&value, scalar.scalar.data(), sizeof value);
    return fmt::format("{}", value);
  }
  return to_string(scalar.scalar_value);
}

/// Why a buffer does not go with its parameter; empty where it does.
std::string misfit(KernelOperand const& given, ProgramParameter const& parameter) {
  auto const wanted = parameter.value;
  auto const range = given.operand.range;
  if (!agree(given.value, wanted)) {
    return fmt::format("is a buffer of {}, the kernel takes {}", described(given.value, *given.element),
                       to_string(wanted));
  }
  if (wanted.is_known()) {
    if (range.size() % wanted.total_bytes() != 0) {
      return fmt::format("has {} bytes, no multiple of the element's {}", range.size(), wanted.total_bytes());
    }
    // A structure's alignment is not known, and a vector of three is as one number where it is not as four.
    auto const alignment = wanted.number == Number::none               ? 1
                           : std::has_single_bit(wanted.total_bytes()) ? wanted.total_bytes()
                                                                       : wanted.bytes;
    if (range.begin % alignment != 0) {
      return fmt::format("starts at byte {}, its elements need alignment {}", range.begin, alignment);
    }
  }
  // Writes to what is only read would never reach the other side; what is to be overwritten was not brought in.
  if (given.operand.intent == Intent::read && !parameter.is_const) {
    return "is passed as read, and the parameter may be written: pass readwrite or write, or declare it const "
           "(UNIMEM_CONST_BUFFER)";
  }
  if (given.operand.intent == Intent::write && parameter.is_const) {
    return "is passed as write, and the parameter is const: pass read";
  }
  return {};
}

std::string misfit(LaunchArgument const& scalar, ProgramParameter const& parameter) {
  if (scalar_as(scalar, parameter)) return {};
  if (is_integer(scalar.scalar_value) && is_integer(parameter.value) && parameter.value.lanes == 1) {
    return fmt::format("is {}, which {} does not hold", value_of(scalar), to_string(parameter.value));
  }
  return fmt::format("is {} of type {}, the kernel takes {}", value_of(scalar),
                     described(scalar.scalar_value, *scalar.scalar_type), to_string(parameter.value));
}

/// The same for an argument of either kind.
std::string any_misfit(LaunchArgument const& argument, ProgramParameter const& parameter) {
  if (parameter.kind == Kind::buffer) {
    return is_buffer(argument) ? misfit(argument.buffer, parameter) : "is a scalar, the kernel takes a buffer";
  }
  if (parameter.kind == Kind::scalar) {
    return is_buffer(argument) ? "is a buffer, the kernel takes a scalar" : misfit(argument, parameter);
  }
  return {};
}

}  // namespace

std::optional<ScalarBytes> scalar_as(LaunchArgument const& scalar, ProgramParameter const& parameter) {
  auto const given = scalar.scalar_value, wanted = parameter.value;
  ScalarBytes as_it_is{scalar.scalar, scalar.scalar_bytes};
  if (!given.is_known() || parameter.kind != Kind::scalar || !wanted.is_known()) return as_it_is;
  if (is_integer(wanted) && wanted.lanes == 1) {
    auto const value = widened(scalar);
    if (!is_integer(given) || !has_value(wanted, value, given.number == Number::signed_integer)) return std::nullopt;
    ScalarBytes converted{{}, wanted.bytes};
    std::memcpy(converted.data.data(), &value, wanted.bytes);
    return converted;
  }
  bool const fits = agree(given, wanted) && given.total_bytes() == wanted.total_bytes();
  return fits ? std::optional{as_it_is} : std::nullopt;
}

void check_against_program(Kernel const& kernel, std::vector<ProgramParameter> const& parameters,
                           std::span<const LaunchArgument> arguments) {
  auto const refuse = [&](std::string const& why) { throw KernelError(std::string(kernel.name()), why); };
  if (arguments.size() != parameters.size()) {
    refuse(fmt::format("launched with {} arguments, takes {}", arguments.size(), parameters.size()));
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    auto const& parameter = parameters[i];
    if (parameter.kind == Kind::other) {
      refuse(fmt::format("parameter {} takes what no argument of a launch can stand for; with_native can give it",
                         described(parameter, i)));
    }
    auto const why = any_misfit(arguments[i], parameter);
    if (why.empty()) continue;
    auto const* const buffer = arguments[i].buffer.operand.buffer;
    auto const name = buffer == nullptr || buffer->name().empty() ? "" : fmt::format(" ('{}')", buffer->name());
    refuse(fmt::format("argument {}{} for parameter {} {}", i + 1, name, described(parameter, i), why));
  }
}

}  // namespace unimem::detail
