#include "manager/backing_file.hpp"

#include <unimem/core/error.hpp>

#include <fmt/format.h>

#include <cerrno>

namespace unimem::detail {

void BackingFile::put(std::size_t offset, std::span<const std::byte> bytes) const {
  file_->write(offset_ + offset, bytes, "writing what a buffer has newer than the file");
  traffic_->written.add(bytes.size());
}

void BackingFile::get(std::size_t offset, std::span<std::byte> target) const {
  auto const begin = offset_ + offset;
  if (auto const found = file_->read(begin, target, "reading bytes of a buffer"); found != target.size()) {
    throw IoError(file_->name(), EIO,
                  fmt::format("reading bytes [{}, {}), since it has become shorter: it ends at {}", begin,
                              begin + target.size(), begin + found));
  }
  traffic_->read.add(target.size());
}

void BackingFile::sync() const {
  file_->sync("flushing a buffer to the file");
}

}  // namespace unimem::detail
