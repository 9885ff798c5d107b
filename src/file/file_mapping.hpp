#pragma once

#include <unimem/core/byte_ranges.hpp>

#include "file/bus_guard.hpp"
#include "file/file.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace unimem::detail {

/// A part of a file in memory, to be read: the pages of the system's own cache, of which nothing is copied and which
/// come when they are touched. Their address and their offset in the file are the same within a page.
///
/// Bytes that the file turns out not to have read 0xCD, and `check` says so. Thread-safe.
class FileMapping {
 public:
  /// Of at least one byte. Throws UnsupportedOperation where the file system maps no files, OutOfMemory for want of
  /// addresses, IoError.
  FileMapping(std::shared_ptr<File const> file, std::uint64_t offset, std::size_t bytes);
  FileMapping(FileMapping const&) = delete;
  FileMapping& operator=(FileMapping const&) = delete;
  ~FileMapping();

  /// Of the first byte of the part.
  [[nodiscard]] std::byte const* address() const noexcept { return base_ + skew_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return mapped_ - skew_; }

  /// Throws IoError that names `range` as bytes of the file, if the file has become too short for it, or if some of it
  /// lies between the first and the last byte that were missing when they were touched. One question to the system.
  void check(ByteRange range) const;
  /// The pages of `range` may be brought in ahead of their use. A hint.
  void will_need(ByteRange range) const noexcept;

 private:
  std::shared_ptr<File const> file_;
  std::uint64_t offset_;
  std::size_t skew_;    ///< from the beginning of a page to the first byte
  std::size_t mapped_;  ///< bytes from there on
  std::byte* base_;
  std::optional<GuardedRegion> guard_;
};

}  // namespace unimem::detail
