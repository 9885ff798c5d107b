#pragma once

#include <unimem/manager/file_mode.hpp>

#include "file/file.hpp"
#include "stream/tensor_directory.hpp"

#include <sys/stat.h>
#include <sys/types.h>

#include <ctime>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

namespace unimem::detail {

/// A file whose tensors were looked up, open as long as they may be wanted: what is read of them is of that very file,
/// whatever has its name by then.
///
/// Thread-safe.
class TensorFile {
 public:
  /// Throws IoError: missing, unreadable, not a regular file.
  explicit TensorFile(std::filesystem::path const& path);

  /// What is in it now. Throws as `read_tensor_directory` does.
  [[nodiscard]] TensorDirectory read() const;

  /// The file, open for `mode`. Throws IoError if it has changed since it was opened so that the tensor is not where
  /// and what `entry` says: where its size or the time of its last change is another, its directory is read again. For
  /// FileMode::read_write the file is opened once more by its name; IoError if that is another file by then.
  [[nodiscard]] std::shared_ptr<File const> open(std::string const& name, TensorEntry const& entry, FileMode mode);

 private:
  /// What changes when a file is written to.
  struct Stamp {
    ::off_t size = 0;
    ::time_t seconds = 0;
    long nanoseconds = 0;

    friend bool operator==(Stamp const&, Stamp const&) = default;
  };
  [[nodiscard]] Stamp stamp() const;
  /// With the lock held.
  [[nodiscard]] std::shared_ptr<File const> open_for_writing() const;

  std::filesystem::path path_;
  std::shared_ptr<File const> file_;
  std::mutex mutex_;
  std::shared_ptr<File const> writable_;
  Stamp stamp_;  ///< before the directory was read that the tensors are of
};

}  // namespace unimem::detail
