#include "core/disk_cache.hpp"

#include <unimem/core/environment.hpp>

#include "core/unique_fd.hpp"
#include "core/write_all.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <random>
#include <system_error>
#include <utility>
#include <vector>

namespace unimem::detail {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view unfinished_ending = ".unfinished";

/// FNV-1a. It names files and notices damage; that two keys never meet is seen to by comparing them.
std::uint64_t hash_of(std::string_view bytes, std::uint64_t hash = 0xcbf29ce484222325U) {
  for (auto const byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3U;
  return hash;
}

std::string numbers_of(std::string_view key, std::string_view value) {
  return fmt::format("{} {} {:016x}\n", key.size(), value.size(), hash_of(value, hash_of(key)));
}

/// An entry is its heading, the sizes and the checksum as one line of text, the key, and the value. Another key's entry
/// is not damaged: two keys may have one hash.
std::optional<std::string> value_in(std::string_view file, std::string_view heading, std::string_view key,
                                    bool& damaged) {
  damaged = true;
  if (!file.starts_with(heading)) return std::nullopt;
  file.remove_prefix(heading.size());
  auto const line = file.substr(0, file.find('\n') + 1);
  file.remove_prefix(line.size());
  std::size_t key_size = 0;
  auto const read = std::from_chars(line.data(), line.data() + line.size(), key_size);
  if (read.ec != std::errc{} || key_size > file.size()) return std::nullopt;
  auto const value = file.substr(key_size);
  if (line != numbers_of(file.substr(0, key_size), value)) return std::nullopt;
  damaged = false;
  if (file.substr(0, key_size) != key) return std::nullopt;
  return std::string(value);
}

struct Entry {
  fs::path path;
  std::uintmax_t bytes = 0;
  fs::file_time_type used;
};

std::error_code last_error() noexcept {
  return {errno, std::generic_category()};
}

/// All of a regular file of at most `limit` bytes; nothing of anything else.
std::optional<std::string> content_of(int file, std::uintmax_t limit) {
  struct ::stat status{};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  if (static_cast<std::uintmax_t>(status.st_size) > limit) return std::nullopt;
  std::string content(static_cast<std::size_t>(status.st_size), '\0');
  for (std::size_t at = 0; at < content.size();) {
    auto const count = ::read(file, content.data() + at, content.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return std::nullopt;  // it has become shorter, too
    at += static_cast<std::size_t>(count);
  }
  return content;
}

/// Those that are missing, for the user alone: what was found out about his machine and programs is nobody else's.
std::error_code make_directories(fs::path const& directory) {
  std::error_code problem;
  if (directory.empty() || fs::is_directory(directory, problem)) return {};
  if (directory.has_parent_path() && directory.parent_path() != directory) {
    problem = make_directories(directory.parent_path());
    if (problem) return problem;
  }
  if (::mkdir(directory.c_str(), 0700) == 0 || errno == EEXIST) return {};  // another process may have been quicker
  return last_error();
}

struct Unfinished {
  UniqueFd file;
  fs::path path;
};

/// A new file beside `path` that nobody else has. Process ids tell nobody apart here: processes of two containers may
/// have the same one and one directory. Nor does it follow a link that somebody has laid.
std::error_code create_beside(fs::path const& path, Unfinished& made) {
  std::random_device random;
  for (int attempt = 0; attempt < 16; ++attempt) {
    auto const number = (std::uint64_t{random()} << 32U) | random();
    made.path = path;
    made.path += fmt::format(".{:016x}{}", number, unfinished_ending);
    int const file = ::open(made.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0 && errno == EEXIST) continue;
    if (file < 0) return last_error();
    made.file = UniqueFd(file);
    return {};
  }
  return std::make_error_code(std::errc::file_exists);
}

/// The entries of a directory, and on the way what a process that died left half written.
std::vector<Entry> entries_in(fs::path const& directory, std::string_view ending) {
  std::vector<Entry> result;
  auto const now = fs::file_time_type::clock::now();
  std::error_code ignored;
  for (fs::directory_iterator at(directory, ignored), end; at != end; at.increment(ignored)) {
    std::error_code gone;  // another process may take what this one looks at
    if (at->symlink_status(gone).type() != fs::file_type::regular) continue;
    Entry entry{at->path(), at->file_size(gone), {}};
    if (!gone) entry.used = at->last_write_time(gone);
    if (gone) continue;
    if (entry.path.extension() == ending) {
      result.push_back(std::move(entry));
    } else if (entry.path.extension() == unfinished_ending && now - entry.used > std::chrono::hours{1}) {
      bool const ours = entry.path.filename().string().find(fmt::format("{}.", ending)) != std::string::npos;
      if (ours) fs::remove(entry.path, gone);
    }
  }
  return result;
}

}  // namespace

fs::path user_cache_directory(std::string_view leaf) {
  if (auto const chosen = environment("UNIMEM_CACHE_DIR")) return fs::path{*chosen} / leaf;
  if (auto const caches = environment("XDG_CACHE_HOME")) return fs::path{*caches} / "unimem" / leaf;
  if (auto const home = environment("HOME")) return fs::path{*home} / ".cache" / "unimem" / leaf;
  return {};
}

DiskCache::DiskCache(fs::path directory, std::string_view kind, std::uintmax_t limit)
    : directory_(std::move(directory)),
      heading_(fmt::format("unimem {} 1\n", kind)),
      ending_(fmt::format(".{}", kind)),
      limit_(limit) {}

fs::path DiskCache::file_of(std::string_view key) const {
  return directory_ / fmt::format("{:016x}{}", hash_of(key), ending_);
}

std::optional<std::string> DiskCache::find(std::string_view key, bool* damaged) const noexcept try {
  if (damaged != nullptr) *damaged = false;
  if (directory_.empty()) return std::nullopt;
  // Without waiting: there may be a pipe in its place.
  UniqueFd const file{::open(file_of(key).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
  bool unusable = !file && errno == ELOOP;
  std::optional<std::string> value;
  if (file) {
    auto const content = content_of(file.get(), limit_);
    unusable = !content;
    if (content) value = value_in(*content, heading_, key, unusable);
  }
  if (damaged != nullptr) *damaged = unusable;
  if (value) static_cast<void>(::futimens(file.get(), nullptr));  // where that is refused, it goes earlier
  return value;
} catch (...) {
  return std::nullopt;
}

std::error_code DiskCache::keep(std::string_view key, std::string_view value) const noexcept try {
  if (directory_.empty() || value.size() > limit_) return {};
  auto const entry = fmt::format("{}{}{}{}", heading_, numbers_of(key, value), key, value);
  if (entry.size() > limit_) return {};  // all others would go for it, and then it would
  auto const path = file_of(key);
  Unfinished unfinished;
  if (auto const problem = make_directories(directory_)) return problem;
  if (auto const problem = create_beside(path, unfinished)) return problem;
  auto problem = write_all(unfinished.file.get(), entry);
  if (!problem && std::rename(unfinished.path.c_str(), path.c_str()) != 0) problem = last_error();
  if (problem) ::unlink(unfinished.path.c_str());
  make_room();
  return problem;
} catch (...) {
  return std::make_error_code(std::errc::not_enough_memory);
}

void DiskCache::make_room() const {
  auto entries = entries_in(directory_, ending_);
  std::uintmax_t held = 0;
  for (auto const& entry : entries) held += entry.bytes;
  if (held <= limit_) return;
  std::ranges::sort(entries, {}, &Entry::used);
  for (auto const& entry : entries) {
    if (held <= limit_) return;
    std::error_code problem;
    fs::remove(entry.path, problem);
    if (!problem) held -= entry.bytes;
  }
}

}  // namespace unimem::detail
