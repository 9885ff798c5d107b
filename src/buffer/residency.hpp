#pragma once

#include <unimem/device/memory.hpp>
#include <unimem/manager/detail/resident.hpp>

// What memory of a buffer could be had, and at what loss. For the holder of the buffer's lock.

namespace unimem::detail {

struct BufferParts;

[[nodiscard]] Resident::Evictable evictable_from(BufferParts const& parts, MemoryPlace place) noexcept;
/// Whether its host memory at `location` may go to a file now, as far as the buffer is concerned.
[[nodiscard]] bool may_spill(BufferParts const& parts, Location location) noexcept;

}  // namespace unimem::detail
