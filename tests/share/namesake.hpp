#pragma once

#include <unimem/share/buffer_registry.hpp>

namespace unimem::testing {

/// The id of a buffer of four `Pixel`s, a type of that source's anonymous namespace.
[[nodiscard]] BufferId publish_namesake(BufferRegistry& shared, BufferOptions options);

/// Whether that source can open it.
[[nodiscard]] bool opens_namesake(BufferRegistry& shared, BufferId id);

}  // namespace unimem::testing
