#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace unimem::detail {

struct ByteSource;

/// A file within a `.npz`, stored as it is.
struct NpzMember {
  std::string name;          ///< as in the archive: a key and never a path, whatever is in it
  std::uint64_t offset = 0;  ///< where its bytes begin
  std::uint64_t bytes = 0;

  friend bool operator==(NpzMember const&, NpzMember const&) = default;
};

/// The longest directory of an archive that is read, and the most members: an archive of rubbish shall not take
/// gigabytes.
inline constexpr std::uint64_t longest_npz_directory = 100'000'000;
inline constexpr std::uint64_t most_npz_members = std::uint64_t{1} << 18;

/// The members of a zip archive that NumPy can have written (PKWARE's APPNOTE 6.3.10, ZIP64 included), in the order of
/// their bytes: those whose names end in `.npy`; others are no arrays, and left out. Reads the archive's directory and
/// the members' own headers, which must agree, and nothing of what they hold: their checksums are not looked at.
///
/// Throws IoError naming the archive and what is wrong: malformed, compressed, encrypted, in several volumes, with
/// members that overlap or lie outside the file, with a name that is there twice, has a NUL, or is no UTF-8.
[[nodiscard]] std::vector<NpzMember> read_npz_members(ByteSource const& source);

}  // namespace unimem::detail
