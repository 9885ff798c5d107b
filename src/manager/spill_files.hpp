#pragma once

#include "file/file.hpp"
#include "manager/file_memory.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace unimem::detail {

class SpillFiles;

/// A file of its own for what is evicted from the host's memory. It goes with this; it has had no name since it was
/// made, so that nothing stays behind when the process ends, however it does.
///
/// Reads and writes may come from several threads at once.
class SpillFile final : public FileMemory {
 public:
  SpillFile(std::shared_ptr<SpillFiles> files, std::size_t bytes);
  ~SpillFile() override;

  /// When this returns the file system has said that it has the bytes.
  void put(std::size_t offset, std::span<const std::byte> bytes) const override;
  void get(std::size_t offset, std::span<std::byte> target) const override;
  void get_directly(std::size_t offset, std::span<std::byte> target) const override;

 private:
  void read(std::size_t offset, std::span<std::byte> target) const;

  std::shared_ptr<SpillFiles> files_;
  File file_;
};

/// Files in a directory of the user's for what a manager has no memory for.
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

  [[nodiscard]] Counts counts() const noexcept;

 private:
  friend class SpillFile;
  [[nodiscard]] File new_file() const;

  std::string directory_;  ///< absolute: the process may go elsewhere
  std::size_t min_bytes_;
  FileMemory::Moved spilled_, restored_, read_directly_, files_;
};

}  // namespace unimem::detail
