#pragma once

#include <unimem/stream/element_type.hpp>

#include "file/retries.hpp"
#include "stream/input_check.hpp"
#include "stream/input_file.hpp"
#include "stream/pipe_input.hpp"

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace unimem::detail {

/// What a stream reads: files one after the other as if they were one, pipes among them.
///
/// A file is that of the moment when this was made; of several, one is open at a time. Used by one thread at a time,
/// the functions without `const` by the one that reads.
class Input {
 public:
  /// `paths`: at least one. Throws IoError for each that cannot be read, and for files of different elements.
  /// ReadWay::direct: what `FileReader` throws where one cannot be read so.
  Input(std::span<const std::filesystem::path> paths, ReadWay way, unsigned retries);

  /// The first path, and how many more there are: for messages.
  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  /// Bytes of elements; none where a pipe is among the files.
  [[nodiscard]] std::optional<std::uint64_t> bytes() const noexcept { return bytes_; }
  /// What the headers of the files say; nothing for raw ones.
  [[nodiscard]] std::optional<ElementType> element() const noexcept { return element_; }
  /// The extents of the only file, where its header says them.
  [[nodiscard]] std::optional<std::vector<std::uint64_t>> shape() const;
  /// The only file, which is open as long as this; null where there are others, or a pipe.
  [[nodiscard]] InputFile const* only_file() const noexcept { return only_file_ ? &*only_file_ : nullptr; }
  [[nodiscard]] bool has_pipes() const noexcept { return !bytes_; }
  /// Of every file: the path and, where its size is known, that and when it was last changed, as text. Two inputs with
  /// equal ones are taken to be the same.
  [[nodiscard]] std::vector<std::string> identities() const;

  /// Takes the files for `element`s. Throws IoError where the size of one is known and no multiple of that; a pipe's
  /// size is known at its end.
  void take_as(ElementType element);
  /// Throws InvalidArgument if `written`, which `argument` names, leads to one of the files.
  void check_is_not(std::filesystem::path const& written, std::string const& argument) const;

  /// `check` is told what is read from now on, and outlives this. Before anything is read.
  void watch_with(InputCheck& check) noexcept { check_ = &check; }
  /// The next read begins there, of the only file.
  void skip_to(std::uint64_t offset);
  /// Fills `to` with what comes next; returns how many bytes that were, fewer only at the end, or when `stop` says so,
  /// which is asked now and then. Throws IoError.
  [[nodiscard]] std::size_t read(std::span<std::byte> to, std::function<bool()> const& stop);
  /// The next bytes, of `only_file`, were read by other ways.
  void have_read(std::span<const std::byte> bytes);
  /// Begins and ends the files that come next and have no bytes.
  void pass_empty_files();
  /// How many bytes of files were read, and how many of them past the page cache. Not while it is read.
  [[nodiscard]] ReadCount bytes_read() const noexcept;
  /// The files and pipes, and how many bytes were read of those that are through.
  [[nodiscard]] std::vector<std::pair<std::filesystem::path, std::uint64_t>> read_so_far() const;
  /// Throws IoError if the only file has become shorter since than it was.
  void check_size() const;

  [[nodiscard]] Retries& retries() noexcept { return retries_; }
  [[nodiscard]] Retries const& retries() const noexcept { return retries_; }

 private:
  struct Part {
    std::filesystem::path path;
    std::optional<std::uint64_t> bytes;  ///< none: a pipe
    struct ::stat status{};
    std::uint64_t read = 0;  ///< set when it is through
  };

  void look_at(std::filesystem::path const& path);
  void take_element(InputFile const& file);
  void check_multiple(Part const& part, std::uint64_t bytes) const;
  void begin_part();
  void advance(std::size_t bytes);
  void end_part();
  [[nodiscard]] std::size_t read_part(std::span<std::byte> to, std::function<bool()> const& stop);

  std::string name_;
  std::vector<Part> parts_;
  std::optional<std::uint64_t> bytes_ = 0;
  std::optional<ElementType> element_;
  ElementType taken_as_ = ElementType::u8;
  std::optional<InputFile> only_file_;
  std::optional<InputFile> open_file_;  ///< of several, the one that is read
  std::optional<PipeInput> open_pipe_;
  std::size_t part_ = 0;      ///< the one that is read
  bool begun_ = false;        ///< it is open, and was told of
  std::uint64_t within_ = 0;  ///< bytes of it that were read
  InputCheck* check_ = nullptr;
  ReadWay way_;
  ReadCount through_;  ///< of the files that are through, of several
  Retries retries_;
};

}  // namespace unimem::detail
