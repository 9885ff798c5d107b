#pragma once

#include <unimem/core/export.hpp>

#include <string>

namespace unimem::detail {

/// Where the default manager spills if it is made from now on and `UNIMEM_SPILL` names no folder: for programs that are
/// somebody else's, and know a folder of their own. Thread-safe.
UNIMEM_API void spill_by_default_in(std::string directory);

}  // namespace unimem::detail
