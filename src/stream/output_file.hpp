#pragma once

#include <unimem/stream/element_type.hpp>

#include "file/file.hpp"
#include "stream/output_paths.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace unimem::detail {

/// A file that appears whole or not at all: written without a name in the folder of its final place, and given that by
/// `commit`. The system takes it away with the process, however that ends. An older file of the final name stays
/// untouched until then, and is replaced in one step: the new one has a name beside it for a moment, since the system
/// names a file only where nothing is yet. A process killed in that moment leaves it there, whole.
///
/// Where the file system has no files without names (FAT, some network and overlay file systems), or no /proc is there
/// to name them by, it is written under the name beside, and the destructor removes it if `commit` never came: a killed
/// process leaves a part of it there.
///
/// A symbolic link is followed, also to where nothing is yet, so the file it names is the one made or replaced.
/// One that stays has a name beside from the beginning, the same for each run (`.unimem-part`).
///
/// Character devices (`/dev/null`) are written to directly: there is nothing to put in place.
///
/// Used by one thread at a time.
class OutputFile {
 public:
  /// Whether the unfinished file goes with the process, or stays for another to go on with.
  enum class Unfinished { goes, stays };

  /// The name of a file that stays: the final one and an ending. Bytes that it has already are kept. Throws IoError if
  /// nothing can be made there; InvalidArgument if it is to stay and is a character device.
  explicit OutputFile(std::filesystem::path const& path, Unfinished unfinished = Unfinished::goes);
  OutputFile(OutputFile const&) = delete;
  OutputFile& operator=(OutputFile const&) = delete;
  ~OutputFile();

  /// Appends. Throws IoError.
  void write(std::span<const std::byte> data);

  /// Writes once more what is at `offset`, and leaves alone what is behind it. Throws IoError.
  void rewrite(std::uint64_t offset, std::span<const std::byte> data);
  /// Returns when the file system has said that it has all of it, so that what `commit` puts in place is whole even if
  /// the machine stops. Throws IoError.
  void sync();

  /// Of a file that stays: how much is there, and what. Throws IoError.
  [[nodiscard]] std::uint64_t bytes() const;
  [[nodiscard]] std::size_t read(std::uint64_t offset, std::span<std::byte> to) const;
  /// Forgets what is beyond `bytes` of it; what is written next follows those. Throws IoError.
  void go_on_at(std::uint64_t bytes);
  /// From now on it goes with this, unless it is committed.
  void keep_no_longer() noexcept { unfinished_ = Unfinished::goes; }
  /// Where the journal of a file that stays is.
  [[nodiscard]] std::filesystem::path journal() const { return paths_.journal(); }

  /// Puts the file in its place. Throws IoError; the unfinished file is then gone as if this had not been called.
  void commit();

 private:
  /// Whether the file system knows such files, and one was made.
  [[nodiscard]] bool create_unnamed();
  void create_beside();
  void open_kept();
  /// Gives the file without a name one, beside its place if there is something in that.
  void name_it();

  std::string path_;  ///< as the caller wrote it, for errors
  OutputPaths paths_;
  Unfinished unfinished_;
  std::string partial_;         ///< the name beside; empty when there is none, or none any more
  bool unnamed_ = false;        ///< it has no name yet
  std::uint64_t removals_ = 0;  ///< of unfinished outputs when it was made
  unsigned mode_ = 0666;        ///< the permissions asked for
  bool replaces_ = false;
  File file_;
};

}  // namespace unimem::detail
