#include "stream/npz.hpp"

#include <unimem/core/error.hpp>

#include "core/quoted.hpp"
#include "stream/byte_source.hpp"
#include "stream/utf8.hpp"
#include "stream/zip_records.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace unimem::detail {
namespace {

constexpr std::uint16_t stored = 0;
constexpr std::uint16_t deflated = 8;
constexpr std::size_t longest_comment = 0xFFFF;
constexpr std::string_view suffix = ".npy";

[[noreturn]] void malformed(ByteSource const& source, std::string_view what) {
  throw IoError(source.name, 0, fmt::format("malformed .npz: {}", what));
}
[[noreturn]] void unsupported(ByteSource const& source, std::string_view name, std::string_view what) {
  throw IoError(source.name, 0, fmt::format("unsupported .npz: {} is {}", quoted(name), what));
}

std::vector<std::byte> bytes_at(ByteSource const& source, std::uint64_t offset, std::uint64_t bytes) {
  std::vector<std::byte> result(static_cast<std::size_t>(bytes));
  source.read(offset, result);
  return result;
}

struct FoundEnd {
  ZipEnd end;
  std::uint64_t begin = 0;  // of the first end record
};

/// Without a comment, as NumPy writes it, the last bytes are the end record; else it is looked for in as many as a
/// comment may take.
FoundEnd find_end(ByteSource const& source) {
  for (auto const most : {zip_end_bytes, zip_end_bytes + longest_comment}) {
    auto const tail_bytes = std::min<std::uint64_t>(most, source.size);
    auto const tail = bytes_at(source, source.size - tail_bytes, tail_bytes);
    if (auto const at = find_zip_end(tail)) {
      return {read_zip_end(std::span{tail}.subspan(*at)), source.size - tail_bytes + *at};
    }
  }
  throw ZipFault{"it does not end as a zip archive does"};
}

FoundEnd find_directory(ByteSource const& source) {
  auto found = find_end(source);
  if (found.begin >= zip64_locator_bytes) {
    auto const locator_begin = found.begin - zip64_locator_bytes;
    auto const large = read_zip64_locator(bytes_at(source, locator_begin, zip64_locator_bytes));
    if (large) {
      if (*large > locator_begin || locator_begin - *large != zip64_end_bytes) {
        throw ZipFault{"its ZIP64 end record is not where it is said to be"};
      }
      found = {read_zip64_end(bytes_at(source, *large, zip64_end_bytes), found.end), *large};
    }
  }
  auto const& [end, begin] = found;
  if (end.offset > begin || begin - end.offset != end.bytes) {
    throw ZipFault{fmt::format("its directory of {} bytes from {} on does not end where its end record begins, at {}",
                               end.bytes, end.offset, begin)};
  }
  if (end.entries > most_npz_members || end.bytes > longest_npz_directory) {
    throw ZipFault{fmt::format("{} members in a directory of {} bytes, of {} in {} at most", end.entries, end.bytes,
                               most_npz_members, longest_npz_directory)};
  }
  if (end.entries > end.bytes / zip_directory_entry_bytes) {
    throw ZipFault{fmt::format("{} members in a directory of {} bytes", end.entries, end.bytes)};
  }
  return found;
}

void check_name(ByteSource const& source, ZipEntry const& entry) {
  if (entry.name.find('\0') != std::string_view::npos) malformed(source, "a member's name has a NUL");
  bool const ascii = std::ranges::all_of(entry.name, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (ascii || (entry.is_utf8() && is_utf8(entry.name))) return;
  malformed(source, fmt::format("the name {} is no UTF-8", quoted(entry.name)));
}

/// An entry of the directory, with where its member ends.
struct Listed {
  ZipEntry entry;
  std::uint64_t header_end = 0;  // of the member's own header: where its bytes begin
};

void check_kind(ByteSource const& source, ZipEntry const& entry) {
  if (entry.is_encrypted()) unsupported(source, entry.name, "encrypted");
  if (entry.method == deflated) {
    unsupported(source, entry.name, "compressed: write it with numpy.savez instead of numpy.savez_compressed");
  }
  if (entry.method != stored) {
    unsupported(source, entry.name, fmt::format("compressed by method {}: numpy.savez writes without", entry.method));
  }
}

/// Reads the header in front of a member's bytes. What it says may be less than the directory does, but nothing else.
std::uint64_t end_of_local_header(ByteSource const& source, ZipEntry const& listed, std::uint64_t directory) {
  auto const left = directory - listed.local_offset;
  auto header = bytes_at(source, listed.local_offset, std::min<std::uint64_t>(zip_local_header_bytes, left));
  auto const whole = zip_local_header_bytes + zip_local_header_rest(header);
  if (whole > left) throw ZipFault{"its header ends beyond where the directory begins"};
  header = bytes_at(source, listed.local_offset, whole);
  auto const own = read_zip_local_header(header);
  bool const no_size = own.is_sized_behind() && own.bytes == 0 && own.packed_bytes == 0;
  bool const same_size = own.bytes == listed.bytes && own.packed_bytes == listed.packed_bytes;
  if (own.name != listed.name || own.method != listed.method || own.is_encrypted() != listed.is_encrypted() ||
      !(no_size || same_size)) {
    throw ZipFault{"its own header and the directory say different things"};
  }
  if (left - whole < listed.packed_bytes) throw ZipFault{"it ends beyond where the directory begins"};
  return listed.local_offset + whole;
}

/// With the member's name, which what is wrong with it is said of.
template <class Function>
auto of_member(ByteSource const& source, std::string_view name, Function function) {
  try {
    return function();
  } catch (ZipFault const& fault) {
    malformed(source, fmt::format("member {}: {}", quoted(name), fault.what));
  }
}

std::vector<Listed> read_directory(ByteSource const& source, std::span<const std::byte> directory, ZipEnd const& end) {
  std::vector<Listed> listed;
  for (std::uint64_t i = 0; i < end.entries; ++i) {
    auto const entry = take_zip_directory_entry(directory);
    check_name(source, entry);
    if (entry.name.ends_with(suffix)) check_kind(source, entry);
    auto const begin = of_member(source, entry.name, [&] {
      if (entry.local_offset >= end.offset) throw ZipFault{"it begins beyond where the directory begins"};
      if (entry.method == stored && !entry.is_encrypted() && entry.packed_bytes != entry.bytes) {
        throw ZipFault{"it is stored, and has two sizes"};
      }
      return end_of_local_header(source, entry, end.offset);
    });
    listed.push_back({entry, begin});
  }
  if (!directory.empty()) throw ZipFault{"its directory has more than the entries that it says"};
  return listed;
}

void check_disjoint(ByteSource const& source, std::vector<Listed>& listed) {
  std::ranges::sort(listed, {}, [](Listed const& one) { return std::pair{one.entry.local_offset, one.header_end}; });
  for (std::size_t i = 1; i < listed.size(); ++i) {
    auto const& before = listed[i - 1];
    if (listed[i].entry.local_offset >= before.header_end + before.entry.packed_bytes) continue;
    malformed(source,
              fmt::format("members {} and {} overlap", quoted(before.entry.name), quoted(listed[i].entry.name)));
  }
}

void check_unique(ByteSource const& source, std::vector<Listed> const& listed) {
  std::vector<std::string_view> names;
  names.reserve(listed.size());
  for (auto const& one : listed) names.push_back(one.entry.name);
  std::ranges::sort(names);
  auto const twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) malformed(source, fmt::format("member {} is there twice", quoted(*twice)));
}

}  // namespace

std::vector<NpzMember> read_npz_members(ByteSource const& source) {
  try {
    auto const [end, begin] = find_directory(source);
    auto const directory = bytes_at(source, end.offset, end.bytes);
    auto listed = read_directory(source, directory, end);
    check_disjoint(source, listed);
    check_unique(source, listed);
    std::vector<NpzMember> members;
    for (auto const& [entry, data] : listed) {
      if (!entry.name.ends_with(suffix)) continue;
      members.push_back({std::string(entry.name.substr(0, entry.name.size() - suffix.size())), data, entry.bytes});
    }
    return members;
  } catch (ZipFault const& fault) {
    malformed(source, fault.what);
  }
}

}  // namespace unimem::detail
