#pragma once

#include <unimem/stream/stream_file.hpp>

#include <filesystem>
#include <string>

namespace unimem::cli {

/// The result of a run as one JSON object on one line: `kernel device bytes chunks seconds gigabytes_per_second
/// result{…} host_to_device_bytes device_to_host_bytes peak_device_bytes pool{…}`.
[[nodiscard]] std::string run_json(StreamResult const& result);

/// The same for people, in a few lines; `file` and `output` (empty: none) as the user wrote them.
[[nodiscard]] std::string run_text(StreamResult const& result, std::filesystem::path const& file,
                                   std::filesystem::path const& output);

}  // namespace unimem::cli
