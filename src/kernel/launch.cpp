#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/launch.hpp>

#include "core/check_level.hpp"
#include "core/few.hpp"
#include "core/fork.hpp"
#include "core/nvtx.hpp"
#include "device/worker_threads.hpp"
#include "kernel/argument_check.hpp"
#include "kernel/recording.hpp"

#include <fmt/format.h>

#include <string>

namespace unimem {
namespace {

/// Of arguments that were put together by hand one may have been left out.
void check_complete(std::span<const LaunchArgument> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    bool const complete =
        detail::is_buffer(arguments[i]) ? arguments[i].buffer.element != nullptr : arguments[i].scalar_type != nullptr;
    if (!complete) throw InvalidArgument(fmt::format("argument {}", i + 1), "empty", "an operand or a scalar");
  }
}

/// The arguments as a program takes them, `memory` being that of the buffers among them.
detail::Few<KernelArgument> kernel_arguments(Program const& program, std::span<const LaunchArgument> arguments,
                                             std::span<const DeviceMemory> memory) {
  auto const* const parameters = program.parameters();
  detail::Few<KernelArgument> list(arguments.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (detail::is_buffer(arguments[i])) {
      list[i].kind = KernelArgument::Kind::memory;
      list[i].memory = memory[next++];
      list[i].writes = arguments[i].buffer.operand.intent != Intent::read;
    } else {
      list[i].kind = KernelArgument::Kind::scalar;
      auto const converted = parameters ? detail::scalar_as(arguments[i], (*parameters)[i]) : std::nullopt;
      list[i].scalar = converted ? converted->data : arguments[i].scalar;
      list[i].scalar_bytes = converted ? converted->size : arguments[i].scalar_bytes;
    }
  }
  return list;
}

/// In a forked child, before anything is compiled: it has no queue if its parent had one, and its parent's buffers are
/// read and written on the host alone.
void check_in_child(std::span<const LaunchArgument> arguments) {
  if (detail::is_forked_child()) {
    throw UnsupportedOperation("launching a kernel", "a forked child process",
                               "the threads of queues stayed in the parent");
  }
  for (auto const& argument : arguments) {
    if (detail::is_buffer(argument)) argument.buffer.operand.buffer->require_made_here("launching a kernel");
  }
}

}  // namespace

Queue& queue_for(std::span<const LaunchArgument> arguments) {
  for (auto const& argument : arguments) {
    if (detail::is_buffer(argument)) return argument.buffer.operand.buffer->default_device().default_queue();
  }
  return default_device().default_queue();
}

Event launch_kernel(Queue* queue, Kernel const& kernel, Range range, std::span<const LaunchArgument> arguments) {
  detail::NvtxRange const shown{[&] { return std::string(kernel.name()); }};
  check_complete(arguments);
  if (detail::Fork::depth() != 0) [[unlikely]]
    check_in_child(arguments);
  auto& on = queue == nullptr ? queue_for(arguments) : *queue;
  auto& device = on.device();
  static_cast<void>(range.items());  // refuses what does not fit, before anything moves
  if (!range.has_group()) range.group_size = kernel.group_size();
  if (range.has_group()) range = range.group(range.group_size);
  if (device.info().runs_host_form && kernel.has_host()) detail::check_against_host_form(kernel, arguments);
  auto program = kernel.program(device);
  program->check_range(range);
  if (auto const* const parameters = program->parameters()) {
    detail::check_against_program(kernel, *parameters, arguments);
  }
  detail::CheckedProgram checked;
  if (detail::check_level() > 1) checked = detail::checked_program(program, device, kernel.name(), range, arguments);
  if (checked.program) {
    program = checked.program;
    range = Range{1};  // the checked program runs all of the kernel's range itself
  }

  detail::Few<Operand> operands;
  operands.reserve(arguments.size());
  for (auto const& argument : arguments) {
    if (detail::is_buffer(argument)) operands.push_back(argument.buffer.operand);
  }
  if (auto* const recording = detail::Recording::of_this_thread()) {
    recording->add(on, {operands.data(), operands.size()}, [&](std::span<const DeviceMemory> memory) {
      auto const list = kernel_arguments(*program, arguments, memory);
      return ProgramRun{program, range, {list.begin(), list.end()}};
    });
    return {};
  }
  std::span<const Operand> const used{operands.data(), operands.size()};
  return use_on_device(on, used, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
    if (checked.program) checked.begin();
    auto const list = kernel_arguments(*program, arguments, memory);
    return on.run(program, range, {list.data(), list.size()}, needs);
  });
}

}  // namespace unimem
