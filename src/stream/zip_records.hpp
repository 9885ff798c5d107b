#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace unimem::detail {

/// What the end of a zip archive says of its directory: the record that is called "end of central directory", or the
/// ZIP64 one where it is that.
struct ZipEnd {
  std::uint64_t entries = 0;
  std::uint64_t offset = 0;  ///< of the directory
  std::uint64_t bytes = 0;   ///< of it
};

/// What a member says of itself: in the directory, or in front of its bytes.
struct ZipEntry {
  std::uint16_t flags = 0;
  std::uint16_t method = 0;
  std::uint64_t packed_bytes = 0;
  std::uint64_t bytes = 0;
  std::uint64_t local_offset = 0;  ///< of its own header; from the directory alone
  std::string_view name{};

  [[nodiscard]] bool is_encrypted() const noexcept { return (flags & 0x2041U) != 0; }
  [[nodiscard]] bool is_utf8() const noexcept { return (flags & 0x0800U) != 0; }
  /// Its own header was written before its size was known.
  [[nodiscard]] bool is_sized_behind() const noexcept { return (flags & 0x0008U) != 0; }
};

inline constexpr std::size_t zip_end_bytes = 22;
inline constexpr std::size_t zip64_end_bytes = 56;
inline constexpr std::size_t zip64_locator_bytes = 20;
inline constexpr std::size_t zip_directory_entry_bytes = 46;  ///< without what varies
inline constexpr std::size_t zip_local_header_bytes = 30;     ///< likewise

/// What is wrong with a record is thrown as this, without the file's name; never more than a line.
struct ZipFault {
  std::string what;
};

/// Where in the last bytes of a file its end record begins, which a comment may follow to the file's end; nothing if
/// there is none.
[[nodiscard]] std::optional<std::size_t> find_zip_end(std::span<const std::byte> tail) noexcept;

/// What the end record says. Of an archive in several volumes throws ZipFault.
[[nodiscard]] ZipEnd read_zip_end(std::span<const std::byte> record);

/// Where the ZIP64 end record is, by the locator that stands in front of the end record; nothing if these are none.
[[nodiscard]] std::optional<std::uint64_t> read_zip64_locator(std::span<const std::byte> locator);

/// What the ZIP64 end record says, which must not contradict the other.
[[nodiscard]] ZipEnd read_zip64_end(std::span<const std::byte> record, ZipEnd const& end);

/// Takes an entry off the front of the directory. Throws ZipFault.
[[nodiscard]] ZipEntry take_zip_directory_entry(std::span<const std::byte>& rest);

/// How many bytes of name and extra fields follow the fixed part of a member's own header. Throws ZipFault.
[[nodiscard]] std::size_t zip_local_header_rest(std::span<const std::byte> fixed);

/// The whole of it. Throws ZipFault.
[[nodiscard]] ZipEntry read_zip_local_header(std::span<const std::byte> header);

}  // namespace unimem::detail
