#pragma once

#include <cstdint>

namespace unimem {

/// What may become of the file that a buffer is made from, as NumPy's `memmap` has it.
enum class FileMode : std::uint8_t {
  read,           ///< "r": the buffer cannot be written
  copy_on_write,  ///< "c": what is written stays with the buffer, and the file as it is
  read_write,     ///< "r+": what is written goes to the file, by `flush`, for want of memory, or at the buffer's end
};

}  // namespace unimem
