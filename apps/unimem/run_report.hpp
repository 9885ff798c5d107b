#pragma once

#include "command_line.hpp"

#include <unimem/stream/stream_file.hpp>

#include <string>

namespace unimem::cli {

/// The result of a run as one JSON object on one line: `kernel device bytes chunks seconds gigabytes_per_second
/// result{…} host_to_device_bytes device_to_host_bytes peak_device_bytes pool{…} retries resumed_bytes files[{path
/// bytes checksums}] checksum checksum_bytes`, the last three's checksums only where they were asked for.
[[nodiscard]] std::string run_json(StreamResult const& result);

/// The same for people, in a few lines, files named as the command does.
[[nodiscard]] std::string run_text(StreamResult const& result, RunCommand const& command);

}  // namespace unimem::cli
