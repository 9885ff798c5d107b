#pragma once

#include <unimem/core/error.hpp>
#include <unimem/core/export.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace unimem {

/// Files are not what a manifest says of them, or a saved one not what it says of itself. The whole input was read; the
/// message names every run of chunks that differ, of each file, up to a hundred runs.
class UNIMEM_API ChecksumMismatch : public IoError {
 public:
  /// A chunk that differs.
  struct Chunk {
    /// `index` of a file's header, which is no part of its chunks.
    static constexpr std::size_t header = std::numeric_limits<std::size_t>::max();

    std::string path;          ///< the file
    std::size_t index = 0;     ///< of the chunk in the file, from 0, in chunks of the manifest's size
    std::uint64_t offset = 0;  ///< of its first byte in the file's data, the header of a `.npy` not counted
    std::uint64_t bytes = 0;   ///< how long it is
    std::string expected;      ///< the checksum that the manifest has, hexadecimal
    std::string found;         ///< and the one that was computed
  };

  /// `found`: at least one, in the order of the files. `expected`: which checksums they should have, for the message.
  explicit ChecksumMismatch(std::vector<Chunk> found, std::string_view expected = "the manifest's");
  ~ChecksumMismatch() override;

  std::vector<Chunk> chunks;  ///< all that differ
};

}  // namespace unimem
