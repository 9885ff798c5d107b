#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::testing {

inline std::string little_endian(std::uint64_t number, unsigned bytes) {
  std::string text;
  for (unsigned i = 0; i < bytes; ++i) text += static_cast<char>(number >> (8 * i) & 0xFFU);
  return text;
}

template <class T>
std::string bytes_of(std::vector<T> const& numbers) {
  std::string bytes(numbers.size() * sizeof(T), '\0');
  if (!bytes.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

/// A `.npy` of version 1.0, by hand.
inline std::string npy_file(std::string_view descr, std::string_view shape, std::string_view data) {
  std::string header =
      "{'descr': '" + std::string(descr) + "', 'fortran_order': False, 'shape': " + std::string(shape) + ", }";
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 11, ' ');
  header += '\n';
  return std::string("\x93NUMPY\x01\0", 8) + little_endian(header.size(), 2) + header + std::string(data);
}

/// A `.safetensors`, whatever its header is.
inline std::string safetensors_file(std::string_view json, std::string_view data = {}) {
  return little_endian(json.size(), 8) + std::string(json) + std::string(data);
}

/// A member of an archive, with what may be wrong with it.
struct ZipMember {
  std::string name;
  std::string contents;
  std::uint64_t method = 0;
  std::uint64_t flags = 0;
  bool zip64 = false;            ///< the sizes and the offset stand in extra fields
  std::string local_name{};      ///< empty: the same
  std::uint64_t more_bytes = 0;  ///< that the directory says it has
};

/// What may be wrong with the archive.
struct ZipShape {
  bool zip64 = false;
  std::string comment{};
  std::uint64_t more_entries = 0;  ///< that the end record says there are
  std::uint64_t offset_by = 0;     ///< that the directory is said to be further on
  std::string before_directory{};
};

/// A zip archive by hand. Checksums are 0: nobody looks at them.
inline std::string zip_file(std::vector<ZipMember> const& members, ZipShape const& shape = {}) {
  constexpr std::uint64_t beyond = 0xFFFFFFFF;
  std::string file;
  std::string directory;
  for (auto const& one : members) {
    auto const bytes = one.contents.size() + one.more_bytes;
    auto const size = little_endian(one.zip64 ? beyond : bytes, 4);
    auto const both = little_endian(bytes, 8) + little_endian(bytes, 8);
    auto const offset = file.size();
    auto const& local = one.local_name.empty() ? one.name : one.local_name;
    auto const about = little_endian(one.flags, 2) + little_endian(one.method, 2) + std::string(8, '\0') + size + size;
    auto const local_extra = one.zip64 ? little_endian(1, 2) + little_endian(16, 2) + both : "";
    file += "PK\3\4" + little_endian(45, 2) + about + little_endian(local.size(), 2) +
            little_endian(local_extra.size(), 2) + local + local_extra + one.contents;
    auto const extra = one.zip64 ? little_endian(1, 2) + little_endian(24, 2) + both + little_endian(offset, 8) : "";
    directory += "PK\1\2" + little_endian(45, 2) + little_endian(45, 2) + about + little_endian(one.name.size(), 2) +
                 little_endian(extra.size(), 2) + std::string(10, '\0') +
                 little_endian(one.zip64 ? beyond : offset, 4) + one.name + extra;
  }
  file += shape.before_directory;
  auto const begin = file.size() + shape.offset_by;
  auto const entries = members.size() + shape.more_entries;
  file += directory;
  if (shape.zip64) {
    auto const record = file.size();
    file += "PK\6\6" + little_endian(44, 8) + little_endian(45, 2) + little_endian(45, 2) + std::string(8, '\0') +
            little_endian(entries, 8) + little_endian(entries, 8) + little_endian(directory.size(), 8) +
            little_endian(begin, 8);
    file += "PK\6\7" + little_endian(0, 4) + little_endian(record, 8) + little_endian(1, 4);
  }
  auto const count = little_endian(shape.zip64 ? 0xFFFF : entries, 2);
  file += "PK\5\6" + std::string(4, '\0') + count + count + little_endian(shape.zip64 ? beyond : directory.size(), 4) +
          little_endian(shape.zip64 ? beyond : begin, 4) + little_endian(shape.comment.size(), 2) + shape.comment;
  return file;
}

}  // namespace unimem::testing
