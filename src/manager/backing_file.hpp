#pragma once

#include <unimem/manager/file_access.hpp>
#include <unimem/manager/file_mode.hpp>

#include "file/file.hpp"
#include "file/file_mapping.hpp"
#include "file/file_reader.hpp"
#include "manager/file_memory.hpp"
#include "manager/read_before.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace unimem::detail {

/// What the files of the user's have moved that stand behind a manager's buffers.
struct FileTraffic {
  FileMemory::Moved read, written;
  // Relaxed: numbers alone. Who is asked for a file's memory is found under a lock.
  std::atomic<std::uint64_t> direct{0};   ///< bytes read past the page cache
  std::atomic<std::uint64_t> by_ring{0};  ///< of these, by io_uring
  std::atomic<std::size_t> mapped{0};     ///< bytes that are in memory now as the files' own pages
  std::atomic<bool> any{false};           ///< whether there has been such a buffer: it may give host memory back
};

/// A file of the user's that has a buffer's bytes, from `offset` on: the first replica of a buffer that is made from
/// it. It stays open as long as this.
class BackingFile final : public FileMemory {
 public:
  /// The part of a file that is to be used.
  struct Part {
    std::uint64_t offset = 0;
    std::size_t bytes = 0;
  };

  /// `file` was opened as `mode` needs; several buffers may have parts of one. FileAccess::direct: UnsupportedOperation
  /// where it cannot be read so, IoError where it cannot be opened for that. FileAccess::mapped, in FileMode::read
  /// alone: what FileMapping throws.
  BackingFile(std::shared_ptr<File const> file, FileMode mode, Part part, std::shared_ptr<FileTraffic> traffic,
              FileAccess access = FileAccess::automatic);

  [[nodiscard]] std::string const& name() const noexcept { return file_->name(); }
  [[nodiscard]] FileMode mode() const noexcept { return mode_; }
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }
  /// Whether the host is to look at the file's own pages.
  [[nodiscard]] bool is_mapped() const noexcept { return mapped_; }

  /// All of it in memory, as it stands in the system's cache: counted as mapped as long as it lives. Throws what
  /// FileMapping throws.
  [[nodiscard]] std::shared_ptr<FileMapping const> map() const;

  void put(std::size_t offset, std::span<const std::byte> bytes) const override;
  /// Throws IoError with the range, too, where the file has become shorter.
  void get(std::size_t offset, std::span<std::byte> target) const override;
  void get_directly(std::size_t offset, std::span<std::byte> target) const override { get(offset, target); }
  /// Returns when the file system has said that it has all that was put there. Throws IoError.
  void sync() const;

 private:
  std::shared_ptr<File const> file_;
  FileReader reader_;
  mutable ReadBefore before_;
  FileMode mode_;
  bool mapped_;
  std::uint64_t offset_;
  std::shared_ptr<FileTraffic> traffic_;
};

}  // namespace unimem::detail
