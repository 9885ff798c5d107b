#pragma once

#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/byte_ranges.hpp>

#include "buffer/copy_choice.hpp"

#include <cstddef>
#include <span>

namespace unimem {
class Device;
class MemoryManager;
}  // namespace unimem

namespace unimem::detail {

/// The part of its buffer that an operand works in together with others: their hull.
[[nodiscard]] ByteRange part_of(std::span<const Operand> operands, Operand const& operand, Sharing sharing) noexcept;

/// Bytes that the operation needs of a manager's memory at least, where it needs no byte twice.
[[nodiscard]] std::size_t least_bytes(std::span<const Operand> operands, MemoryManager const& manager) noexcept;

/// Gives back what the operands have on a device, and what is cached there: what is larger than the operation needs was
/// in its way. False, with nothing done, where that would not do either.
[[nodiscard]] bool clear_the_way(Device& device, std::span<const Operand> operands);

}  // namespace unimem::detail
