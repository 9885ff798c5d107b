#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace unimem::detail {

class File;

/// Bytes that are read by offset: those of an open file, or in a test of what stands for one.
struct ByteSource {
  std::string name;        ///< for errors
  std::uint64_t size = 0;  ///< as it was when this was made
  /// Fills all of `to`. Throws IoError, also where there are fewer.
  std::function<void(std::uint64_t offset, std::span<std::byte> to)> read;

  /// `file` outlives it.
  [[nodiscard]] static ByteSource of(File const& file);
};

}  // namespace unimem::detail
