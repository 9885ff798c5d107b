#include "stream/output_file.hpp"

#include <unimem/core/error.hpp>
#include <unimem/stream/stream_file.hpp>

#include "core/write_all.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <random>
#include <set>
#include <string_view>

namespace unimem {
namespace {

/// The partial files there are in the process, so that one place can remove them all.
class PartialFiles {
 public:
  /// Never destroyed: a stream may outlive every static object.
  static PartialFiles& all() {
    static auto& instance = *new PartialFiles;
    return instance;
  }

  /// Before the file is made, or it could be missed.
  void add(std::string const& path) {
    std::lock_guard const lock{mutex_};
    paths_.insert(path);
  }
  void forget(std::string const& path) noexcept {
    std::lock_guard const lock{mutex_};
    paths_.erase(path);
  }
  void remove() noexcept {
    std::lock_guard const lock{mutex_};
    for (auto const& path : paths_) ::unlink(path.c_str());
  }

 private:
  std::mutex mutex_;
  std::set<std::string> paths_;
};

}  // namespace

void remove_unfinished_outputs() noexcept {
  PartialFiles::all().remove();
}

}  // namespace unimem

namespace unimem::detail {
namespace {

std::string random_suffix() {
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  std::random_device random;
  std::uniform_int_distribution<std::size_t> letter(0, letters.size() - 1);
  std::string suffix(6, ' ');
  std::ranges::generate(suffix, [&] { return letters[letter(random)]; });
  return suffix;
}

}  // namespace

OutputFile::OutputFile(std::filesystem::path const& path, int input) : path_(path.string()), target_(path_) {
  struct ::stat existing{};
  if (::stat(path_.c_str(), &existing) == 0) {
    struct ::stat read{};
    if (::fstat(input, &read) == 0 && read.st_dev == existing.st_dev && read.st_ino == existing.st_ino) {
      throw InvalidArgument("output", path_, "another file than the input");
    }
    if (S_ISDIR(existing.st_mode)) throw IoError(path_, EISDIR, "cannot write");
    if (S_ISCHR(existing.st_mode)) {
      file_ = UniqueFd(::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
      if (!file_) throw IoError(path_, errno, "cannot open for writing");
      return;
    }
    if (!S_ISREG(existing.st_mode)) throw IoError(path_, 0, "cannot write: it exists and is not a regular file");
    // Renaming needs only the folder's permission; a file its owner has protected is to stay.
    if (::access(path_.c_str(), W_OK) != 0) throw IoError(path_, errno, "cannot write");
    std::error_code error;
    if (auto const real = std::filesystem::canonical(path, error); !error) target_ = real.string();
    mode_ = existing.st_mode & 0777U;
    replaces_ = true;
  }
  create_beside();
}

void OutputFile::create_beside() {
  for (int attempt = 0; attempt < 100; ++attempt) {
    auto name = fmt::format("{}.unimem-{}", target_, random_suffix());
    PartialFiles::all().add(name);
    file_ = UniqueFd(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, static_cast<::mode_t>(mode_)));
    if (file_) {
      partial_ = std::move(name);
      break;
    }
    auto const code = errno;
    PartialFiles::all().forget(name);
    if (code != EEXIST) throw IoError(path_, code, "cannot create a file beside it");
  }
  if (!file_) throw IoError(path_, EEXIST, "cannot create a file beside it");
  // A new file has what the umask leaves; a replaced one keeps what it had.
  if (replaces_) static_cast<void>(::fchmod(file_.get(), static_cast<::mode_t>(mode_)));
}

OutputFile::~OutputFile() {
  if (partial_.empty()) return;
  ::unlink(partial_.c_str());
  PartialFiles::all().forget(partial_);
}

void OutputFile::write(std::span<const std::byte> data) {
  if (auto const problem = write_all(file_.get(), data)) throw IoError(path_, problem.value(), "cannot write");
}

void OutputFile::commit() {
  if (partial_.empty()) return;
  if (std::rename(partial_.c_str(), target_.c_str()) != 0) throw IoError(path_, errno, "cannot put in place");
  PartialFiles::all().forget(partial_);
  partial_.clear();
}

}  // namespace unimem::detail
