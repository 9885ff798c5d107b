#pragma once

#include <optional>
#include <string>

namespace unimem::detail::opencl {

/// Why PoCL cannot write compiled kernels to its cache, or nothing if it can. PoCL dies of a segmentation fault when it
/// builds its first kernel without a place to put it, long after a probe of the driver would have noticed.
///
/// Looks where PoCL 3 does (lib/CL/pocl_cache.c): `POCL_CACHE_DIR`, else pocl/kcache under `XDG_CACHE_HOME`, under
/// .cache in `HOME`, under /tmp. Creates the directory as PoCL would.
[[nodiscard]] std::optional<std::string> pocl_cache_problem();

}  // namespace unimem::detail::opencl
