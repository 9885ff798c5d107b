#include "stream/tensor_file.hpp"

#include <unimem/core/error.hpp>

#include "core/quoted.hpp"
#include "stream/byte_source.hpp"

#include <fcntl.h>
#include <fmt/format.h>

namespace unimem::detail {
namespace {

constexpr auto looking = "cannot look at it";

}  // namespace

TensorFile::TensorFile(std::filesystem::path const& path)
    : path_(path),
      file_(std::make_shared<File const>(File::open_regular(path.string(), O_RDONLY, "cannot open for reading"))),
      stamp_(stamp()) {}

TensorFile::Stamp TensorFile::stamp() const {
  auto const status = file_->status(looking);
  return {status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

TensorDirectory TensorFile::read() const {
  return read_tensor_directory(ByteSource::of(*file_), path_);
}

std::shared_ptr<File const> TensorFile::open(std::string const& name, TensorEntry const& entry, FileMode mode) {
  if (mode == FileMode::read_write && path_.extension() == ".npz") {
    throw UnsupportedOperation("FileMode::read_write", file_->name(),
                               "a .npz has a checksum of each array, without which NumPy refuses it; copy_on_write "
                               "keeps what is written apart, and a .npy or .safetensors can be written to");
  }
  std::lock_guard const lock(mutex_);
  if (auto const now = stamp(); now != stamp_) {
    auto const directory = read();
    auto const found = directory.tensors.find(name);
    if (found == directory.tensors.end() || found->second != entry) {
      throw IoError(
          file_->name(), 0,
          fmt::format("has changed since its tensors were looked up, and tensor {} with it", detail::quoted(name)));
    }
    stamp_ = now;
  }
  if (mode != FileMode::read_write) return file_;
  if (!writable_) writable_ = open_for_writing();
  return writable_;
}

std::shared_ptr<File const> TensorFile::open_for_writing() const {
  auto file = File::open_regular(path_.string(), O_RDWR, "cannot open for reading and writing");
  auto const now = file.status(looking);
  auto const then = file_->status(looking);
  if (now.st_dev != then.st_dev || now.st_ino != then.st_ino) {
    throw IoError(file.name(), 0, "is another file by now than the one whose tensors were looked up");
  }
  return std::make_shared<File const>(std::move(file));
}

}  // namespace unimem::detail
