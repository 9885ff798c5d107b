#pragma once

#include "stream/safetensors.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::detail {

/// A buffer in a file of `save`.
struct SavedBuffer {
  std::string name;
  std::string element;  ///< as `element_text` has it
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;            ///< in the data, or in the file once it was read
  std::vector<std::uint64_t> digests;  ///< of its blocks
  std::vector<std::uint64_t> shape;
  bool has_bytes = true;  ///< else it had no contents, and the file has no tensor for it
};

/// What a file of `save` says of buffers.
struct SavedState {
  std::vector<SavedBuffer> buffers;                     ///< in the order of their bytes
  bool checked = true;                                  ///< made by `save`: there are checksums
  std::uint64_t block_bytes = std::uint64_t{64} << 20;  ///< what each checksum is of
};

/// What a buffer's elements are, for comparing: a dtype's name, or their size.
[[nodiscard]] std::string element_text(std::string_view dtype, std::size_t bytes);
/// Whether elements in a file may fill a buffer of others: of equal meaning, or a number that C++ has none for in
/// unsigned integers of its size.
[[nodiscard]] bool may_hold(std::string_view buffer_element, std::string_view file_element) noexcept;

/// Prefix and header of the file, of the same length whatever the checksums are. Throws as
/// `format_safetensors_header`.
[[nodiscard]] std::string format_saved_state(SavedState const& state);

/// What such a header says: `header`: all in front of the data, `data_bytes` of which follow. Offsets are the file's.
/// Throws IoError naming `path` for one that is malformed, or whose own checksum is another.
[[nodiscard]] SavedState parse_saved_state(std::string const& header, std::uint64_t data_bytes,
                                           std::string const& path);

}  // namespace unimem::detail
