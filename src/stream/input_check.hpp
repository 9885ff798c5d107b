#pragma once

#include <unimem/file/checksum.hpp>
#include <unimem/stream/checksum_mismatch.hpp>

#include "file/digest.hpp"
#include "stream/manifest.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace unimem::detail {

/// Computes the checksums of what a stream reads while it is read, and compares them with those of a manifest.
///
/// Used by one thread at a time: the one that reads, and its caller when that has ended.
class InputCheck {
 public:
  /// Blocks of `block_bytes` of each file. `expected`: what they are compared with, or null; it outlives this.
  InputCheck(Checksum algorithm, std::uint64_t block_bytes, Manifest const* expected);

  /// The next bytes are those of a file: its name, its size where it is known, and its header, which is no part of the
  /// data. Throws IoError if the manifest has no such file.
  void begin_file(std::string const& name, std::optional<std::uint64_t> bytes, std::span<const std::byte> header);
  void add(std::span<const std::byte> bytes);
  /// The file is at its end. Throws IoError if the manifest has more of it.
  void end_file();

  /// The first `bytes` of the file were added earlier, by another process, and these are their checksums, which are
  /// compared like any.
  void go_on(std::uint64_t bytes, std::vector<std::uint64_t> const& digests);

  /// The blocks of the current file that have become whole since the last call.
  [[nodiscard]] std::vector<std::uint64_t> take_new();

  /// Every file's checksums so far.
  [[nodiscard]] Manifest const& found() const noexcept { return found_; }

  [[nodiscard]] bool has_mismatches() const noexcept { return !mismatches_.empty(); }
  /// Throws ChecksumMismatch with every block that differs, if one does.
  void throw_mismatches() const;

 private:
  /// The checksums of the file's next blocks, of which `file.bytes` bytes have come by now.
  void take_in(std::vector<std::uint64_t> const& digests);
  void compare(std::uint64_t expected, std::uint64_t found, std::size_t chunk, std::uint64_t offset,
               std::uint64_t bytes);

  BlockDigests blocks_;
  Manifest const* expected_;
  Manifest::File const* expected_file_ = nullptr;  ///< of the current file
  Manifest found_;
  std::size_t told_ = 0;  ///< blocks of the current file that `take_new` has given
  std::vector<ChecksumMismatch::Chunk> mismatches_;
};

}  // namespace unimem::detail
