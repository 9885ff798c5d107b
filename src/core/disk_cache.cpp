#include "core/disk_cache.hpp"

#include <unimem/core/detail/environment.hpp>

#include "core/last_error.hpp"
#include "core/own_files.hpp"
#include "core/unique_fd.hpp"
#include "core/write_all.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <memory>
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
  std::string name;
  std::uintmax_t bytes = 0;
  ::timespec used{};
};

/// All of a regular file of at most `limit` bytes that no other user can have written; nothing of anything else.
std::optional<std::string> content_of(int file, std::uintmax_t limit) {
  struct ::stat status{};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  if (static_cast<std::uintmax_t>(status.st_size) > limit || why_not_believed(file)) return std::nullopt;
  std::string content(static_cast<std::size_t>(status.st_size), '\0');
  for (std::size_t at = 0; at < content.size();) {
    auto const count = ::read(file, content.data() + at, content.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return std::nullopt;  // it has become shorter, too
    at += static_cast<std::size_t>(count);
  }
  return content;
}

struct Unfinished {
  UniqueFd file;
  std::string name;
};

/// A new file beside `name` that no other process has. Process ids do not tell processes apart here: processes of two
/// containers may have the same one and one directory. Nor does it follow a link that another user has made.
std::error_code create_beside(int folder, std::string const& name, Unfinished& made) {
  std::random_device random;
  for (int attempt = 0; attempt < 16; ++attempt) {
    auto const number = (std::uint64_t{random()} << 32U) | random();
    made.name = fmt::format("{}.{:016x}{}", name, number, unfinished_ending);
    int const file = ::openat(folder, made.name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0 && errno == EEXIST) continue;
    if (file < 0) return last_error();
    made.file = UniqueFd(file);
    return {};
  }
  return std::make_error_code(std::errc::file_exists);
}

/// The entries of a directory, and on the way what a process that died left half written.
std::vector<Entry> entries_in(int folder, std::string_view ending) {
  std::vector<Entry> result;
  int const again = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // closed by closedir
  if (again < 0) return result;
  std::unique_ptr<::DIR, decltype([](::DIR* open) { ::closedir(open); })> const directory{::fdopendir(again)};
  if (!directory) {
    ::close(again);
    return result;
  }
  auto const now = std::time(nullptr);
  constexpr std::time_t hour = 3600;
  while (auto const* const found = ::readdir(directory.get())) {  // NOLINT(concurrency-mt-unsafe): one thread has it
    std::string name = found->d_name;
    struct ::stat status{};  // another process may take what this one looks at
    if (::fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode)) continue;
    if (name.ends_with(ending)) {
      result.push_back({std::move(name), static_cast<std::uintmax_t>(status.st_size), status.st_mtim});
    } else if (name.ends_with(unfinished_ending) && now - status.st_mtim.tv_sec > hour &&
               name.find(fmt::format("{}.", ending)) != std::string::npos) {
      ::unlinkat(folder, name.c_str(), 0);
    }
  }
  return result;
}

/// What was used longest ago goes, until at most `limit` bytes are held.
void make_room(int folder, std::string_view ending, std::uintmax_t limit) {
  auto entries = entries_in(folder, ending);
  std::uintmax_t held = 0;
  for (auto const& entry : entries) held += entry.bytes;
  if (held <= limit) return;
  std::ranges::sort(entries, {}, [](Entry const& entry) { return std::pair{entry.used.tv_sec, entry.used.tv_nsec}; });
  for (auto const& entry : entries) {
    if (held <= limit) return;
    if (::unlinkat(folder, entry.name.c_str(), 0) == 0) held -= entry.bytes;
  }
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

std::string DiskCache::name_of(std::string_view key) const {
  return fmt::format("{:016x}{}", hash_of(key), ending_);
}

fs::path DiskCache::file_of(std::string_view key) const {
  return directory_ / name_of(key);
}

std::optional<std::string> DiskCache::find(std::string_view key, bool* damaged) const noexcept try {
  if (damaged != nullptr) *damaged = false;
  if (directory_.empty()) return std::nullopt;
  std::error_code not_ours;
  auto const folder = open_own_folder(directory_, not_ours);
  if (!folder) return std::nullopt;
  // Without waiting: there may be a pipe in its place.
  constexpr int how = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  UniqueFd const file{::openat(folder.get(), name_of(key).c_str(), how)};
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
  if (auto const problem = make_own_folders(directory_)) return problem;
  std::error_code problem;
  auto const folder = open_own_folder(directory_, problem);
  if (!folder) return problem;
  auto const name = name_of(key);
  Unfinished made;
  problem = create_beside(folder.get(), name, made);
  if (problem) return problem;
  problem = write_all(made.file.get(), entry);
  if (!problem && ::renameat(folder.get(), made.name.c_str(), folder.get(), name.c_str()) != 0) problem = last_error();
  if (problem) ::unlinkat(folder.get(), made.name.c_str(), 0);
  make_room(folder.get(), ending_, limit_);
  return problem;
} catch (...) {
  return std::make_error_code(std::errc::not_enough_memory);
}

}  // namespace unimem::detail
