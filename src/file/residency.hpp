#pragma once

#include "file/file.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>

namespace unimem::detail {

/// How much of a range of a file is in the page cache, 0 … 1, by samples where it is large: as the system counts it
/// (cachestat), or where it does not say (before Linux 6.5, or of a file that this process could neither write nor
/// owns), by trying to read a byte at a few places without waiting, which has it bring those pages in. Nothing: it says
/// neither way. Thread-safe.
[[nodiscard]] std::optional<double> resident_share(File const& file, std::uint64_t offset, std::uint64_t bytes);

/// The two ways, one by one.
[[nodiscard]] std::optional<double> counted_share(File const& file, std::uint64_t offset, std::uint64_t bytes);
[[nodiscard]] std::optional<double> probed_share(File const& file, std::uint64_t offset, std::uint64_t bytes);

}  // namespace unimem::detail
