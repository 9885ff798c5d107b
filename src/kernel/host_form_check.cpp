#include <unimem/core/error.hpp>

#include "core/type_name.hpp"
#include "kernel/argument_check.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <typeinfo>

namespace unimem::detail {
namespace {

std::string spelled(std::type_info const& type) {
  return type_name(type.name());
}

/// Why an operand's intent does not go with the span the host form takes; empty where it does. Writes to what is only
/// read would never reach the other side, and what is to be overwritten was not brought in: left alone, it is garbage.
std::string misfit(Intent intent, KernelParameter const& parameter) {
  if (intent == Intent::read && parameter.is_mutable) {
    return fmt::format(
        "is passed as read, the host form takes std::span<{0}>, which may write: pass readwrite or write, "
        "or take std::span<const {0}>",
        spelled(*parameter.type));
  }
  if (intent == Intent::write && !parameter.is_mutable) {
    return fmt::format("is passed as write, the host form takes std::span<const {}>, which cannot: pass read",
                       spelled(*parameter.type));
  }
  return {};
}

}  // namespace

void check_against_host_form(Kernel const& kernel, std::span<const LaunchArgument> arguments) {
  auto const& parameters = kernel.parameters();
  auto const refuse = [&](std::size_t index, std::string const& why) {
    auto const* const buffer = arguments[index].buffer.operand.buffer;
    auto const name = buffer == nullptr ? std::string_view{} : buffer->name();
    return KernelError(std::string(kernel.name()), name.empty()
                                                       ? fmt::format("argument {} {}", index + 1, why)
                                                       : fmt::format("argument {} ('{}') {}", index + 1, name, why));
  };
  if (arguments.size() != parameters.size()) {
    throw KernelError(std::string(kernel.name()),
                      fmt::format("launched with {} arguments, takes {}", arguments.size(), parameters.size()));
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    auto const& argument = arguments[i];
    auto const& parameter = parameters[i];
    if (is_buffer(argument) != parameter.is_buffer) {
      throw refuse(i, parameter.is_buffer ? "must be a buffer, and is a scalar" : "must be a scalar, and is a buffer");
    }
    if (!parameter.is_buffer) {
      // An int where a float is taken has the right size and the wrong bits.
      if (!detail::same_type(*argument.scalar_type, *parameter.type)) {
        throw refuse(i, fmt::format("is of type {}, the host form takes {}", spelled(*argument.scalar_type),
                                    spelled(*parameter.type)));
      }
      continue;
    }
    auto const range = argument.buffer.operand.range;
    auto const& element = *argument.buffer.element;
    if (!detail::same_type(element, *parameter.type) && element != typeid(std::byte)) {
      throw refuse(
          i, fmt::format("is a buffer of {}, the host form takes {}", spelled(element), spelled(*parameter.type)));
    }
    if (range.size() % parameter.bytes != 0) {
      throw refuse(i, fmt::format("has {} bytes, no multiple of the element's {}", range.size(), parameter.bytes));
    }
    if (range.begin % parameter.alignment != 0) {
      throw refuse(i,
                   fmt::format("starts at byte {}, its elements need alignment {}", range.begin, parameter.alignment));
    }
    if (auto const why = misfit(argument.buffer.operand.intent, parameter); !why.empty()) throw refuse(i, why);
  }
}

}  // namespace unimem::detail
