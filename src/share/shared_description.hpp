#pragma once

#include <unimem/share/element_tag.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::detail {

/// What a process tells another of a buffer beside the descriptors of its memory.
struct SharedDescription {
  std::string name;    ///< it was published under; empty if under none
  std::string buffer;  ///< the buffer's own name
  std::string element_name;
  std::size_t element_bytes = 1;
  ElementTag tag = ElementTag::any;
  std::vector<std::size_t> shape;
  std::size_t bytes = 0;

  /// As it goes to other processes: at most `Peers::most_bytes`, or InvalidArgument for names that long.
  [[nodiscard]] std::string encode() const;
  /// Throws IoError (EPROTO) where it is none, is another version's, or does not add up. `from`: whose, for errors.
  [[nodiscard]] static SharedDescription decode(std::string_view bytes, std::string const& from);
};

}  // namespace unimem::detail
