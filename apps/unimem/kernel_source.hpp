#pragma once

#include <filesystem>
#include <string>

namespace unimem::cli {

/// The whole text of a kernel's file; pipes are read too, as in `--source <(generate)`. Throws IoError when it cannot
/// be read, is empty, holds a null byte (no compiler takes one: it is not source), or is larger than 16 MiB.
[[nodiscard]] std::string read_kernel_source(std::filesystem::path const& path);

}  // namespace unimem::cli
