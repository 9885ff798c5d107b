#include "stream/input_file.hpp"

#include <unimem/core/error.hpp>

#include "stream/npy.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace unimem::detail {
namespace {

constexpr auto reading = "cannot read";

std::uint64_t size_of(File const& file) {
  return static_cast<std::uint64_t>(file.status("cannot look at it").st_size);
}

}  // namespace

InputFile::InputFile(std::filesystem::path const& path, ReadWay way)
    : file_(File::open_regular(path.string(), O_RDONLY, "cannot open for reading")),
      reader_(file_, way),
      bytes_(size_of(file_)) {
  if (bytes_ == 0) check_empty();
  if (path.extension() == ".npy") read_npy_header(bytes_);
  static_cast<void>(::posix_fadvise(file_.descriptor(), 0, 0, POSIX_FADV_SEQUENTIAL));
}

void InputFile::check_empty() const {
  std::array<std::byte, 1> first{};
  // What was appended since it was opened is not looked at.
  if (file_.read(0, first, reading) != 0 && size_of(file_) == 0) {
    throw IoError(file_.name(), 0,
                  "its size is not known: the system says 0 bytes, and there are more; copy it to a file first");
  }
}

void InputFile::read_npy_header(std::uint64_t file_bytes) {
  std::array<std::byte, npy_prefix_bytes> prefix{};
  auto const prefix_bytes = static_cast<std::size_t>(std::min<std::uint64_t>(file_bytes, prefix.size()));
  static_cast<void>(fill(0, std::span{prefix}.first(prefix_bytes), {}));
  auto const header_bytes = npy_header_bytes(std::span{prefix}.first(prefix_bytes), file_.name());
  std::vector<std::byte> header(static_cast<std::size_t>(std::min<std::uint64_t>(header_bytes, file_bytes)));
  static_cast<void>(fill(0, header, {}));
  auto parsed = parse_npy_header(header, file_.name());
  if (file_bytes - parsed.data_offset != parsed.data_bytes) {
    throw IoError(file_.name(), 0,
                  fmt::format("malformed .npy: its header announces {} bytes of data, and {} follow", parsed.data_bytes,
                              file_bytes - parsed.data_offset));
  }
  bytes_ = parsed.data_bytes;
  data_offset_ = parsed.data_offset;
  element_ = parsed.element;
  shape_ = std::move(parsed.shape);
}

void InputFile::read(std::uint64_t offset, std::span<std::byte> to, std::function<bool()> const& stop) const {
  auto const count = fill(offset, to, stop);
  read_.fetch_add(count.bytes, std::memory_order_relaxed);
  direct_.fetch_add(count.direct, std::memory_order_relaxed);
}

ReadCount InputFile::fill(std::uint64_t offset, std::span<std::byte> to, std::function<bool()> const& stop) const {
  auto const count = reader_.read(file_, data_offset_ + offset, to, reading, stop);
  if (count.bytes != to.size() && !(stop && stop())) throw_shrunk();
  return count;
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
