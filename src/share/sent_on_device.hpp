#pragma once

#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/buffer/options.hpp>
#include <unimem/core/byte_ranges.hpp>

#include "core/unique_fd.hpp"

#include <cstddef>
#include <memory>
#include <string_view>

namespace unimem {
class Device;
}

namespace unimem::detail {

/// The device whose own memory has all of those bytes, where the host lacks some, and that was asked to hand memory to
/// other processes; null: there is none, and the bytes go by the host's memory.
[[nodiscard]] Device* sends(BufferCore const& buffer, ByteRange range);

/// A copy of those bytes in memory of the device's, by its descriptor, which alone keeps it. Throws OutOfMemory where
/// the device has no room for it, and what reading the buffer throws.
[[nodiscard]] UniqueFd copy_on(Device& device, BufferCore& buffer, ByteRange range);

/// A buffer with the `bytes` that another process has copied on the hardware of that id, copied once more there, into
/// memory of the buffer's. Throws NotFound where this process does not have that hardware, InvalidArgument for a
/// descriptor of anything else, OutOfMemory.
[[nodiscard]] std::shared_ptr<BufferCore> from_copy_on(std::string_view hardware_id, UniqueFd descriptor,
                                                       std::size_t bytes, BufferOptions&& options);

}  // namespace unimem::detail
