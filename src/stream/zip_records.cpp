#include "stream/zip_records.hpp"

#include <fmt/format.h>

#include <array>

namespace unimem::detail {
namespace {

constexpr std::uint32_t end_signature = 0x06054b50;
constexpr std::uint32_t zip64_end_signature = 0x06064b50;
constexpr std::uint32_t zip64_locator_signature = 0x07064b50;
constexpr std::uint32_t directory_entry_signature = 0x02014b50;
constexpr std::uint32_t local_header_signature = 0x04034b50;

/// "It does not fit: look into the ZIP64 part."
constexpr std::uint32_t beyond_16_bits = 0xFFFF;
constexpr std::uint32_t beyond_32_bits = 0xFFFFFFFF;

/// Little-endian, of up to 8 bytes. The caller has seen to it that they are there.
std::uint64_t number_at(std::span<const std::byte> data, std::size_t offset, std::size_t bytes) {
  std::uint64_t number = 0;
  for (std::size_t i = bytes; i > 0; --i) number = number << 8U | std::to_integer<std::uint64_t>(data[offset + i - 1]);
  return number;
}
std::uint16_t u16_at(std::span<const std::byte> data, std::size_t offset) {
  return static_cast<std::uint16_t>(number_at(data, offset, 2));
}
std::uint32_t u32_at(std::span<const std::byte> data, std::size_t offset) {
  return static_cast<std::uint32_t>(number_at(data, offset, 4));
}
std::uint64_t u64_at(std::span<const std::byte> data, std::size_t offset) {
  return number_at(data, offset, 8);
}

bool begins_with(std::span<const std::byte> data, std::uint32_t signature) {
  return data.size() >= 4 && u32_at(data, 0) == signature;
}

std::string_view text_of(std::span<const std::byte> data) {
  return {reinterpret_cast<char const*>(data.data()), data.size()};
}

/// Reads what of `numbers` is beyond 32 bits from the ZIP64 part of the extra fields, where they stand in this order.
void read_zip64_extra(std::span<const std::byte> extra, std::span<std::uint64_t* const> numbers) {
  bool wanted = false;
  for (auto const* const number : numbers) wanted |= *number == beyond_32_bits;
  bool found = false;
  while (!extra.empty()) {
    if (extra.size() < 4 || extra.size() - 4 < u16_at(extra, 2)) {
      // Some writers align data with zeros that are no field.
      if (text_of(extra).find_first_not_of('\0') == std::string_view::npos) break;
      throw ZipFault{"an extra field ends beyond its member's"};
    }
    auto field = extra.subspan(4, u16_at(extra, 2));
    if (u16_at(extra, 0) == 1 && wanted) {
      if (found) throw ZipFault{"a ZIP64 field is there twice"};
      found = true;
      for (auto* const number : numbers) {
        if (*number != beyond_32_bits) continue;
        if (field.size() < 8) throw ZipFault{"a ZIP64 field lacks a number"};
        *number = u64_at(field, 0);
        field = field.subspan(8);
      }
    }
    extra = extra.subspan(4 + std::size_t{u16_at(extra, 2)});
  }
  if (wanted && !found) throw ZipFault{"a ZIP64 field is missing"};
}

void check_volumes(std::uint64_t here, std::uint64_t directory, std::uint64_t entries_here, std::uint64_t entries) {
  if (here != 0 || directory != 0 || entries_here != entries) throw ZipFault{"it is one of several volumes"};
}

}  // namespace

std::optional<std::size_t> find_zip_end(std::span<const std::byte> tail) noexcept {
  if (tail.size() < zip_end_bytes) return std::nullopt;
  for (auto at = tail.size() - zip_end_bytes + 1; at > 0; --at) {
    auto const record = tail.subspan(at - 1);
    if (begins_with(record, end_signature) && u16_at(record, 20) == record.size() - zip_end_bytes) return at - 1;
  }
  return std::nullopt;
}

ZipEnd read_zip_end(std::span<const std::byte> record) {
  ZipEnd const end{u16_at(record, 10), u32_at(record, 16), u32_at(record, 12)};
  auto const without = [](std::uint64_t number) { return number == beyond_16_bits ? 0 : number; };
  check_volumes(without(u16_at(record, 4)), without(u16_at(record, 6)), u16_at(record, 8), end.entries);
  return end;
}

std::optional<std::uint64_t> read_zip64_locator(std::span<const std::byte> locator) {
  if (!begins_with(locator, zip64_locator_signature)) return std::nullopt;
  if (u32_at(locator, 4) != 0 || u32_at(locator, 16) > 1) throw ZipFault{"it is one of several volumes"};
  return u64_at(locator, 8);
}

ZipEnd read_zip64_end(std::span<const std::byte> record, ZipEnd const& end) {
  if (!begins_with(record, zip64_end_signature)) throw ZipFault{"its ZIP64 end record is not where it is said to be"};
  ZipEnd const large{u64_at(record, 32), u64_at(record, 48), u64_at(record, 40)};
  check_volumes(u32_at(record, 16), u32_at(record, 20), u64_at(record, 24), large.entries);
  auto const agree = [](std::uint64_t small, std::uint64_t is, std::uint32_t beyond) {
    return small == is || small == beyond;
  };
  if (!agree(end.entries, large.entries, beyond_16_bits) || !agree(end.offset, large.offset, beyond_32_bits) ||
      !agree(end.bytes, large.bytes, beyond_32_bits)) {
    throw ZipFault{"its two end records say different things"};
  }
  return large;
}

ZipEntry take_zip_directory_entry(std::span<const std::byte>& rest) {
  if (rest.size() < zip_directory_entry_bytes || !begins_with(rest, directory_entry_signature)) {
    throw ZipFault{"its directory has fewer entries than it says"};
  }
  auto const name_bytes = std::size_t{u16_at(rest, 28)};
  auto const extra_bytes = std::size_t{u16_at(rest, 30)};
  auto const whole = zip_directory_entry_bytes + name_bytes + extra_bytes + std::size_t{u16_at(rest, 32)};
  if (rest.size() < whole) throw ZipFault{"an entry ends beyond its directory"};
  if (u16_at(rest, 34) != 0) throw ZipFault{"it is one of several volumes"};
  ZipEntry entry{.flags = u16_at(rest, 8),
                 .method = u16_at(rest, 10),
                 .packed_bytes = u32_at(rest, 20),
                 .bytes = u32_at(rest, 24),
                 .local_offset = u32_at(rest, 42),
                 .name = text_of(rest.subspan(zip_directory_entry_bytes, name_bytes))};
  read_zip64_extra(rest.subspan(zip_directory_entry_bytes + name_bytes, extra_bytes),
                   std::array{&entry.bytes, &entry.packed_bytes, &entry.local_offset});
  rest = rest.subspan(whole);
  return entry;
}

std::size_t zip_local_header_rest(std::span<const std::byte> fixed) {
  if (fixed.size() < zip_local_header_bytes || !begins_with(fixed, local_header_signature)) {
    throw ZipFault{"it does not begin where the directory says"};
  }
  return std::size_t{u16_at(fixed, 26)} + u16_at(fixed, 28);
}

ZipEntry read_zip_local_header(std::span<const std::byte> header) {
  auto const rest = zip_local_header_rest(header);
  if (header.size() != zip_local_header_bytes + rest) throw ZipFault{"its header ends beyond the file"};
  auto const name_bytes = std::size_t{u16_at(header, 26)};
  ZipEntry entry{.flags = u16_at(header, 6),
                 .method = u16_at(header, 8),
                 .packed_bytes = u32_at(header, 18),
                 .bytes = u32_at(header, 22),
                 .name = text_of(header.subspan(zip_local_header_bytes, name_bytes))};
  read_zip64_extra(header.subspan(zip_local_header_bytes + name_bytes), std::array{&entry.bytes, &entry.packed_bytes});
  return entry;
}

}  // namespace unimem::detail
