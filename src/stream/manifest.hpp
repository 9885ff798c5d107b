#pragma once

#include <unimem/file/checksum.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::detail {

/// The checksums of files, chunk by chunk.
///
/// As JSON: `{"format": "unimem manifest", "version": 1, "checksum": "xxh3", "chunk_bytes": N, "files": [{"name": …,
/// "name_bytes": "…", "bytes": N, "header": "…", "chunks": ["…", …]}]}`, checksums hexadecimal, `header` only for files
/// that have one. A name that is no UTF-8 stands in `name_bytes`, hexadecimal, and in `name` to be looked at: what is
/// none there is U+FFFD.
struct Manifest {
  struct File {
    std::string name;                     ///< the path that it was read by
    std::uint64_t bytes = 0;              ///< of data
    std::optional<std::uint64_t> header;  ///< of the bytes before the data that say what it is
    std::vector<std::uint64_t> chunks;    ///< of `chunk_bytes` each, the last may be shorter

    friend bool operator==(File const&, File const&) = default;
  };

  Checksum checksum = Checksum::xxh3;
  std::uint64_t chunk_bytes = 0;  ///< at least 1
  std::vector<File> files;

  /// The one of that path; else the one whose file and folders above it are called so up to the highest, since what
  /// holds them is moved. Null: none has that file name, or several agree as far.
  [[nodiscard]] File const* find(std::string const& path) const;
  /// Whether any has that file name, in whatever folder.
  [[nodiscard]] bool has_name_of(std::string const& path) const;

  friend bool operator==(Manifest const&, Manifest const&) = default;
};

/// What is in a manifest that is called `path`. Throws IoError, naming that, for what is none.
[[nodiscard]] Manifest parse_manifest(std::string_view text, std::string const& path);
/// Throws IoError: missing, larger than 256 MiB, no such JSON, or lists of checksums that do not fit the sizes.
[[nodiscard]] Manifest read_manifest(std::filesystem::path const& path);

[[nodiscard]] std::string to_json(Manifest const& manifest);

}  // namespace unimem::detail
