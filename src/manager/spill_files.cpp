#include "manager/spill_files.hpp"

#include <unimem/core/error.hpp>

#include "core/unnamed_file.hpp"

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

SpilledBytes::SpilledBytes(std::shared_ptr<SpillFiles> files, UniqueFd file, std::size_t bytes) noexcept
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
  std::size_t done = 0;
  while (done < target.size()) {
    auto const count =
        ::pread(file_.get(), target.data() + done, target.size() - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw IoError(files_->directory_, errno, "reading what was spilled there");
    if (count == 0) throw IoError(files_->directory_, EIO, "reading what was spilled there, which has become shorter");
    done += static_cast<std::size_t>(count);
  }
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

UniqueFd SpillFiles::new_file() const {
  UniqueFd unnamed{::open(directory_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)};
  if (unnamed) return unnamed;
  if (!knows_no_unnamed_files(errno)) throw IoError(directory_, errno, "making a file to spill to");
  auto path = directory_ + "/unimem-XXXXXX";
  UniqueFd named{::mkostemp(path.data(), O_CLOEXEC)};
  if (!named) throw IoError(directory_, errno, "making a file to spill to");
  if (::unlink(path.c_str()) != 0) throw IoError(path, errno, "taking the name from a file to spill to");
  return named;
}

SpilledBytes SpillFiles::keep(std::span<const std::byte> bytes) {
  auto file = new_file();
  auto const failed = [&](int code) { throw IoError(directory_, code, "spilling host memory"); };
  std::size_t done = 0;
  while (done < bytes.size()) {
    auto const count = ::pwrite(file.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) failed(errno);
    if (count == 0) failed(EIO);  // it would say so for ever
    done += static_cast<std::size_t>(count);
  }
  // Some file systems find out that they are full, or broken, only when they write: by then no other place has the
  // bytes.
  while (::fdatasync(file.get()) != 0) {
    if (errno == EINVAL || errno == ENOSYS) break;  // nothing to be synchronized with
    if (errno != EINTR) failed(errno);
  }
  spills_.fetch_add(1, std::memory_order_relaxed);
  spilled_bytes_.fetch_add(done, std::memory_order_relaxed);
  return {shared_from_this(), std::move(file), done};
}

SpillFiles::Counts SpillFiles::counts() const noexcept {
  constexpr auto relaxed = std::memory_order_relaxed;
  return {spills_.load(relaxed),         spilled_bytes_.load(relaxed), restores_.load(relaxed),
          restored_bytes_.load(relaxed), direct_reads_.load(relaxed),  direct_read_bytes_.load(relaxed),
          files_.load(relaxed),          file_bytes_.load(relaxed)};
}

}  // namespace unimem::detail
