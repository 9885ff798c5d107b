#pragma once

#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/byte_ranges.hpp>

#include "buffer/copy_choice.hpp"

#include <cstddef>
#include <span>

namespace unimem {
class Device;
class OutOfMemory;
}  // namespace unimem

namespace unimem::detail {

/// The part of its buffer that an operand works in together with others: the hull of those that overlap, where the
/// buffer is written, where one lies in the other, or where there is room for no byte twice.
[[nodiscard]] ByteRange part_of(std::span<const Operand> operands, Operand const& operand, Room room) noexcept;

/// The memory for it of which no byte is unused: the part, from where the device's alignment lets it begin.
[[nodiscard]] ByteRange least_window(Device const& device, BufferCore const& buffer, ByteRange part) noexcept;

/// Whether the least that they need, of several, is no more than limit, leases and what others hold may leave.
[[nodiscard]] bool least_may_fit(Device& device, std::span<const Operand> operands, OutOfMemory const& refused);

/// Gives back what the operands have on a device, for which memory was refused: the blocks are larger, perhaps, than
/// what is in them. Throws that OutOfMemory with another reason where a file has no room for it.
void clear_the_way(Device& device, std::span<const Operand> operands, OutOfMemory const& refused);

}  // namespace unimem::detail
