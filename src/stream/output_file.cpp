#include "stream/output_file.hpp"

#include <unimem/core/error.hpp>
#include <unimem/stream/stream_file.hpp>

#include "core/write_all.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <random>
#include <set>
#include <string_view>
#include <utility>

namespace unimem {
namespace {

/// The unfinished files there are in the process, so that one place can remove them all: of those that have a name it
/// knows that, and the others get none after it.
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
    ++removals_;
    for (auto const& path : paths_) ::unlink(path.c_str());
  }

  /// How often they have been removed.
  [[nodiscard]] std::uint64_t removals() const noexcept {
    std::lock_guard const lock{mutex_};
    return removals_;
  }
  /// Names an open file, unless all have been removed since there were so many `removals`. 0, or why not.
  [[nodiscard]] int name(int file, std::string const& path, std::uint64_t removals) {
    auto const open_file = fmt::format("/proc/self/fd/{}", file);
    std::lock_guard const lock{mutex_};
    if (removals_ != removals) return ENOENT;  // as of one that had a name
    return ::linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0 ? 0 : errno;
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::string> paths_;
  std::uint64_t removals_ = 0;
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

/// A name that is free, as far as one can tell, in the target's folder.
std::string name_beside(std::filesystem::path const& target) {
  constexpr std::size_t most = 100;  // names may be as long as the system allows without this
  auto const begin = target.filename().string().substr(0, most);
  return (target.parent_path() / fmt::format("{}.unimem-{}", begin, random_suffix())).string();
}

}  // namespace

OutputFile::OutputFile(std::filesystem::path const& path, Unfinished unfinished)
    : path_(path.string()), paths_(path), unfinished_(unfinished) {
  struct ::stat existing{};
  if (::stat(path_.c_str(), &existing) == 0) {
    if (S_ISDIR(existing.st_mode)) throw IoError(path_, EISDIR, "cannot write");
    if (S_ISCHR(existing.st_mode)) {
      if (unfinished_ == Unfinished::stays) {
        throw InvalidArgument("output", path_, "a file, to go on with after an interruption");
      }
      file_ = File::open(path_, O_WRONLY | O_NOCTTY, "cannot open for writing");
      return;
    }
    if (!S_ISREG(existing.st_mode)) throw IoError(path_, 0, "cannot write: it exists and is not a regular file");
    // Renaming needs only the folder's permission; a file its owner has protected is to stay.
    if (::access(path_.c_str(), W_OK) != 0) throw IoError(path_, errno, "cannot write");
    mode_ = existing.st_mode & 0777U;
    replaces_ = true;
  }
  if (unfinished_ == Unfinished::stays) {
    open_kept();
  } else if (!create_unnamed()) {
    create_beside();
  }
  // A new file has what the umask leaves; a replaced one keeps what it had.
  if (replaces_) static_cast<void>(::fchmod(file_.descriptor(), static_cast<::mode_t>(mode_)));
}

bool OutputFile::create_unnamed() {
  auto const& target = paths_.target();
  auto const folder = target.has_parent_path() ? target.parent_path() : std::filesystem::path(".");
  removals_ = PartialFiles::all().removals();
  auto unnamed =
      File::unnamed(folder.string(), O_WRONLY, static_cast<::mode_t>(mode_), path_, "cannot create a file beside it");
  if (!unnamed) return false;
  file_ = *std::move(unnamed);
  unnamed_ = ::access(fmt::format("/proc/self/fd/{}", file_.descriptor()).c_str(), F_OK) == 0;
  return unnamed_;
}

void OutputFile::create_beside() {
  for (int attempt = 0; attempt < 100; ++attempt) {
    auto name = name_beside(paths_.target());
    PartialFiles::all().add(name);
    UniqueFd made{::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, static_cast<::mode_t>(mode_))};
    if (made) {
      file_ = {std::move(made), path_};
      partial_ = std::move(name);
      return;
    }
    auto const code = errno;
    PartialFiles::all().forget(name);
    if (code != EEXIST) throw IoError(path_, code, "cannot create a file beside it");
  }
  throw IoError(path_, EEXIST, "cannot create a file beside it");
}

void OutputFile::open_kept() {
  auto name = paths_.unfinished().string();
  UniqueFd made{::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, static_cast<::mode_t>(mode_))};
  if (!made) throw IoError(path_, errno, fmt::format("cannot write '{}' beside it", name));
  file_ = {std::move(made), path_};
  partial_ = std::move(name);
}

std::uint64_t OutputFile::bytes() const {
  return static_cast<std::uint64_t>(file_.status("cannot look at it").st_size);
}

std::size_t OutputFile::read(std::uint64_t offset, std::span<std::byte> to) const {
  return file_.read(offset, to, "cannot read what was written of it");
}

void OutputFile::go_on_at(std::uint64_t bytes) {
  auto const end = static_cast<::off_t>(bytes);
  if (::ftruncate(file_.descriptor(), end) != 0 || ::lseek(file_.descriptor(), end, SEEK_SET) < 0) {
    throw IoError(path_, errno, "cannot write");
  }
}

void OutputFile::name_it() {
  auto& partial_files = PartialFiles::all();
  auto code = replaces_ ? EEXIST : partial_files.name(file_.descriptor(), paths_.target().string(), removals_);
  for (int attempt = 0; code == EEXIST && attempt < 100; ++attempt) {
    auto name = name_beside(paths_.target());
    partial_files.add(name);
    code = partial_files.name(file_.descriptor(), name, removals_);
    if (code == 0) {
      partial_ = std::move(name);
    } else {
      partial_files.forget(name);
    }
  }
  if (code != 0) throw IoError(path_, code, "cannot put in place");
  unnamed_ = false;
}

OutputFile::~OutputFile() {
  if (partial_.empty() || unfinished_ == Unfinished::stays) return;
  ::unlink(partial_.c_str());
  PartialFiles::all().forget(partial_);
}

void OutputFile::write(std::span<const std::byte> data) {
  if (auto const problem = write_all(file_.descriptor(), data)) throw IoError(path_, problem.value(), "cannot write");
}

void OutputFile::rewrite(std::uint64_t offset, std::span<const std::byte> data) {
  file_.write(offset, data, "cannot write");
}

void OutputFile::sync() {
  bool const is_device = partial_.empty() && !unnamed_;
  if (!is_device) file_.sync("cannot write");
}

void OutputFile::commit() {
  if (unnamed_) name_it();
  if (partial_.empty()) return;
  // The journal, which tells where it ends, is removed afterwards: it must be whole before.
  if (unfinished_ == Unfinished::stays) file_.sync("cannot write");
  if (std::rename(partial_.c_str(), paths_.target().c_str()) != 0) throw IoError(path_, errno, "cannot put in place");
  PartialFiles::all().forget(partial_);
  partial_.clear();
}

}  // namespace unimem::detail
