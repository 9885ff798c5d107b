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

struct ::stat status_of(int fd, std::string const& path) {
  struct ::stat status{};
  if (::fstat(fd, &status) != 0) throw IoError(path, errno, "cannot look at it");
  return status;
}

/// What is neither a folder nor a regular file, as a sentence says it.
char const* kind_of(::mode_t mode) noexcept {
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISBLK(mode)) return "a block device";
  return "a character device, as terminals are";
}

}  // namespace

InputFile::InputFile(std::filesystem::path const& path) : path_(path.string()) {
  // O_NONBLOCK: opening a pipe without a writer would wait for ever, only to be refused below.
  file_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file_) throw IoError(path_, errno, "cannot open for reading");
  auto const status = status_of(file_.get(), path_);
  if (S_ISDIR(status.st_mode)) throw IoError(path_, EISDIR, "cannot read");
  if (!S_ISREG(status.st_mode)) {
    throw IoError(path_, ESPIPE,
                  fmt::format("not a regular file but {}: only those have a size beforehand and are read from any "
                              "position; copy what it gives to a file first (cat > FILE) and name that one",
                              kind_of(status.st_mode)));
  }
  bytes_ = static_cast<std::uint64_t>(status.st_size);
  if (bytes_ == 0) check_empty();
  if (path.extension() == ".npy") read_npy_header(bytes_);
  static_cast<void>(::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_SEQUENTIAL));
}

void InputFile::check_empty() const {
  std::byte first{};
  ::ssize_t count = 0;
  do {
    count = ::pread(file_.get(), &first, 1, 0);
  } while (count < 0 && errno == EINTR);
  if (count < 0) throw IoError(path_, errno, "cannot read");
  // What was appended since it was opened is not looked at.
  if (count != 0 && status_of(file_.get(), path_).st_size == 0) {
    throw IoError(path_, 0,
                  "its size is not known: the system says 0 bytes, and there are more; copy it to a file first");
  }
}

void InputFile::read_npy_header(std::uint64_t file_bytes) {
  std::array<std::byte, npy_prefix_bytes> prefix{};
  auto const prefix_bytes = static_cast<std::size_t>(std::min<std::uint64_t>(file_bytes, prefix.size()));
  read(0, std::span{prefix}.first(prefix_bytes));
  auto const header_bytes = npy_header_bytes(std::span{prefix}.first(prefix_bytes), path_);
  std::vector<std::byte> header(static_cast<std::size_t>(std::min<std::uint64_t>(header_bytes, file_bytes)));
  read(0, header);
  auto parsed = parse_npy_header(header, path_);
  if (file_bytes - parsed.data_offset != parsed.data_bytes) {
    throw IoError(path_, 0,
                  fmt::format("malformed .npy: its header announces {} bytes of data, and {} follow", parsed.data_bytes,
                              file_bytes - parsed.data_offset));
  }
  bytes_ = parsed.data_bytes;
  data_offset_ = parsed.data_offset;
  element_ = parsed.element;
  shape_ = std::move(parsed.shape);
}

void InputFile::read(std::uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    auto const count = ::pread(file_.get(), to.data(), to.size(), static_cast<::off_t>(data_offset_ + offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw IoError(path_, errno, "cannot read");
    if (count == 0) throw_shrunk();
    to = to.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
}

void InputFile::check_size() const {
  auto const now = static_cast<std::uint64_t>(status_of(file_.get(), path_).st_size);
  if (now < data_offset_ + bytes_) throw_shrunk();
}

void InputFile::throw_shrunk() const {
  auto const now = static_cast<std::uint64_t>(status_of(file_.get(), path_).st_size);
  if (now >= data_offset_ + bytes_) {
    throw IoError(path_, 0,
                  fmt::format("its size is not known: the system says {} bytes, and there are fewer; copy it to a file "
                              "first",
                              now));
  }
  throw IoError(path_, 0, fmt::format("shrank while it was read: {} bytes of {} are left", now, data_offset_ + bytes_));
}

}  // namespace unimem::detail
