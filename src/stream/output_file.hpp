#pragma once

#include <unimem/stream/element_type.hpp>

#include "core/unique_fd.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace unimem::detail {

/// A file that appears whole or not at all: written beside its final place under another name, renamed by `commit`, and
/// removed by the destructor if that never came. An older file of the final name stays untouched until then; a symbolic
/// link is followed, so the file it names is the one replaced. Character devices (`/dev/null`) are written to directly:
/// there is nothing to rename.
///
/// Used by one thread at a time.
class OutputFile {
 public:
  /// Throws IoError if nothing can be made there, InvalidArgument if it is the file open as `input`.
  OutputFile(std::filesystem::path const& path, int input);
  OutputFile(OutputFile const&) = delete;
  OutputFile& operator=(OutputFile const&) = delete;
  ~OutputFile();

  /// Appends. Throws IoError.
  void write(std::span<const std::byte> data);

  /// Puts the file in its place. Throws IoError; the partial file is then removed as if this had not been called.
  void commit();

 private:
  void create_beside();

  std::string path_;      ///< as the caller wrote it, for errors
  std::string target_;    ///< links followed
  std::string partial_;   ///< empty when there is none, or none any more
  unsigned mode_ = 0666;  ///< the permissions asked for
  bool replaces_ = false;
  UniqueFd file_;
};

}  // namespace unimem::detail
