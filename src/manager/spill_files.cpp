#include "manager/spill_files.hpp"

#include <unimem/core/error.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

namespace unimem::detail {
namespace {

std::string absolute(std::string const& directory) {
  if (auto const end = directory.find('\0'); end != std::string::npos) {
    throw InvalidArgument("spill.directory", fmt::format("'{}' and a zero byte", directory.substr(0, end)),
                          "a path, in which there is no such byte");
  }
  std::error_code code;
  auto const path = std::filesystem::absolute(directory, code);
  if (code) throw IoError(directory, code.value(), "finding the directory to spill to");
  return path.string();
}

}  // namespace

SpillFile::SpillFile(std::shared_ptr<SpillFiles> files, std::size_t bytes)
    : FileMemory(bytes), files_(std::move(files)), file_(files_->new_file()) {
  files_->files_.add(bytes);
}

SpillFile::~SpillFile() {
  files_->files_.remove(bytes());
}

void SpillFile::put(std::size_t offset, std::span<const std::byte> bytes) const {
  constexpr auto doing = "spilling host memory";
  constexpr std::size_t piece = std::size_t{1} << 20;
  for (auto left = bytes; !left.empty();) {
    auto const next = left.first(std::min(piece, left.size()));
    auto const at = offset + (bytes.size() - left.size());
    file_.write(at, next, doing);
    left = left.subspan(next.size());
    if (!left.empty()) file_.begin_to_sync(at, next.size());  // goes on while the next is copied
  }
  file_.sync(doing);  // by then no other place may have the bytes
  files_->spilled_.add(bytes.size());
}

void SpillFile::read(std::size_t offset, std::span<std::byte> target) const {
  if (file_.read(offset, target, "reading what was spilled there") == target.size()) return;
  throw IoError(file_.name(), EIO, "reading what was spilled there, which has become shorter");
}

void SpillFile::get(std::size_t offset, std::span<std::byte> target) const {
  read(offset, target);
  files_->restored_.add(target.size());
}

void SpillFile::get_directly(std::size_t offset, std::span<std::byte> target) const {
  read(offset, target);
  files_->read_directly_.add(target.size());
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

SpillFiles::Counts SpillFiles::counts() const noexcept {
  constexpr auto relaxed = std::memory_order_relaxed;
  return {spilled_.times.load(relaxed),  spilled_.bytes.load(relaxed),       restored_.times.load(relaxed),
          restored_.bytes.load(relaxed), read_directly_.times.load(relaxed), read_directly_.bytes.load(relaxed),
          files_.times.load(relaxed),    files_.bytes.load(relaxed)};
}

}  // namespace unimem::detail
