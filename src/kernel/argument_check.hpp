#pragma once

#include <unimem/device/program.hpp>
#include <unimem/kernel/kernel.hpp>
#include <unimem/kernel/launch.hpp>

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace unimem::detail {

[[nodiscard]] inline bool is_buffer(LaunchArgument const& argument) noexcept {
  return argument.buffer.operand.buffer != nullptr;
}

/// Holds the arguments of a launch to what the kernel's host form was compiled for: types, intents, sizes, alignment.
/// Throws KernelError naming the argument.
void check_against_host_form(Kernel const& kernel, std::span<const LaunchArgument> arguments);

/// Holds them to what is known of a source kernel's parameters: kind, element or number, whether it may write. Throws
/// KernelError naming argument and parameter. Reads nothing but its arguments, and so runs before anything moves.
void check_against_program(Kernel const& kernel, std::vector<ProgramParameter> const& parameters,
                           std::span<const LaunchArgument> arguments);

/// A scalar's bytes, and how many.
struct ScalarBytes {
  alignas(16) std::array<std::byte, 16> data{};
  std::size_t size = 0;
};

/// The scalar as a parameter takes it: an integer in the parameter's width, everything else as it is. Nothing where it
/// does not fit: a value that the parameter's type does not have, another kind of number, another size.
[[nodiscard]] std::optional<ScalarBytes> scalar_as(LaunchArgument const& scalar, ProgramParameter const& parameter);

}  // namespace unimem::detail
