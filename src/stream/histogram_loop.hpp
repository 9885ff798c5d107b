#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace unimem::detail {

/// Counts each byte value of `bytes` (fewer than 2^32 of them) into `counts`, 256 numbers that are overwritten.
void count_bytes(std::span<const std::uint8_t> bytes, std::span<std::uint32_t> counts) noexcept;

}  // namespace unimem::detail
