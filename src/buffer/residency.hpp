#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/memory.hpp>
#include <unimem/manager/detail/resident.hpp>

#include "coherence/coherence.hpp"

#include <optional>
#include <span>

// What memory of a buffer could be had, and at what loss. For the holder of the buffer's lock.

namespace unimem::detail {

struct BufferParts;

/// Beside what an operation `used` works in: the copies that have one of those parts.
[[nodiscard]] Resident::Evictable evictable_from(BufferParts const& parts, MemoryPlace place,
                                                 std::span<const ByteRange> used) noexcept;
/// Which copy on the device would be given first of these.
[[nodiscard]] std::optional<Place> first_to_evict(BufferParts const& parts, Device& device,
                                                  std::span<const ByteRange> used) noexcept;
/// The part of its host memory that would be given first of those that it comes in, by number; none if none can go.
[[nodiscard]] std::optional<std::size_t> first_part_to_evict(BufferParts const& parts,
                                                             std::span<const ByteRange> used) noexcept;
/// Whether a part of its host memory may go: what only its memory has of it, if anything, can be saved.
[[nodiscard]] bool part_may_go(BufferParts const& parts, std::size_t cell) noexcept;
/// Whether bytes that only the host has can be saved for its memory to go in parts.
[[nodiscard]] bool may_save_parts(BufferParts const& parts) noexcept;
/// Whether its host memory at `location` may go to a file now, as far as the buffer is concerned.
[[nodiscard]] bool may_spill(BufferParts const& parts, Location location) noexcept;

}  // namespace unimem::detail
