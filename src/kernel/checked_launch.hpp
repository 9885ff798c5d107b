#pragma once

#include <unimem/device/device.hpp>
#include <unimem/device/program.hpp>
#include <unimem/kernel/launch.hpp>

#include <memory>
#include <span>
#include <string_view>

namespace unimem::detail {

/// For UNIMEM_CHECK=2: a program that runs `program` on copies of its operands between red zones, and reports what the
/// kernel did outside of its intents; run it over `Range{1}`. Reports operands of which one writes and which overlap in
/// part at once, and returns then what runs `program` as it is.
[[nodiscard]] std::shared_ptr<Program const> checked_program(std::shared_ptr<Program const> const& program,
                                                             Device& device, std::string_view kernel, Range range,
                                                             std::span<const LaunchArgument> arguments);

}  // namespace unimem::detail
