#pragma once

#include "file/file.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace unimem::detail {

class SpillFiles;

/// Bytes that are in a file of their own and nowhere else. The file goes with this; it has had no name since it was
/// made, so that nothing stays behind when the process ends, however it does.
class SpilledBytes {
 public:
  SpilledBytes() = default;
  SpilledBytes(std::shared_ptr<SpillFiles> files, File file, std::size_t bytes) noexcept;
  SpilledBytes(SpilledBytes&& other) noexcept = default;
  SpilledBytes& operator=(SpilledBytes&& other) noexcept;
  ~SpilledBytes();

  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }

  /// Reads all of them back into `target`, which is as large. Throws IoError; they are still there then.
  void restore(std::span<std::byte> target) const;
  /// Reads those from `offset` on that fill `target`, for callers without memory for all of them. Throws IoError.
  void read_into(std::span<std::byte> target, std::size_t offset) const;

 private:
  void read(std::span<std::byte> target, std::size_t offset) const;

  std::shared_ptr<SpillFiles> files_;
  File file_;
  std::size_t bytes_ = 0;
};

/// Files in a directory of the user's for what a manager has no memory for.
///
/// Each is written once, by offsets, and never again.
///
/// Thread-safe.
class SpillFiles : public std::enable_shared_from_this<SpillFiles> {
 public:
  struct Counts {
    std::uint64_t spills = 0;
    std::size_t spilled_bytes = 0;
    std::uint64_t restores = 0;
    std::size_t restored_bytes = 0;
    std::uint64_t direct_reads = 0;
    std::size_t direct_read_bytes = 0;
    std::size_t files = 0;  ///< there are now
    std::size_t file_bytes = 0;
  };

  /// Throws IoError unless a file can be made there.
  SpillFiles(std::string const& directory, std::size_t min_bytes);

  /// Copies smaller than this stay in memory.
  [[nodiscard]] std::size_t min_bytes() const noexcept { return min_bytes_; }

  /// Puts a copy of `bytes` in a new file. When this returns the file system has said that it has them. Throws IoError,
  /// and leaves no file.
  [[nodiscard]] SpilledBytes keep(std::span<const std::byte> bytes);

  [[nodiscard]] Counts counts() const noexcept;

 private:
  friend class SpilledBytes;
  [[nodiscard]] File new_file() const;

  std::string directory_;  ///< absolute: the process may go elsewhere
  std::size_t min_bytes_;
  // Counts alone: nothing else is published through them, so relaxed.
  std::atomic<std::uint64_t> spills_{0};
  std::atomic<std::size_t> spilled_bytes_{0};
  std::atomic<std::uint64_t> restores_{0};
  std::atomic<std::size_t> restored_bytes_{0};
  std::atomic<std::uint64_t> direct_reads_{0};
  std::atomic<std::size_t> direct_read_bytes_{0};
  std::atomic<std::size_t> files_{0};
  std::atomic<std::size_t> file_bytes_{0};
};

}  // namespace unimem::detail
