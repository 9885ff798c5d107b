#include "manager/spill_files.hpp"

#include <unimem/core/error.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

namespace unimem::detail {
namespace {

std::string absolute(std::string const& directory) {
  std::error_code code;
  auto const path = std::filesystem::absolute(directory, code);
  if (code) throw IoError(directory, code.value(), "finding the directory to spill to");
  return path.string();
}

}  // namespace

SpilledBytes::SpilledBytes(std::shared_ptr<SpillFiles> files, File file, std::size_t bytes) noexcept
    : files_(std::move(files)), file_(std::move(file)), bytes_(bytes) {
  files_->files_.fetch_add(1, std::memory_order_relaxed);
  files_->file_bytes_.fetch_add(bytes_, std::memory_order_relaxed);
}

SpilledBytes& SpilledBytes::operator=(SpilledBytes&& other) noexcept {
  std::swap(files_, other.files_);
  std::swap(file_, other.file_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SpilledBytes::~SpilledBytes() {
  if (!files_) return;
  files_->files_.fetch_sub(1, std::memory_order_relaxed);
  files_->file_bytes_.fetch_sub(bytes_, std::memory_order_relaxed);
}

void SpilledBytes::read(std::span<std::byte> target, std::size_t offset) const {
  if (file_.read(offset, target, "reading what was spilled there") == target.size()) return;
  throw IoError(file_.name(), EIO, "reading what was spilled there, which has become shorter");
}

void SpilledBytes::restore(std::span<std::byte> target) const {
  read(target, 0);
  files_->restores_.fetch_add(1, std::memory_order_relaxed);
  files_->restored_bytes_.fetch_add(target.size(), std::memory_order_relaxed);
}

void SpilledBytes::read_into(std::span<std::byte> target, std::size_t offset) const {
  read(target, offset);
  files_->direct_reads_.fetch_add(1, std::memory_order_relaxed);
  files_->direct_read_bytes_.fetch_add(target.size(), std::memory_order_relaxed);
}

SpillFiles::SpillFiles(std::string const& directory, std::size_t min_bytes)
    : directory_(absolute(directory)), min_bytes_(min_bytes) {
  static_cast<void>(new_file());
}

File SpillFiles::new_file() const {
  constexpr auto doing = "making a file to spill to";
  if (auto unnamed = File::unnamed(directory_, O_RDWR, 0600, directory_, doing)) return *std::move(unnamed);
  auto path = directory_ + "/unimem-XXXXXX";
  UniqueFd named{::mkostemp(path.data(), O_CLOEXEC)};
  if (!named) throw IoError(directory_, errno, doing);
  if (::unlink(path.c_str()) != 0) throw IoError(path, errno, "taking the name from a file to spill to");
  return {std::move(named), directory_};
}

SpilledBytes SpillFiles::keep(std::span<const std::byte> bytes) {
  constexpr auto doing = "spilling host memory";
  auto file = new_file();
  file.write(0, bytes, doing);
  file.sync(doing);  // by then no other place has the bytes
  spills_.fetch_add(1, std::memory_order_relaxed);
  spilled_bytes_.fetch_add(bytes.size(), std::memory_order_relaxed);
  return {shared_from_this(), std::move(file), bytes.size()};
}

SpillFiles::Counts SpillFiles::counts() const noexcept {
  constexpr auto relaxed = std::memory_order_relaxed;
  return {spills_.load(relaxed),         spilled_bytes_.load(relaxed), restores_.load(relaxed),
          restored_bytes_.load(relaxed), direct_reads_.load(relaxed),  direct_read_bytes_.load(relaxed),
          files_.load(relaxed),          file_bytes_.load(relaxed)};
}

}  // namespace unimem::detail
