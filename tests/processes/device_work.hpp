#pragma once

#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/queue.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace unimem::testing {

/// The bytes of each operand.
using OperandBytes = std::vector<std::span<std::uint8_t>>;

[[nodiscard]] inline Operand operand(BufferSlice<std::uint8_t> const& slice, Intent intent) {
  return {&slice.core(), slice.range(), intent};
}

/// Work on the queue's device as a launch is it.
inline Event run_on(Queue& queue, std::vector<Operand> const& operands, std::function<void(OperandBytes const&)> work) {
  auto const program = queue.device().compile(
      {"work", "", [work = std::move(work)](Range, std::size_t, std::size_t, std::span<const HostArgument> arguments) {
         OperandBytes bytes;
         for (auto const& one : arguments) bytes.emplace_back(static_cast<std::uint8_t*>(one.data), one.bytes);
         work(bytes);
       }});
  return use_on_device(queue, operands, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
    std::vector<KernelArgument> arguments(operands.size());
    for (std::size_t i = 0; i < operands.size(); ++i) {
      arguments[i].memory = memory[i];
      arguments[i].writes = operands[i].intent != Intent::read;
    }
    return queue.run(program, Range{1}, arguments, needs);
  });
}

/// From the one to the other.
inline Event copy_on(Queue& queue, BufferSlice<std::uint8_t> const& from, BufferSlice<std::uint8_t> const& to) {
  return run_on(queue, {operand(from, Intent::read), operand(to, Intent::write)}, [](OperandBytes const& bytes) {
    for (std::size_t i = 0; i < bytes[0].size(); ++i) bytes[1][i] = bytes[0][i];
  });
}

inline Event fill_on(Queue& queue, BufferSlice<std::uint8_t> const& to, std::uint8_t value) {
  return run_on(queue, {operand(to, Intent::write)}, [value](OperandBytes const& bytes) {
    for (auto& byte : bytes[0]) byte = value;
  });
}

}  // namespace unimem::testing
