#pragma once

#include <unimem/core/export.hpp>

#include <cstdint>
#include <string_view>

namespace unimem {

/// What the bytes of files are checked by.
enum class Checksum : std::uint8_t {
  xxh3,   ///< XXH3, 64 bits (xxHash 0.8, seed 0): the fastest
  crc32c  ///< CRC-32C (Castagnoli, as iSCSI has it, RFC 3720): what storage and networks check by. Needs ISA-L
          ///< (Debian: libisal2) where the program runs, else it is UnsupportedOperation
};

/// "xxh3", "crc32c".
[[nodiscard]] UNIMEM_API std::string_view to_string(Checksum checksum) noexcept;

/// Reads what `to_string` gives. Throws InvalidArgument.
[[nodiscard]] UNIMEM_API Checksum parse_checksum(std::string_view name);

}  // namespace unimem
