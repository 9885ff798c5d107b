#pragma once

#include <unimem/buffer/detail/buffer_core.hpp>

#include <cstddef>
#include <memory>
#include <vector>

namespace unimem::detail {

/// How much of a buffer is in memory at once on its way to a file, and from there.
inline constexpr std::size_t save_block_bytes = std::size_t{4} << 20;

/// The buffers that `save` and `restore` mean, in the order of their names. Throws InvalidArgument where two have one.
[[nodiscard]] std::vector<std::shared_ptr<BufferCore>> named_once(MemoryManager const& manager);

}  // namespace unimem::detail
