#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/launch.hpp>

#include "core/nvtx.hpp"
#include "core/type_name.hpp"
#include "kernel/recording.hpp"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

namespace unimem {
namespace {

bool is_buffer(LaunchArgument const& argument) {
  return argument.buffer.operand.buffer != nullptr;
}

std::string type_name(std::type_info const& type) {
  return detail::type_name(type.name());
}

/// Why an operand's intent does not go with the span the host form takes; empty where it does. Writes to what is only
/// read would never reach the other side, and what is to be overwritten was not brought in: left alone, it is garbage.
std::string misfit(Intent intent, KernelParameter const& parameter) {
  if (intent == Intent::read && parameter.is_mutable) {
    return fmt::format(
        "is passed as read, the host form takes std::span<{0}>, which may write: pass readwrite or write, "
        "or take std::span<const {0}>",
        type_name(*parameter.type));
  }
  if (intent == Intent::write && !parameter.is_mutable) {
    return fmt::format("is passed as write, the host form takes std::span<const {}>, which cannot: pass read",
                       type_name(*parameter.type));
  }
  return {};
}

/// The host form was compiled for certain types: other bytes would be read as something they are not.
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
        throw refuse(i, fmt::format("is of type {}, the host form takes {}", type_name(*argument.scalar_type),
                                    type_name(*parameter.type)));
      }
      continue;
    }
    auto const range = argument.buffer.operand.range;
    auto const& element = *argument.buffer.element;
    if (element != typeid(std::byte) && !detail::same_type(element, *parameter.type)) {
      throw refuse(
          i, fmt::format("is a buffer of {}, the host form takes {}", type_name(element), type_name(*parameter.type)));
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

/// Of arguments that were put together by hand one may have been left out.
void check_complete(std::span<const LaunchArgument> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    bool const complete =
        is_buffer(arguments[i]) ? arguments[i].buffer.element != nullptr : arguments[i].scalar_type != nullptr;
    if (!complete) throw InvalidArgument(fmt::format("argument {}", i + 1), "empty", "an operand or a scalar");
  }
}

/// The arguments as a program takes them, `memory` being that of the buffers among them.
std::vector<KernelArgument> kernel_arguments(std::span<const LaunchArgument> arguments,
                                             std::span<const DeviceMemory> memory) {
  std::vector<KernelArgument> list(arguments.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (is_buffer(arguments[i])) {
      list[i].kind = KernelArgument::Kind::memory;
      list[i].memory = memory[next++];
      list[i].writes = arguments[i].buffer.operand.intent != Intent::read;
    } else {
      list[i].kind = KernelArgument::Kind::scalar;
      list[i].scalar = arguments[i].scalar;
      list[i].scalar_bytes = arguments[i].scalar_bytes;
    }
  }
  return list;
}

Queue& queue_for(std::span<const LaunchArgument> arguments) {
  for (auto const& argument : arguments) {
    if (is_buffer(argument)) return argument.buffer.operand.buffer->default_device().default_queue();
  }
  return default_device().default_queue();
}

}  // namespace

Event launch_kernel(Queue* queue, Kernel const& kernel, Range range, std::span<const LaunchArgument> arguments) {
  detail::NvtxRange const shown{[&] { return std::string(kernel.name()); }};
  check_complete(arguments);
  auto& on = queue == nullptr ? queue_for(arguments) : *queue;
  auto& device = on.device();
  static_cast<void>(range.items());  // refuses what does not fit, before anything moves
  if (device.info().runs_host_form && kernel.has_host()) check_against_host_form(kernel, arguments);
  auto const program = kernel.program(device);

  std::vector<Operand> operands;
  operands.reserve(arguments.size());
  for (auto const& argument : arguments) {
    if (is_buffer(argument)) operands.push_back(argument.buffer.operand);
  }
  if (auto* const recording = detail::Recording::of_this_thread()) {
    recording->add(on, operands, [&](std::span<const DeviceMemory> memory) {
      return ProgramRun{program, range, kernel_arguments(arguments, memory)};
    });
    return {};
  }
  return use_on_device(on, operands, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
    return on.run(program, range, kernel_arguments(arguments, memory), needs);
  });
}

}  // namespace unimem
