#pragma once

#include <cstddef>

namespace unimem::detail {

/// How large the last cache before memory is that a processor of this machine has, in bytes: what is copied again and
/// again within it never comes from memory. 32 MiB where the system does not say. Thread-safe.
[[nodiscard]] std::size_t last_level_cache_bytes();

}  // namespace unimem::detail
