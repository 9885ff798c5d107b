#include "stream/input_file.hpp"

#include <unimem/core/error.hpp>

#include "core/quoted.hpp"
#include "stream/byte_source.hpp"
#include "stream/npy.hpp"
#include "stream/tensor_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <utility>

namespace unimem::detail {
namespace {

constexpr auto reading_input = "cannot read";

std::uint64_t size_of(File const& file) {
  return static_cast<std::uint64_t>(file.status("cannot look at it").st_size);
}

}  // namespace

InputFile::InputFile(TensorPath const& path, ReadWay way)
    : file_(File::open_regular(path.file.string(), O_RDONLY, "cannot open for reading")),
      reader_(file_, way),
      bytes_(file_.size("cannot look at it")) {
  if (path.tensor) {
    read_tensor(*path.tensor, path.file);
  } else if (path.file.extension() == ".npy") {
    read_npy_header();
  }
  static_cast<void>(::posix_fadvise(file_.descriptor(), 0, 0, POSIX_FADV_SEQUENTIAL));
}

void InputFile::read_npy_header() {
  auto header = detail::read_npy_header(ByteSource::of(file_), 0, bytes_);
  element_ = element_of(header, file_.name());
  bytes_ = header.data_bytes;
  data_offset_ = header.data_offset;
  header_bytes_ = static_cast<std::size_t>(header.data_offset);
  shape_ = std::move(header.shape);
}

void InputFile::read_tensor(std::string const& name, std::filesystem::path const& path) {
  auto const directory = read_tensor_directory(ByteSource::of(file_), path);
  auto const& tensor = find_tensor(directory, name, file_.name());
  if (!tensor.refused.empty()) throw IoError(tensor_label(file_.name(), name), 0, tensor.refused);
  if (!tensor.type->element) {
    throw IoError(
        file_.name(), 0,
        fmt::format("tensor {} is of {}, of which a stream knows nothing", detail::quoted(name), tensor.type->name));
  }
  bytes_ = tensor.bytes;
  data_offset_ = tensor.offset;
  element_ = tensor.type->element;
  shape_ = tensor.shape;
}

void InputFile::read(std::uint64_t offset, std::span<std::byte> to, ReadTerms terms) const {
  terms.doing = reading_input;
  auto const count = reader_.read(file_, data_offset_ + offset, to, terms);
  if (count.bytes != to.size() && !(terms.stop && terms.stop())) throw_shrunk();
  read_.fetch_add(count.bytes, std::memory_order_relaxed);  // counts alone
  direct_.fetch_add(count.direct, std::memory_order_relaxed);
}

std::vector<std::byte> InputFile::read_header() const {
  std::vector<std::byte> header(header_bytes_);
  if (file_.read(0, header, reading_input) != header.size()) throw_shrunk();
  return header;
}

void InputFile::check_size() const {
  if (size_of(file_) < data_offset_ + bytes_) throw_shrunk();
}

void InputFile::throw_shrunk() const {
  auto const now = size_of(file_);
  if (now >= data_offset_ + bytes_) {
    throw IoError(file_.name(), 0,
                  fmt::format("its size is not known: the system says {} bytes, and there are fewer; copy it to a file "
                              "first",
                              now));
  }
  throw IoError(file_.name(), 0,
                fmt::format("shrank while it was read: {} bytes of {} are left", now, data_offset_ + bytes_));
}

}  // namespace unimem::detail
