#pragma once

#include <unimem/stream/element_type.hpp>

#include "file/file.hpp"
#include "file/file_reader.hpp"
#include "stream/tensor_path.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace unimem::detail {

/// A file open for reading, as the elements it holds: raw, a `.npy` by its extension, or a tensor of a file
/// (`split_tensor_name`). Its size is that of the moment
/// it was opened; growing later changes nothing, shrinking is an error as soon as it is noticed.
///
/// Reads may come from several threads at once.
class InputFile {
 public:
  /// Throws IoError: missing, unreadable, not a regular file (EISDIR for a directory) of a known size, or a `.npy` that
  /// or file of tensors that cannot be used; NotFound for a tensor that the file has not. ReadWay::direct: what
  /// `FileReader` throws where it cannot be read so.
  explicit InputFile(std::filesystem::path const& path, ReadWay way = ReadWay::by_residency)
      : InputFile(split_tensor_name(path), way) {}
  explicit InputFile(TensorPath const& path, ReadWay way = ReadWay::by_residency);

  [[nodiscard]] std::string const& path() const noexcept { return file_.name(); }

  /// Bytes of elements, a header or other tensors not counted.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  /// Where in the file the first element is.
  [[nodiscard]] std::uint64_t data_offset() const noexcept { return data_offset_; }
  /// What a header says; nothing for a raw file.
  [[nodiscard]] std::optional<ElementType> element() const noexcept { return element_; }
  /// The extents a header gives; nothing for a raw file.
  [[nodiscard]] std::optional<std::vector<std::uint64_t>> const& shape() const noexcept { return shape_; }

  /// Fills `to` with the elements' bytes from `offset` on. Throws IoError, also when the file no longer has them.
  /// If `terms` say to stop, not all of `to` is filled.
  void read(std::uint64_t offset, std::span<std::byte> to, ReadTerms terms = {}) const;

  /// The header of a `.npy`; nothing of other files. Throws IoError.
  [[nodiscard]] std::vector<std::byte> read_header() const;

  /// Whether a read of all elements at once would go past the page cache.
  [[nodiscard]] bool goes_direct() const { return reader_.goes_direct(file_, data_offset_, bytes_); }
  /// What `read` has read so far, a header not counted.
  [[nodiscard]] std::uint64_t bytes_read() const noexcept { return read_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t bytes_read_directly() const noexcept { return direct_.load(std::memory_order_relaxed); }

  /// Throws IoError if the file has become shorter than it was.
  void check_size() const;

  /// Throws the IoError that says so, or that there never were as many bytes as the system says.
  [[noreturn]] void throw_shrunk() const;

  [[nodiscard]] int descriptor() const noexcept { return file_.descriptor(); }
  [[nodiscard]] struct ::stat status() const { return file_.status("cannot look at it"); }

 private:
  void read_npy_header();
  void read_tensor(std::string const& name, std::filesystem::path const& path);

  File file_;
  FileReader reader_;
  mutable std::atomic<std::uint64_t> read_{0}, direct_{0};  ///< relaxed: counts alone
  std::uint64_t bytes_ = 0;
  std::uint64_t data_offset_ = 0;
  std::size_t header_bytes_ = 0;
  std::optional<ElementType> element_;
  std::optional<std::vector<std::uint64_t>> shape_;
};

}  // namespace unimem::detail
