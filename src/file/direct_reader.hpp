#pragma once

#include "file/block_reads.hpp"
#include "file/file.hpp"
#include "file/read_terms.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace unimem::detail {

/// Reads a file at its disk's speed: past the page cache (O_DIRECT), with several requests under way, by io_uring or,
/// where there is none, by a few threads.
///
/// Bytes that other descriptors have written are seen: the system writes them back first. Thread-safe.
class DirectReader {
 public:
  /// Opens the same file once more, whatever its name may stand for by now. Throws UnsupportedOperation where its file
  /// system has no such reads (tmpfs has no disk to read from), IoError where it cannot be opened again.
  [[nodiscard]] static DirectReader open(File const& file);
  /// The same; nothing where it cannot be done, for whatever reason.
  [[nodiscard]] static std::optional<DirectReader> where_possible(File const& file);

  /// The result of a read.
  struct Count {
    std::size_t bytes = 0;
    bool by_ring = false;  ///< io_uring; else by threads
  };

  /// Reads what there is from `offset` on, `to` at most, as `File::read` does: fewer bytes only at the file's end, or
  /// if `terms` said to stop. Throws IoError with the range that failed; what `to` holds is undefined then.
  [[nodiscard]] Count read(std::uint64_t offset, std::span<std::byte> to, ReadTerms const& terms) const;

  [[nodiscard]] DirectAlignment alignment() const noexcept { return alignment_; }

 private:
  DirectReader(File file, DirectAlignment alignment) noexcept : file_(std::move(file)), alignment_(alignment) {}

  File file_;
  DirectAlignment alignment_;
};

}  // namespace unimem::detail
